"""What is claimed, as differences between arms that are written down before the runs.

Every quantity has one number per seed: pass@k is a mean over the test questions, which are the same for all seeds. A
rise is by how much a difference of two arms is larger in `gap4` than in `gap0`, by a line through a task's five
branches, fitted for each seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from .design import ARMS, GAPS, KINDS, UNTRAINED
from .verdicts import Hypothesis, Tables

POINTS = 0.02
"""Two points of pass@k: the smallest difference that counts."""
RISE = 0.03
"""Three points from the smallest gap to the largest."""

Differences = Mapping[str, pd.DataFrame]
"""`<task>/<branch>`, or `<task>/rise` → [seeds, 1] of ours − theirs."""
Pair = Callable[[pd.DataFrame], Differences]
"""From the table of `results`."""


@dataclass(frozen=True, kw_only=True)
class Claim(Hypothesis):
    """A sentence that the runs can decide."""

    statement: str
    source: str
    pairs: Mapping[str, Pair]

    def tables(self, runs: pd.DataFrame) -> Tables:
        """Label → setting → [seeds, 1]."""
        return {label: pair(runs) for label, pair in self.pairs.items()}


def chosen(
    runs: pd.DataFrame, arm: str, wording: str, kind: str = "wording", path: str = "sampled", point: str = "end"
) -> pd.DataFrame:
    """The rows of an arm, one for each task, branch and seed."""
    point = "start" if arm == UNTRAINED else point
    kind = kind if arm == UNTRAINED or ARMS[arm].reformulations else KINDS[0]  # the others run once for all kinds
    same = {"arm": arm, "kind": kind, "wording": wording, "path": path, "point": point}
    rows = runs[np.logical_and.reduce([runs[name] == value for name, value in same.items()])]
    return rows.set_index(["task", "branch", "seed"])


def between(
    ours: str, theirs: str, k: int, wording: str = "original", kind: str = "wording", point: str = "end"
) -> Pair:
    """Pass@k of ours − theirs, in every branch.

    `<arm>@expected` is the path of an arm without sampling noise, and `<arm>+<arm>` a sum.
    """

    def difference(runs: pd.DataFrame) -> Differences:
        found = _difference(runs, ours, theirs, k, wording, kind, point)
        branches = GAPS if kind == "wording" else ("kinds",)
        settings = {
            f"{task}/{branch}": of.droplevel(["task", "branch"]).to_frame()
            for (task, branch), of in found.groupby(["task", "branch"])
            if branch in branches
        }
        return {name: table for name, table in settings.items() if len(table) > 1}

    return difference


def rise(ours: str, theirs: str, k: int, wording: str = "original", point: str = "end") -> Pair:
    """How much pass@k of ours − theirs rises over the gaps, which grow in equal steps."""
    steps = np.arange(len(GAPS)) / (len(GAPS) - 1)

    def rises(runs: pd.DataFrame) -> Differences:
        found = _difference(runs, ours, theirs, k, wording, "wording", point)
        of_gaps = found.unstack("branch").reindex(columns=GAPS).dropna()
        lines = pd.Series(np.polyfit(steps, of_gaps.to_numpy().T, 1)[0] if len(of_gaps) else [], of_gaps.index, float)
        return {f"{task}/rise": of_task.droplevel("task").to_frame() for task, of_task in lines.groupby("task")}

    return rises


def _difference(runs: pd.DataFrame, ours: str, theirs: str, k: int, wording: str, kind: str, point: str) -> pd.Series:
    values = []
    for side in (ours, theirs):
        parts = (name.partition("@") for name in side.split("+"))
        of_arms = [chosen(runs, arm, wording, kind, path or "sampled", point)[f"pass@{k}"] for arm, _, path in parts]
        values.append(sum(of_arms[1:], of_arms[0]))
    return (values[0] - values[1]).dropna()


def of(pair: Callable[..., Pair], ours: str, theirs: str, k: int, *rest: str) -> Mapping[str, Pair]:
    """One difference with its label."""
    where = ", ".join([f"pass@{k}", *rest])
    return {f"{pair.__name__} of {ours} − {theirs} ({where})": pair(ours, theirs, k, *rest)}


def at(gap: str, pairs: Mapping[str, Pair]) -> Mapping[str, Pair]:
    """Differences at one gap alone."""

    def only(pair: Pair, runs: pd.DataFrame) -> Differences:
        return {setting: values for setting, values in pair(runs).items() if setting.endswith(f"/{gap}")}

    return {f"{label} at {gap}": partial(only, pair) for label, pair in pairs.items()}


LAW = "the law"
CLAIMS: Sequence[Claim] = (
    Claim(
        statement="What TA-GRPO gains over GRPO with as many samples rises with the gap.",
        source=LAW, smallest=RISE, pairs=of(rise, "ta_grpo", "grpo_matched", 32),
    ),
    Claim(
        statement="Where reformulations are no easier than the question, TA-GRPO loses to it.",
        source=LAW, smallest=POINTS, sign=-1, pairs=at(GAPS[0], of(between, "ta_grpo", "grpo_matched", 32)),
    ),
    Claim(
        statement="Where they are easiest, TA-GRPO gains over it.",
        source=LAW, smallest=POINTS, pairs=at(GAPS[-1], of(between, "ta_grpo", "grpo_matched", 32)),
    ),
    Claim(
        statement="What pooling and anchoring gain together beyond their sum rises with the gap.",
        source=LAW, smallest=RISE, pairs=of(rise, "ta_grpo+exposure", "pooled+anchored", 32),
    ),
    Claim(
        statement="What TA-GRPO gains on a wording that nobody trained rises with the gap too.",
        source=LAW, smallest=RISE, pairs=of(rise, "ta_grpo", "grpo_matched", 32, "unseen"),
    ),
    Claim(
        statement="TA-GRPO raises pass@32 over GRPO.",
        source="TA-GRPO, Table 1", smallest=POINTS, pairs=of(between, "ta_grpo", "grpo", 32),
    ),
    Claim(
        statement="TA-GRPO raises pass@32 over GRPO with as many samples.",
        source="TA-GRPO, section 5.4", smallest=POINTS, pairs=of(between, "ta_grpo", "grpo_matched", 32),
    ),
    Claim(
        statement="TA-GRPO raises pass@32 over not training.",
        source="TA-GRPO, Table 1", smallest=POINTS, pairs=of(between, "ta_grpo", UNTRAINED, 32),
    ),
    Claim(
        statement="TA-GRPO raises pass@32 over seeing the reformulations alone.",
        source="TA-GRPO, Appendix C", smallest=POINTS, pairs=of(between, "ta_grpo", "exposure", 32),
    ),
    Claim(
        statement="Pass@k training raises pass@32 over GRPO with as many samples.",
        source="Pass@k training", smallest=POINTS, pairs=of(between, "pass_at_k", "grpo_matched", 32),
    ),
    Claim(
        statement="Pass@k training raises pass@32 over not training.",
        source="Pass@k training", smallest=POINTS, pairs=of(between, "pass_at_k", UNTRAINED, 32),
    ),
    Claim(
        statement="Without sampling noise GRPO ends higher in pass@1.",
        source="docs/tasks.md", smallest=POINTS, pairs=of(between, "grpo@expected", "grpo", 1),
    ),
    Claim(
        statement="Training on easier formats beside the original raises pass@1 of the original.",
        source="Cog-DRIFT", smallest=POINTS, pairs=of(between, "exposure", "grpo_matched", 1, "original", "format"),
    ),
    Claim(
        statement="Training with hints beside the original raises pass@32 of the original.",
        source="QuestA", smallest=POINTS, pairs=of(between, "exposure", "grpo_matched", 32, "original", "hint"),
    ),
    Claim(
        statement="Training on harder texts beside the original raises pass@1 of the original.",
        source="MathForge", smallest=POINTS, pairs=of(between, "exposure", "grpo_matched", 1, "original", "harder"),
    ),
)  # fmt: skip
