"""Audit of rephrasings: repeated checks, counts of verdicts, and a random sample for a human to read."""

import random
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from ..datamodules.sources.table import TableSource
from ..foreign import printable
from .candidates import Checks, Reviewed, accepted, review


def read_reviewed(path: str | Path) -> list[Reviewed]:
    """Read the questions in a file of `tagrpo-rephrase`, or in any file that `TableSource` reads."""
    return [Reviewed.from_group(group) for group in TableSource(path).load()]


def recheck(reviewed: Iterable[Reviewed], checks: Checks) -> None:
    """Replace the verdicts of `checks`; keep the verdicts of other checks (`judge`)."""
    for item in reviewed:
        before: list[str] = []
        for candidate in item.candidates:
            verdicts = review(item.pair(candidate, before), checks, candidate.unchecked)
            others = [verdict for verdict in candidate.verdicts if verdict.check not in {"readable", *checks}]
            candidate.verdicts = verdicts + others
            if accepted(verdicts):
                before.append(candidate.text)


def by_check(reviewed: Iterable[Reviewed]) -> pd.DataFrame:
    """Count verdicts per check.

    Returns a table with the columns `passed`, `failed`, `undecided`, and `alone` (refused by this check and
    no other).
    """
    rows = []
    for verdicts in (candidate.verdicts for item in reviewed for candidate in item.candidates):
        alone = sum(verdict.passed is False for verdict in verdicts) == 1
        for v in verdicts:
            failed = v.passed is False
            rows.append((v.check, v.passed is True, failed, v.passed is None, failed and alone))
    frame = pd.DataFrame(rows, columns=["check", "passed", "failed", "undecided", "alone"])
    return frame.groupby("check", sort=False).sum().rename_axis(None)


def coverage(reviewed: Iterable[Reviewed]) -> dict[int, int]:
    """Count questions by their number of accepted rephrasings."""
    return dict(sorted(Counter(len(item.kept()) for item in reviewed).items()))


def sample_groups(reviewed: Sequence[Reviewed], size: int, seed: int) -> list[Reviewed]:
    """Draw a random sample of at most `size` questions that have candidates, in the file's order.

    The same `seed` gives the same sample. Each of these questions has equal probability, so that shares found
    by reading the sample estimate the shares in the file.
    """
    eligible = [index for index, item in enumerate(reviewed) if item.candidates]
    chosen = random.Random(seed).sample(eligible, min(size, len(eligible)))
    return [reviewed[index] for index in sorted(chosen)]


def listing(sample: Iterable[Reviewed]) -> str:
    """Format questions with their answers, candidates and verdicts as Markdown.

    Texts are escaped, so that nothing that a model wrote becomes markup.
    """
    parts = ["# Is each rephrasing the same problem as its question?"]
    for item in sample:
        parts += [
            f"## Question {printable(item.group.id)}",
            _quoted(item.group.question),
            _quoted(" or ".join(item.group.answer)),
        ]
        for candidate in item.candidates:
            state = "accepted" if accepted(candidate.verdicts) else "refused"
            found = [f"{v.check}: {v.reason}" for v in candidate.verdicts if not v.passed]
            parts += [f"### {state.capitalize()}", _quoted(candidate.text), *map(_quoted, found)]
    return "\n\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    """Indent a text, and escape characters that readers can't see."""
    shown = "\n".join(printable(line) for line in text.split("\n"))
    return textwrap.indent(shown, "    ", lambda _: True)
