"""Rephrasings with their provenance and verdicts, and the rows of a file of rephrasings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..files import write_text
from ..foreign import printable
from ..types import QuestionGroup
from .texts import hidden_text


class Pair(NamedTuple):
    """Question and one of its rephrasings, for the checks."""

    question: str
    rephrasing: str
    answer: tuple[str, ...] = ()  # accepted answers; any is correct
    others: tuple[str, ...] = ()  # rephrasings of the same question that were accepted before


class Verdict(NamedTuple):
    """Result of one check of a pair."""

    check: str
    passed: bool | None  # None if the check could not decide: the rephrasing is not accepted
    reason: str  # what was found
    value: float | None = None  # what was measured, if anything


Check = Callable[[Pair], Verdict]
Checks = Mapping[str, Check]


def accepted(verdicts: Iterable[Verdict]) -> bool:
    """Return whether all checks passed; an undecided check, such as an unclear judgement, has not passed."""
    return all(verdict.passed is True for verdict in verdicts)


@dataclass
class Candidate:
    """Rephrasing with its provenance and verdicts."""

    text: str
    # `model`, …; empty if it is not from this package
    provenance: Mapping[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Kind of change to the question."""
        return str(self.provenance.get("kind", "wording"))

    @property
    def unchecked(self) -> Sequence[str]:
        """Names of the checks that the rephrasing need not pass."""
        return self.provenance.get("unchecked") or ()


@dataclass
class Reviewed:
    """Question with all its candidates, both accepted and refused."""

    group: QuestionGroup
    candidates: list[Candidate] = field(default_factory=list)
    shortfall: str = ""  # reason for fewer rephrasings than requested

    def add(self, candidate: Candidate, checks: Checks) -> bool:
        """Check a candidate against the question and the accepted candidates, and add it.

        Returns whether the candidate passed.
        """
        pair = self.pair(candidate, [other.text for other in self.kept()])
        candidate.verdicts = review(pair, checks, candidate.unchecked)
        self.candidates.append(candidate)
        return accepted(candidate.verdicts)

    def pair(self, candidate: Candidate, others: Iterable[str] = ()) -> Pair:
        """Return the question and one of its candidates as a pair."""
        return Pair(self.group.question, candidate.text, self.group.answer, tuple(others))

    def kept(self) -> list[Candidate]:
        """Return the candidates that passed every check."""
        return [c for c in self.candidates if accepted(c.verdicts)]

    def to_row(self) -> dict[str, Any]:
        """Return a row for `TableSource`: accepted rephrasings with provenance, and refused rephrasings."""
        kept = self.kept()
        row = {
            **self.group.metadata,
            "id": self.group.id,
            "question": self.group.question,
            "answer": self.group.answer[0] if len(self.group.answer) == 1 else list(self.group.answer),
            "rephrasings": [candidate.text for candidate in kept],
            "provenance": [_described(candidate) for candidate in kept],
            "refused": [{"text": c.text, **_described(c)} for c in self.candidates if c not in kept],
        }
        kinds = [candidate.kind for candidate in kept]
        row |= {"kinds": kinds} if {*kinds} - {"wording"} else {}
        return row | ({"shortfall": self.shortfall} if self.shortfall else {})

    @classmethod
    def from_group(cls, group: QuestionGroup) -> Reviewed:
        """Restore the content of `to_row` from a question that a source has read.

        The file may lack provenance.
        """
        names = ("provenance", "refused", "shortfall")
        described, refused, shortfall = (group.metadata.get(name) for name in names)
        described = described or [{"kind": kind} for kind in group.kinds] or [{}] * len(group.rephrasings)
        metadata = {name: value for name, value in group.metadata.items() if name not in names}
        try:
            made = [{**entry, "text": text} for text, entry in zip(group.rephrasings, described, strict=True)]
            candidates = [_candidate(**entry) for entry in [*made, *(refused or [])]]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Question {printable(group.id)}: expected `provenance`, one entry per rephrasing, and "
                f"`refused` as tagrpo-rephrase writes them, but: {printable(str(error))}. Edit `provenance` "
                "along with rephrasings: it says which checks each need not pass."
            ) from error
        return cls(
            group._replace(metadata=metadata, rephrasings=(), kinds=()), candidates, str(shortfall or "")
        )


def review(pair: Pair, checks: Checks, unchecked: Sequence[str] = ()) -> list[Verdict]:
    """Return the verdicts of all checks except the checks named in `unchecked`.

    An unreadable text gets a single verdict, that of `readable`. A readable text has no broken or hidden
    characters, spells no control token of a published tokenizer, and is not overlong. If `readable` is in
    `unchecked`, a text may have any length and contain hidden text.
    """
    if "\ufffd" in pair.rephrasing and "\ufffd" not in pair.question:
        return [Verdict("readable", False, "holds broken characters")]
    if "readable" not in unchecked:
        if len(pair.rephrasing) > max(2000, 4 * len(pair.question)):
            return [Verdict("readable", False, f"{len(pair.rephrasing):,} characters are too many")]
        if hidden := hidden_text(pair.rephrasing):
            return [Verdict("readable", False, f"holds {', '.join(hidden[:5])}")]
    return [check(pair)._replace(check=name) for name, check in checks.items() if name not in unchecked]


def write_reviewed(path: Path, reviewed: Sequence[Reviewed]) -> None:
    """Write all questions, including those without a rephrasing."""
    write_text(path, "".join(json.dumps(item.to_row(), ensure_ascii=False) + "\n" for item in reviewed))


def _described(candidate: Candidate) -> dict[str, Any]:
    return {**candidate.provenance, "verdicts": [verdict._asdict() for verdict in candidate.verdicts]}


def _candidate(text: str, verdicts: Iterable[Mapping[str, Any]] = (), **provenance: Any) -> Candidate:
    if not isinstance(text, str):
        raise TypeError(f"a rephrasing is {str(text)[:80]!r}")
    return Candidate(text, provenance, [Verdict(**verdict) for verdict in verdicts])
