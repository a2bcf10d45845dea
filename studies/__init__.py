"""Studies: plans that were written down before their runs, and what came of them. No part of the package."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tagrpo.runs.files import write_text

PAGE = Path(__file__).parents[1] / "docs" / "smollm2.md"


def write_section(name: str, lines: Iterable[str]) -> None:
    """Replace what stands between the marks of a section of docs/smollm2.md."""
    between = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)
    text = "".join(f"{line}\n" for line in lines)
    write_text(PAGE, between.sub(lambda _: text, PAGE.read_text()))
