"""`tagrpo-diff A B`: show the differences between the composed and resolved settings of two runs.

tagrpo-diff "experiment=pass_at_k" "experiment=pass_at_k recipe=common"
tagrpo-diff "experiment=grpo recipe=common" "experiment=dapo recipe=common"
"""

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from ..runs.directory import changes, flat, without_copies
from ..settings.config import compose_run
from .console import entry_point, explained

ABSENT = "(absent)"


def settings(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved value of every setting of `tagrpo-train` with these overrides, by dotted key."""
    return flat(OmegaConf.to_container(compose_run("<run>", overrides), resolve=True))


@entry_point()
def main() -> None:
    """Run `tagrpo-diff`."""
    parser = argparse.ArgumentParser(prog="tagrpo-diff", description=__doc__.splitlines()[0])
    for side in ("a", "b"):
        parser.add_argument(
            side, metavar=side.upper(), help='overrides of tagrpo-train in quotes: "experiment=grpo …"'
        )
    args = parser.parse_args()
    with explained():
        a, b = (settings(shlex.split(side)) for side in (args.a, args.b))
        found = without_copies(changes(a, b, absent=ABSENT))
    table = Table(*(Column(escape(title), overflow="fold") for title in ("setting", args.a, args.b)))
    for key, (left, right) in sorted(found.items()):
        table.add_row(key, escape(str(left)), escape(str(right)))
    Console().print(table if found else "Nothing differs.")
