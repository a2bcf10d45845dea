"""Rephrasings as data: one row per candidate with every verdict, what share passes, a sample for a human to read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ..datamodules.sources.jsonl import JsonLinesSource
from .candidates import Check, Reviewed, accepted, review

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet takes for a formula."""


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


def audit_frame(reviewed: Sequence[Reviewed], undecided: bool = True) -> pd.DataFrame:
    """One row per candidate.

    Columns: `question` (id), `text`, `model`, `instruction` (both empty where unknown), `accepted`, `failed` (names of
    the checks that refused it), `reason` (of the first of them), and for each check two columns: `<check>` with True,
    False or None, and `<check>/value` with what it measured. `undecided` says what a check counts as that could not
    decide.
    """
    columns = ["question", "text", "model", "instruction", "accepted", "failed", "reason"]
    rows = []
    for item, candidate in [(one, c) for one in reviewed for c in one.candidates]:
        failed = [verdict for verdict in candidate.verdicts if not accepted([verdict], undecided)]
        origin = [candidate.provenance.get(name, "") for name in ("model", "instruction")]
        names, reason = ", ".join(verdict.check for verdict in failed), failed[0].reason if failed else ""
        row = dict(zip(columns, (item.group.id, candidate.text, *origin, not failed, names, reason), strict=True))
        for verdict in candidate.verdicts:
            row |= {verdict.check: verdict.passed, f"{verdict.check}/value": verdict.value}
        rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before texts that a spreadsheet would take for formulas.

    >>> for_spreadsheets(pd.DataFrame({"text": ["=1+1", "What is 1 + 1?"]}))["text"].tolist()
    ["'=1+1", 'What is 1 + 1?']
    """
    return frame.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell)


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


def by_instruction(reviewed: Sequence[Reviewed], undecided: bool = True) -> pd.DataFrame:
    """Candidates per instruction or rule: columns `proposed`, `accepted`, `percent`."""
    grouped = audit_frame(reviewed, undecided).groupby("instruction", sort=True)["accepted"]
    table = pd.DataFrame({"proposed": grouped.size(), "accepted": grouped.sum().astype(int)})
    return table.assign(percent=100 * table["accepted"] / table["proposed"])


def coverage(reviewed: Iterable[Reviewed], undecided: bool = True) -> dict[int, int]:
    """Number of accepted rephrasings → questions that have so many."""
    return dict(sorted(Counter(len(item.kept(undecided)) for item in reviewed).items()))


def sample_groups(reviewed: Sequence[Reviewed], size: int, seed: int) -> list[Reviewed]:
    """A random sample of the questions that have candidates, in the file's order; the same seed draws the same.

    Every such question has the same chance, so that shares found by reading the sample hold for the file.
    """
    eligible = [index for index, item in enumerate(reviewed) if item.candidates]
    chosen = random.Random(seed).sample(eligible, min(size, len(eligible)))
    return [reviewed[index] for index in sorted(chosen)]
