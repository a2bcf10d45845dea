"""`tagrpo-diff A B`: where the settings of two runs differ, once everything is composed and resolved.

tagrpo-diff "experiment=pass_at_k" "experiment=pass_at_k recipe=common"
tagrpo-diff "experiment=grpo recipe=common" "experiment=dapo recipe=common"
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from rich.console import Console
from rich.table import Column, Table

from ..runs.directory import changes, flat
from ..settings import config  # noqa: F401  registers the resolvers of the configuration
from .console import entry_point, explained

ABSENT = "(absent)"


def settings(overrides: Sequence[str]) -> dict[str, Any]:
    """Every setting of `tagrpo-train` with these overrides: dotted key → resolved value, or as written without a run.

    References to nodes are left out, since the nodes are there.
    """
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", list(overrides))
    found = {}
    for name, written in flat(OmegaConf.to_container(cfg)).items():
        try:
            value = OmegaConf.select(cfg, name)
        except InterpolationResolutionError:
            value = written
        if isinstance(value, DictConfig) or value is None:
            if "${" in str(written):
                continue
            value = written
        found[name] = OmegaConf.to_container(value, resolve=True) if isinstance(value, ListConfig) else value
    return found


@entry_point()
def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(prog="tagrpo-diff", description=__doc__.splitlines()[0])
    for side in ("a", "b"):
        parser.add_argument(side, metavar=side.upper(), help='overrides of tagrpo-train in quotes: "experiment=grpo …"')
    args = parser.parse_args()
    with explained():
        found = changes(settings(shlex.split(args.a)), settings(shlex.split(args.b)), absent=ABSENT)
    table = Table(*(Column(title, overflow="fold") for title in ("setting", args.a, args.b)))
    for key, (left, right) in found.items():
        table.add_row(key, str(left), str(right))
    Console().print(table if found else "Nothing differs.")
