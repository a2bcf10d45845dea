"""`tagrpo-diff A B`: where the settings of two runs differ, once everything is composed and resolved.

tagrpo-diff "experiment=pass_at_k" "experiment=pass_at_k recipe=common"
tagrpo-diff "experiment=grpo recipe=common" "experiment=dapo recipe=common"
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue
from rich.console import Console
from rich.table import Column, Table

from ..settings import config  # noqa: F401  registers the resolvers of the configuration
from .console import entry_point, explained

ABSENT = "(absent)"


def settings(overrides: Sequence[str]) -> dict[str, Any]:
    """Every setting of `tagrpo-train` with these overrides: dotted key → resolved value.

    Lists are values; a reference to a whole node, or to none, is left out, since the node itself is there. A setting
    that must be given is `???`; one that only a started run can resolve stays as written.
    """
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return flattened(compose("train", list(overrides)))


def flattened(node: DictConfig, prefix: str = "") -> dict[str, Any]:
    """Dotted key → resolved value, below `node`."""
    found: dict[str, Any] = {}
    for key in map(str, node):
        name = f"{prefix}{key}"
        try:
            value = node[key]
        except MissingMandatoryValue:
            value = "???"
        except InterpolationResolutionError:
            value = dict(OmegaConf.to_container(node, resolve=False))[key]  # type: ignore[arg-type]
        if (isinstance(value, DictConfig) or value is None) and OmegaConf.is_interpolation(node, key):
            continue  # a reference to a node that has keys of its own, or to none
        if isinstance(value, DictConfig) and value:
            found |= flattened(value, f"{name}.")
        else:
            plain = isinstance(value, DictConfig | ListConfig)
            found[name] = OmegaConf.to_container(value, resolve=True) if plain else value
    return found


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, sorted, with both values; `ABSENT` where one side has no such key."""
    pairs = {key: (left.get(key, ABSENT), right.get(key, ABSENT)) for key in sorted({*left, *right})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


@entry_point()
def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(prog="tagrpo-diff", description=__doc__.splitlines()[0])
    for side in ("a", "b"):
        parser.add_argument(side, metavar=side.upper(), help='overrides of tagrpo-train in quotes: "experiment=grpo …"')
    args = parser.parse_args()
    with explained():
        found = differences(settings(shlex.split(args.a)), settings(shlex.split(args.b)))
    table = Table(*(Column(title, overflow="fold") for title in ("setting", args.a, args.b)))
    for key, (left, right) in found.items():
        table.add_row(key, str(left), str(right))
    Console().print(table if found else "Nothing differs.")


if __name__ == "__main__":
    main()
