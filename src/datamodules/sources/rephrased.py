"""Rephrasings from a file of their own, joined to the questions of any source by the text of the questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...types import QuestionGroup
from .base import plain
from .rows import RowError, kinds_of, read_rows


class Rephrased(NamedTuple):
    """The rephrasings of a question, as in `QuestionGroup`."""

    rephrasings: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


Rephrasings = Mapping[str, Rephrased]
"""`plain` text of a question → its rephrasings."""


def read_rephrasings(path: str | Path) -> Rephrasings:
    """Read JSON lines with `question`, `rephrasings`, a list of texts, and perhaps `kinds`; other fields are ignored.

    A ValueError names the rows that are broken or repeat a question with other rephrasings.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file of rephrasings at {path}, but found none. Set `rephrasings`.")
    found: dict[str, Rephrased] = {}

    def take(_: int, row: dict[str, Any]) -> None:
        question, texts = row.get("question"), row.get("rephrasings")
        if (
            not isinstance(question, str)
            or not isinstance(texts, list)
            or not all(isinstance(t, str) and t for t in texts)
        ):
            raise RowError(
                "`question`, a text, and `rephrasings`, a list of texts, but got "
                f"{str(question)[:80]!r} and {str(texts)[:80]!r}"
            )
        rephrased = Rephrased(tuple(texts), kinds_of(row, len(texts)))
        if found.setdefault(plain(question), rephrased) != rephrased:
            raise RowError(f"each question once, but an earlier row has other rephrasings of {question[:80]!r}")

    read_rows(path, take)
    return found


def with_rephrasings(groups: Sequence[QuestionGroup], rephrasings: Rephrasings) -> tuple[list[QuestionGroup], str]:
    """Return the questions with their rephrasings, and a sentence on how many have any; ValueError if none has."""
    joined = [group._replace(**rephrasings.get(plain(group.question), Rephrased())._asdict()) for group in groups]
    count = sum(bool(group.rephrasings) for group in joined)
    if groups and not count:
        raise ValueError(
            f"Expected rephrasings of the {len(groups)} questions, but the file has {len(rephrasings)} others. "
            f"Its questions must read as in the source, for example {groups[0].question[:80]!r}."
        )
    return joined, f"{count} of {len(groups)} questions have rephrasings"
