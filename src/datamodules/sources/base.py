"""What every source of questions promises, and what it can tell about itself."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...types import QuestionGroup

FINGERPRINT_BYTES = 16


class Source(Protocol):
    """Where questions come from: a file, the hub, or a generator. Knows nothing of templates or tokens.

    A source that leaves rows out has a `report`, a `SourceReport`, once it is loaded.
    """

    def load(self) -> list[QuestionGroup]:
        """Return all questions, each with its rephrasings and reference answers.

        Promised of every source:

        - ids are unique within the list;
        - `answer` is never empty, and any of its strings is a correct answer;
        - two calls, in one process or in two, return the same questions in the same order, so that ranks
          and resumed runs agree on what row i is.

        Raises:
            ValueError: a row breaks one of these promises; the message names the row.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """What a source read, what it left out and why, and what is not as it was expected."""

    origin: str
    """The file, or the name on the hub."""
    read: int
    """Rows that were read."""
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """reason → ids of the questions left out for it."""
    notes: Sequence[str] = ()
    """What was done to the rows, in sentences."""
    warnings: Sequence[str] = ()
    """What differs from the content that was expected, in sentences."""


def fingerprint(groups: Iterable[QuestionGroup]) -> str:
    r"""32 hex digits that change with any question, answer or rephrasing, and not with their order or their ids.

    The sum of SHA-256 over questions, cut to 16 bytes. Texts are compared after Unicode normalisation (NFKC) and
    with any run of white space as one space, so that copies that differ in line breaks alone agree.

    >>> one, two = QuestionGroup("a", "1 + 1?", (), ("2",)), QuestionGroup("b", "1 + 2?", (), ("3",))
    >>> fingerprint([one, two]) == fingerprint([two, one._replace(id="c", question="1  + 1?\n")])
    True
    >>> fingerprint([one]) == fingerprint([one._replace(answer=("3",))])
    False
    """
    total = 0
    for group in groups:
        parts = [(group.question,), group.answer, group.rephrasings]
        text = "\x1e".join("\x1f".join(map(plain, texts)) for texts in parts)
        total += int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:FINGERPRINT_BYTES])
    return f"{total % 256**FINGERPRINT_BYTES:0{2 * FINGERPRINT_BYTES}x}"


def plain(text: str) -> str:
    """The text after Unicode normalisation (NFKC), any run of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", text).split())
