"""Rephrasings checked again, the share that passes, and a sample for a human to read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ..datamodules.sources.jsonl import JsonLinesSource
from .candidates import Check, Reviewed, accepted, review


def read_reviewed(path: str | Path) -> list[Reviewed]:
    """The questions of a file that `tagrpo-rephrase` wrote, or of any that `JsonLinesSource` reads."""
    return [Reviewed.from_group(group) for group in JsonLinesSource(path).load()]


def recheck(reviewed: Iterable[Reviewed], checks: Mapping[str, Check]) -> None:
    """Replace the verdicts of the checks given; verdicts under other names (`judge`) stay."""
    for item in reviewed:
        before: list[str] = []
        for candidate in item.candidates:
            verdicts = review(item.pair(candidate, before), checks)
            others = [verdict for verdict in candidate.verdicts if verdict.check not in {"readable", *checks}]
            candidate.verdicts = verdicts + others
            if accepted(verdicts):
                before.append(candidate.text)


def refuse_undecided(reviewed: Iterable[Reviewed]) -> None:
    """Turn undecided verdicts into refusals."""
    for candidate in [candidate for item in reviewed for candidate in item.candidates]:
        candidate.verdicts = [v._replace(passed=v.passed is True) for v in candidate.verdicts]


def by_check(reviewed: Iterable[Reviewed]) -> pd.DataFrame:
    """Verdicts per check: columns `passed`, `failed`, `undecided`, `alone` (refused by this check and no other)."""
    rows = []
    for verdicts in (candidate.verdicts for item in reviewed for candidate in item.candidates):
        alone = sum(verdict.passed is False for verdict in verdicts) == 1
        rows += [
            (v.check, v.passed is True, v.passed is False, v.passed is None, v.passed is False and alone)
            for v in verdicts
        ]
    frame = pd.DataFrame(rows, columns=["check", "passed", "failed", "undecided", "alone"])
    return frame.groupby("check", sort=False).sum().rename_axis(None)


def by_instruction(reviewed: Sequence[Reviewed]) -> pd.DataFrame:
    """Candidates per instruction or rule: columns `proposed`, `accepted`, `percent`."""
    rows = [(c.provenance.get("instruction", ""), accepted(c.verdicts)) for r in reviewed for c in r.candidates]
    grouped = pd.DataFrame(rows, columns=["instruction", "accepted"]).groupby("instruction")["accepted"]
    table = pd.DataFrame({"proposed": grouped.size(), "accepted": grouped.sum().astype(int)})
    return table.assign(percent=100 * table["accepted"] / table["proposed"])


def coverage(reviewed: Iterable[Reviewed]) -> dict[int, int]:
    """Number of accepted rephrasings → questions that have so many."""
    return dict(sorted(Counter(len(item.kept()) for item in reviewed).items()))


def sample_groups(reviewed: Sequence[Reviewed], size: int, seed: int) -> list[Reviewed]:
    """A random sample of the questions that have candidates, in the file's order; the same seed draws the same.

    Every such question has the same chance, so that shares found by reading the sample hold for the file.
    """
    eligible = [index for index, item in enumerate(reviewed) if item.candidates]
    chosen = random.Random(seed).sample(eligible, min(size, len(eligible)))
    return [reviewed[index] for index in sorted(chosen)]
