"""The page `docs/trainers.md`, whose tables the command writes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..files import write_section
from .adapters import Answer
from .compare import Comparison


def write_page(page: Path, answers: Mapping[str, Answer | str], found: Sequence[Comparison]) -> None:
    """Write the tables of versions and methods between the page's marks."""
    write_section(page, "trainers", tables(answers, found, datetime.date.today()))


def tables(answers: Mapping[str, Answer | str], found: Sequence[Comparison], today: datetime.date) -> str:
    """Return the table of trainers and methods, in Markdown."""
    there = {name: answer for name, answer in answers.items() if isinstance(answer, Answer)}
    methods = list(dict.fromkeys(each.method for each in found))
    heads = [f"{name} {answer.version}" for name, answer in there.items()]
    lines = [
        f"Written by `tagrpo-verify --page` on {today.isoformat()}.",
        "",
        f"| method | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for method in methods:
        cells = []
        for name in there:
            own = [each for each in found if (each.trainer, each.method) == (name, method)]
            cells.append(cell(own[0]) if own else "")
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(found: Comparison) -> str:
    """Return a comparison as a cell of the table: settings as code, a dash if the trainer lacks the method."""
    if found.default is None and " has no " in found.reason:
        return "–"
    text = found.verdict.replace("|", "/")
    if text.startswith("equal with "):
        return "equal with " + ", ".join(f"`{word}`" for word in text.removeprefix("equal with ").split())
    return text
