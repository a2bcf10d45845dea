"""What is claimed, as differences between arms that are written down before the runs.

Every quantity has one number per seed: pass@k is a mean over test questions, which each seed has its own of. A rise is
by how much a difference of two arms is larger at the last of some gaps than at the first, by a line through a task's
branches, fitted for each seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd

from .design import ARMS, GAPS, KINDS, RECIPES, SEEDS, STARTERS, UNTRAINED, Run, kinds_of, runs_of
from .verdicts import Finding, Hypothesis, Tables, Word, conjunction, findings_of

WORDINGS = ("original", "unseen", "reformulated")
POINTS_OF_RUNS = ("best1", "best32", "end")
POINTS = 0.02
"""Two points of pass@k: the smallest difference that counts."""
RISE = 0.03
"""Three points from the least gap to the largest."""

Differences = Mapping[str, pd.DataFrame]
"""`<task>/<branch>`, or `<task>/rise` → [seeds, 1] of ours − theirs."""
Pair = Callable[[pd.DataFrame], Differences]
"""From the table of `results`."""


@dataclass(frozen=True, kw_only=True)
class Claim(Hypothesis):
    """A sentence that the runs can decide."""

    statement: str
    source: str = "the law"
    pairs: Mapping[str, Pair]

    def tables(self, runs: pd.DataFrame) -> Tables:
        """Label → setting → [seeds, 1]."""
        return {label: pair(runs) for label, pair in self.pairs.items()}


def chosen(
    runs: pd.DataFrame,
    arm: str,
    wording: str,
    kind: str = "wording",
    path: str = "sampled",
    point: str = "end",
) -> pd.DataFrame:
    """The rows of an arm, one for each task, branch and seed."""
    point = "start" if arm == UNTRAINED else point
    kind = (
        kind if arm == UNTRAINED or ARMS[arm].reformulations else KINDS[0]
    )  # the others run once for all kinds
    same = {"arm": arm, "kind": kind, "wording": wording, "path": path, "point": point}
    rows = runs[np.logical_and.reduce([runs[name] == value for name, value in same.items()])]
    return rows.set_index(["task", "branch", "seed"])


def between(
    ours: str,
    theirs: str,
    k: int,
    *,
    branches: Sequence[str] = GAPS,
    wording: str = "original",
    kind: str = "wording",
    point: str = "end",
) -> Pair:
    """Pass@k of ours − theirs in some branches; `<arm>@expected` is the path of an arm without sampling noise."""

    def difference(runs: pd.DataFrame) -> Differences:
        found = _difference(runs, ours, theirs, k, wording, kind, point)
        return _several({
            f"{task}/{branch}": of.droplevel(["task", "branch"]).to_frame()
            for (task, branch), of in found.groupby(["task", "branch"])
            if branch in branches
        })  # fmt: skip

    return difference


def rise(
    ours: str,
    theirs: str,
    k: int,
    *,
    gaps: Sequence[str] = GAPS,
    wording: str = "original",
    point: str = "end",
) -> Pair:
    """How much pass@k of ours − theirs rises over some gaps, which grow in equal steps."""
    steps = np.linspace(0, 1, len(gaps))

    def rises(runs: pd.DataFrame) -> Differences:
        found = _difference(runs, ours, theirs, k, wording, "wording", point)
        of_gaps = found.unstack("branch").reindex(columns=list(gaps)).dropna()
        lines = pd.Series(
            np.polyfit(steps, of_gaps.to_numpy().T, 1)[0] if len(of_gaps) else [], of_gaps.index, float
        )
        return _several(
            {f"{task}/rise": of.droplevel("task").to_frame() for task, of in lines.groupby("task")}
        )

    return rises


def _difference(
    runs: pd.DataFrame, ours: str, theirs: str, k: int, wording: str, kind: str, point: str
) -> pd.Series:
    sides = []
    for arm, _, path in (name.partition("@") for name in (ours, theirs)):
        sides.append(chosen(runs, arm, wording, kind, path or "sampled", point)[f"pass@{k}"])
    return (sides[0] - sides[1]).dropna()


def _several(settings: Differences) -> Differences:
    """Those of more than one seed."""
    return {name: table for name, table in settings.items() if len(table) > 1}


def of(pair: Callable[..., Pair], ours: str, theirs: str, k: int, **rest: Any) -> Mapping[str, Pair]:
    """One difference with its label."""
    told = [
        value if isinstance(value, str) else "–".join({value[0]: 0, value[-1]: 0}) for value in rest.values()
    ]
    return {
        f"{pair.__name__}: {ours} − {theirs} ({', '.join([f'pass@{k}', *told])})": pair(
            ours, theirs, k, **rest
        )
    }


MOST: Mapping[str, Any] = {"branches": GAPS[-1:]}
"""Where reformulations are easiest."""
OURS, THEIRS = "ta_grpo", "grpo_matched"
LAW = (
    Claim(
        statement="What TA-GRPO gains over GRPO with as many samples rises with the gap.",
        law=True, smallest=RISE, pairs=of(rise, OURS, THEIRS, 32),
    ),
    Claim(
        statement="Where reformulations are no easier than the question, TA-GRPO loses to it.",
        law=True, smallest=POINTS, sign=-1, pairs=of(between, OURS, THEIRS, 32, branches=GAPS[:1]),
    ),
    Claim(
        statement="Where they are easiest, TA-GRPO gains over pooling alone, and over anchoring alone.",
        law=True, smallest=POINTS,
        pairs={**of(between, OURS, "pooled", 32, **MOST), **of(between, OURS, "anchored", 32, **MOST)},
    ),
)  # fmt: skip
CLAIMS: Sequence[Claim] = (
    *LAW,
    Claim(
        statement="It rises too without the least gap.",
        source="beside the law", smallest=RISE, pairs=of(rise, OURS, THEIRS, 32, gaps=GAPS[1:]),
    ),
    Claim(
        statement="It rises too where each run is stopped at its best pass@32 in validation.",
        source="beside the law", smallest=RISE, pairs=of(rise, OURS, THEIRS, 32, point="best32"),
    ),
    Claim(
        statement="It rises too on a wording that nobody trained.",
        source="beside the law", smallest=RISE, pairs=of(rise, OURS, THEIRS, 32, wording="unseen"),
    ),
    Claim(
        statement="Where reformulations are easiest, TA-GRPO gains over GRPO with as many samples, over Pass@k "
        "training, and over the untrained policy.",
        source="beside the law", smallest=POINTS,
        pairs={label: pair for rival in (THEIRS, "pass_at_k", UNTRAINED)
               for label, pair in of(between, OURS, rival, 32, **MOST).items()},
    ),
    Claim(
        statement="There it raises pass@32 over GRPO.",
        source="TA-GRPO, Table 1", smallest=POINTS, pairs=of(between, OURS, "grpo", 32, **MOST),
    ),
    Claim(
        statement="There it raises pass@32 over seeing the reformulations alone.",
        source="TA-GRPO, Appendix C", smallest=POINTS, pairs=of(between, OURS, "exposure", 32, **MOST),
    ),
    Claim(
        statement="Pass@k training raises pass@32 over GRPO with as many samples.",
        source="Pass@k training", smallest=POINTS, pairs=of(between, "pass_at_k", THEIRS, 32),
    ),
    Claim(
        statement="Without sampling noise GRPO ends higher in pass@1.",
        source="docs/tasks.md", smallest=POINTS, pairs=of(between, "grpo@expected", "grpo", 1),
    ),
    Claim(
        statement="Training on easier formats beside the original raises pass@1 of the original.",
        source="Cog-DRIFT", smallest=POINTS,
        pairs=of(between, "exposure", THEIRS, 1, branches=("kinds",), kind="format"),
    ),
    Claim(
        statement="Training with hints beside the original raises pass@32 of the original.",
        source="QuestA", smallest=POINTS,
        pairs=of(between, "exposure", THEIRS, 32, branches=("kinds",), kind="hint"),
    ),
    Claim(
        statement="Training on harder texts beside the original raises pass@1 of the original.",
        source="MathForge", smallest=POINTS,
        pairs=of(between, "exposure", THEIRS, 1, branches=("kinds",), kind="harder"),
    ),
)  # fmt: skip


def mistakes(runs: pd.DataFrame) -> list[str]:
    """What a table has other than the plan: each run once, at its points and on all wordings."""
    planned = Counter[tuple[Any, ...]]()
    for run in chain.from_iterable(runs_of(*cell) for cell in product(RECIPES, STARTERS, SEEDS)):
        points, kinds = (
            (["start"], kinds_of(run.branch)) if run.arm == UNTRAINED else (POINTS_OF_RUNS, [run.kind])
        )
        planned.update(
            (replace(run, kind=kind).file, *rest) for kind, *rest in product(kinds, points, WORDINGS)
        )
    told = runs[[field.name for field in fields(Run)]].to_dict("records")
    files = [Run(**{str(name): value for name, value in row.items()}).file for row in told]
    there = Counter[tuple[Any, ...]](zip(files, runs["point"], runs["wording"], strict=True))
    numbers = runs.filter(like="pass@").to_numpy()
    return [
        *(f"{count} of {', '.join(key)} too few" for key, count in (planned - there).items()),
        *(f"{count} of {', '.join(key)} too many" for key, count in (there - planned).items()),
        *(f"no pass@k in {file}" for file, row in zip(files, numbers, strict=True) if not (row >= 0).all()),
    ]


def judged(runs: pd.DataFrame) -> tuple[Word, list[list[Finding]]]:
    """The word on the law, and the findings on each of `CLAIMS`.

    Raises:
        ValueError: if the table is not that of the plan, since levels and pairs are right for it alone.
    """
    if wrong := mistakes(runs):
        raise ValueError(f"Expected the rows of the plan but found {len(wrong)} mistakes: {wrong[0]}.")
    found = findings_of([(claim, claim.tables(runs)) for claim in CLAIMS])
    return conjunction([each.word for findings in found[: len(LAW)] for each in findings]), found
