"""Rephrasings from a file, for the questions of any source."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...types import QuestionGroup
from .base import plain
from .files import Row, RowError, read_rows, take_rows
from .rows import kinds_of

Rephrasings = Mapping[str, Mapping[str, Any]]
"""Map from the `plain` text of a question to its `rephrasings` and `kinds`, as in `QuestionGroup`."""


def read_rephrasings(path: str | Path) -> Rephrasings:
    """Read rephrasings from JSON lines.

    The fields are `question`, `rephrasings` (a list of texts) and perhaps `kinds`. Other fields are ignored.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a row is malformed, or repeats a question with other rephrasings; the message lists the
            first ten such rows.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a file of rephrasings at {path}, but found none. Set `rephrasings`."
        )
    found: dict[str, dict[str, Any]] = {}

    def take(row: Row) -> None:
        values = row.values()
        question = values.get("question")
        texts = values.get("rephrasings")
        if not (
            isinstance(question, str)
            and isinstance(texts, list)
            and all(t and isinstance(t, str) for t in texts)
        ):
            raise RowError(
                "`question`, a text, and `rephrasings`, a list of texts, but got "
                f"{str(question)[:80]!r} and {str(texts)[:80]!r}"
            )
        made = {"rephrasings": tuple(texts), "kinds": kinds_of(values.get("kinds"), len(texts))}
        if found.setdefault(plain(question), made) != made:
            raise RowError(
                f"each question once, but an earlier row has other rephrasings of {question[:80]!r}"
            )

    take_rows(read_rows(path), take)
    return found


def with_rephrasings(
    groups: Sequence[QuestionGroup], rephrasings: Rephrasings
) -> tuple[list[QuestionGroup], str]:
    """Attach rephrasings to questions. Return the questions, and a sentence on how many have rephrasings.

    Raises:
        ValueError: if no question has rephrasings.
    """
    joined = [group._replace(**rephrasings.get(plain(group.question), {})) for group in groups]
    count = sum(bool(group.rephrasings) for group in joined)
    if groups and not count:
        raise ValueError(
            f"Expected rephrasings of the {len(groups)} questions, but the file has {len(rephrasings)} "
            f"others. Its questions must read as in the source, for example {groups[0].question[:80]!r}."
        )
    return joined, f"{count} of {len(groups)} questions have rephrasings"
