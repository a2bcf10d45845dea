"""Rephrasings as data: one row per candidate with every verdict, what share passes, a sample for a human to read."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ..datamodules.sources.jsonl import JsonLinesSource
from .candidates import Reviewed
from .verdicts import Check, Verdict, accepted, names, review


def read_reviewed(path: str | Path) -> list[Reviewed]:
    """The questions of a file that `tagrpo-rephrase` wrote, or of any that `JsonLinesSource` reads.

    Raises:
        ValueError: a row is broken; file and row are named.
    """
    return [Reviewed.from_group(group) for group in JsonLinesSource(path).load()]


def recheck(reviewed: Iterable[Reviewed], checks: Mapping[str, Check]) -> None:
    """Replace the verdicts of the checks given; verdicts under other names (`judge`, `solver`) stay."""
    for item in reviewed:
        before: list[str] = []
        for candidate in item.candidates:
            verdicts = review(item.pair(candidate, before), checks)
            candidate.verdicts = verdicts + [v for v in candidate.verdicts if v.check not in checks]
            if accepted(verdicts):
                before.append(candidate.text)


def audit_frame(reviewed: Sequence[Reviewed], undecided: bool = True) -> pd.DataFrame:
    """One row per candidate.

    Columns: `question` (id), `text`, `model`, `instruction` (both empty where unknown), `accepted`, `failed` (names of
    the checks that refused it), `reason` (of the first of them), and for each check two columns: `<check>` with True,
    False or None, and `<check>/value` with what it measured.

    Args:
        reviewed: Questions with candidates.
        undecided: What a check counts as that could not decide.
    """
    rows = []
    for item in reviewed:
        for candidate in item.candidates:
            failed = [v for v in candidate.verdicts if v.passed is False or (v.passed is None and not undecided)]
            provenance = candidate.provenance
            row: dict[str, object] = {
                "question": item.group.id,
                "text": candidate.text,
                "model": provenance.model if provenance else "",
                "instruction": provenance.instruction if provenance else "",
                "accepted": accepted(candidate.verdicts, undecided),
                "failed": ", ".join(verdict.check for verdict in failed),
                "reason": failed[0].reason if failed else "",
            }
            for verdict in candidate.verdicts:
                row[verdict.check], row[f"{verdict.check}/value"] = verdict.passed, verdict.value
            rows.append(row)
    columns = ["question", "text", "model", "instruction", "accepted", "failed", "reason"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def by_check(reviewed: Iterable[Reviewed]) -> pd.DataFrame:
    """Verdicts per check: columns `passed`, `failed`, `undecided`, `alone` (refused by this check and no other)."""
    counts: dict[str, dict[str, int]] = {}
    for item in reviewed:
        for candidate in item.candidates:
            for verdict in candidate.verdicts:
                row = counts.setdefault(verdict.check, dict.fromkeys(("passed", "failed", "undecided", "alone"), 0))
                row[_OUTCOME[verdict.passed]] += 1
                row["alone"] += names(candidate.verdicts) == [verdict.check]
    return pd.DataFrame.from_dict(counts, orient="index", columns=["passed", "failed", "undecided", "alone"])


_OUTCOME = {True: "passed", False: "failed", None: "undecided"}


def by_instruction(reviewed: Sequence[Reviewed], undecided: bool = True) -> pd.DataFrame:
    """Candidates per instruction or rule: columns `proposed`, `accepted`, `percent`."""
    frame = audit_frame(reviewed, undecided)
    grouped = frame.groupby("instruction", sort=True)["accepted"]
    table = pd.DataFrame({"proposed": grouped.size(), "accepted": grouped.sum().astype(int)})
    table["percent"] = 100 * table["accepted"] / table["proposed"]
    return table


def coverage(reviewed: Iterable[Reviewed], undecided: bool = True) -> dict[int, int]:
    """Number of accepted rephrasings → questions that have so many.

    >>> from tagrpo.types import QuestionGroup
    >>> coverage([Reviewed(QuestionGroup("a", "?", (), ("1",)))])
    {0: 1}
    """
    counts: dict[int, int] = {}
    for item in reviewed:
        kept = len(item.kept(undecided))
        counts[kept] = counts.get(kept, 0) + 1
    return dict(sorted(counts.items()))


def sample_groups(reviewed: Sequence[Reviewed], size: int, seed: int) -> list[Reviewed]:
    """A random sample of the questions that have candidates, in the file's order; the same seed draws the same.

    Every such question has the same chance, so that shares found by reading the sample hold for the file.
    """
    eligible = [index for index, item in enumerate(reviewed) if item.candidates]
    chosen = random.Random(seed).sample(eligible, min(size, len(eligible)))
    return [reviewed[index] for index in sorted(chosen)]


def failures(verdicts: Sequence[Verdict]) -> str:
    """The reasons of a refusal, for a reader."""
    return "; ".join(f"{verdict.check}: {verdict.reason}" for verdict in verdicts if verdict.passed is False)
