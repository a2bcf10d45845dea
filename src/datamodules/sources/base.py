"""Interface of sources of questions, and their reports."""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ...types import QuestionGroup


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """Report of a source: rows read, questions left out, and differences from the expected content."""

    origin: str  # the file, or the name on the hub
    read: int  # rows
    # reason → ids of the questions left out
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()  # changes made to the rows, in sentences
    warnings: Sequence[str] = ()  # differences from the expected content, in sentences
    # id → file and row, for messages; may lack questions
    places: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Source(Protocol):
    """Source of questions: a file, the hub or a generator. Templates and tokens are not a source's concern.

    Derive from this class to inherit the default of `report`.
    """

    report: SourceReport | None = None
    """Report on the last `load`; None if there is nothing to report."""

    def load(self) -> list[QuestionGroup]:
        """Return all questions, each with its rephrasings and reference answers.

        Every source guarantees:

        - ids are unique within the list;
        - `answer` is never empty, and any of its strings is a correct answer;
        - two calls, in one process or in two, return the same questions in the same order, so that ranks and
          resumed runs agree on row i.

        Raises:
            ValueError: if a row breaks one of these guarantees; the message names the row.
        """


def fingerprint(groups: Iterable[QuestionGroup]) -> str:
    """Return a sum of SHA-256 digests of the `plain` texts of questions, answers and rephrasings.

    The ids of questions and their order do not change the sum.
    """
    total = 0
    for group in groups:
        parts = [(group.question,), group.answer, group.rephrasings]
        text = "\x1e".join("\x1f".join(map(plain, texts)) for texts in parts)
        total += int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16])
    return f"{total % 256**16:032x}"


def plain(text: str) -> str:
    """Return the text after Unicode normalisation (NFKC), with each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", text).split())
