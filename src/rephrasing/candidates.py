"""Rephrasings with where they come from and what the checks say, and the file that holds them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..types import QuestionGroup
from .verdicts import Pair, Verdict, accepted


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a rephrasing comes from."""

    model: str
    """The model as its server names it; `rules` for the rule-based rephraser."""
    instruction: str
    """Name of the instruction, or of the rule."""
    time: str
    """UTC, ISO 8601, of the answer; empty for rules."""
    request_id: str = ""
    """The server's name of the answer."""
    request: str = ""
    """Key of the request in the store."""
    seed: int | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the answer, which other rephrasings may have come with."""
    shared_by: int = 1
    """Rephrasings in that answer."""
    renames: bool = False
    """Whether it was asked to rename variables or people."""


@dataclass
class Candidate:
    """One rephrasing."""

    text: str
    provenance: Provenance | None = None
    """None for one that this package did not make."""
    verdicts: list[Verdict] = field(default_factory=list)


@dataclass
class Reviewed:
    """A question and all that was proposed for it."""

    group: QuestionGroup
    """Its `rephrasings` are not looked at."""
    candidates: list[Candidate] = field(default_factory=list)
    shortfall: str = ""
    """Why there are fewer rephrasings than asked for; empty where there are enough."""

    def pair(self, candidate: Candidate, others: Iterable[str] = ()) -> Pair:
        """What the checks judge."""
        renames = candidate.provenance is not None and candidate.provenance.renames
        return Pair(self.group.question, candidate.text, self.group.answer, renames, tuple(others))

    def kept(self, undecided: bool = True) -> list[Candidate]:
        """The candidates that no check refused."""
        return [candidate for candidate in self.candidates if accepted(candidate.verdicts, undecided)]

    def to_row(self, undecided: bool = True) -> dict[str, Any]:
        """A row for `JsonLinesSource`: the accepted rephrasings, where they come from, and the refused ones.

        `provenance` has one entry per rephrasing, in their order.
        """
        kept = self.kept(undecided)
        row = {
            **self.group.metadata,
            "id": self.group.id,
            "question": self.group.question,
            "answer": self.group.answer[0] if len(self.group.answer) == 1 else list(self.group.answer),
            "rephrasings": [candidate.text for candidate in kept],
            "provenance": [_described(candidate) for candidate in kept],
            "refused": [{"text": c.text, **_described(c)} for c in self.candidates if c not in kept],
        }
        return row | ({"shortfall": self.shortfall} if self.shortfall else {})

    @classmethod
    def from_group(cls, group: QuestionGroup) -> Reviewed:
        """What a row says, read through a source; a file that lacks provenance has candidates without it."""
        metadata = dict(group.metadata)
        described = metadata.pop("provenance", None) or [{}] * len(group.rephrasings)
        refused = metadata.pop("refused", None) or []
        shortfall = str(metadata.pop("shortfall", "") or "")
        if len(described) != len(group.rephrasings):
            raise ValueError(
                f"Question {group.id}: expected one entry of `provenance` per rephrasing, but got {len(described)} for "
                f"{len(group.rephrasings)}. Remove `provenance` from rows whose rephrasings were edited."
            )
        candidates = [_candidate(text, entry) for text, entry in zip(group.rephrasings, described, strict=True)]
        candidates += [_candidate(entry["text"], entry) for entry in refused]
        return cls(group._replace(metadata=metadata, rephrasings=()), candidates, shortfall)


def _described(candidate: Candidate) -> dict[str, Any]:
    provenance = {} if candidate.provenance is None else asdict(candidate.provenance)
    return {**provenance, "verdicts": [verdict._asdict() for verdict in candidate.verdicts]}


def _candidate(text: str, described: Mapping[str, Any]) -> Candidate:
    fields = {name: value for name, value in described.items() if name in Provenance.__dataclass_fields__}
    verdicts = [Verdict(**verdict) for verdict in described.get("verdicts", ())]
    return Candidate(text, Provenance(**fields) if "model" in fields else None, verdicts)


def write_rows(path: str | Path, reviewed: Sequence[Reviewed], undecided: bool = True) -> None:
    """Write all questions, those without a rephrasing too; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        for item in reviewed:
            file.write(json.dumps(item.to_row(undecided), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
