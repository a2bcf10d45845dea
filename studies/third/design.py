"""The grid of the third edition: settings, arms, and what a run is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from examples.starters import exposed
from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.modules.experience import Anchor
from tagrpo.types import AdvantageStrategy

GAPS = tuple(exposed.GAPS)
"""Policies of `examples.starters.exposed`, by how well they solve the reformulated wordings."""
KINDS = exposed.KINDS
"""Of reformulations, each in the branch `kinds` of the starters, which has seen all of them equally often."""
STARTERS = exposed.POLICIES
"""What the runs begin with: the `branch` of a run."""
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
TAUS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
UpdatePath = Literal["sampled", "expected"]
"""Updates from responses that were sampled, or their expectation."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A method, as the three choices make it."""

    reformulations: int = 0
    """N, prompts beside the original."""
    samples: int = 8
    """G, responses to each prompt."""
    pool: Literal["prompt", "question"] = "prompt"
    anchor: Anchor = "own"
    k: int | None = None
    """Of Pass@k training; None: rewards over the standard deviation of the pool."""

    def strategy(self) -> AdvantageStrategy:
        """How its rewards become advantages."""
        return GroupAdvantage(self.pool) if self.k is None else PassAtKAdvantage(self.k, group_by=self.pool)


SEEDS = range(10)
"""Of the study; a pilot takes others, from 100 on."""
KINDS_SEEDS = SEEDS[:5]
"""Of those, the ones in which all kinds of reformulations are asked."""
EXPECTED_SEEDS = {"own": SEEDS[:3], "original": SEEDS[:1]}
"""Anchor → the ones in which such arms also run without sampling noise; GRPO does in all."""
UNTRAINED = "untrained"
ARMS: Mapping[str, Arm] = {
    "grpo": Arm(),
    "grpo_matched": Arm(samples=32),
    "exposure": Arm(reformulations=3),
    "pooled": Arm(reformulations=3, pool="question"),
    "anchored": Arm(reformulations=3, anchor="original"),
    "ta_grpo": Arm(reformulations=3, pool="question", anchor="original"),
    "pass_at_k": Arm(samples=32, pool="question", k=8),
}
"""Name → arm; a test compares them with the experiments of the package. The eighth arm is not to train."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all arms of a task share."""

    iterations: int = 40
    batch_size: int = 8
    """Questions of a batch."""
    questions: int = 160
    """To train on: forty batches of eight are two epochs."""
    validate_every: int = 8
    validation_questions: int = 200
    test_questions: int = 400
    """Of each wording; of the trained reformulations a quarter, in three forms each."""


RECIPES: Mapping[str, Recipe] = {
    "arithmetic": Recipe(),
    "countdown": Recipe(),
    "shortest_path": Recipe(batch_size=16, questions=320),
}
ALIKE = ("exposure", "pooled", "anchored", "ta_grpo")
"""Arms that are compared part by part, and have the rate of TA-GRPO."""
ARM_RATES: Mapping[str, Mapping[str, float]] = {
    "arithmetic": {"grpo": 1e-4, "grpo_matched": 1e-4, **dict.fromkeys(ALIKE, 1e-4), "pass_at_k": 1e-4},
    "countdown": {"grpo": 1e-4, "grpo_matched": 1e-4, **dict.fromkeys(ALIKE, 1e-4), "pass_at_k": 3e-4},
    "shortest_path": {"grpo": 3e-5, "grpo_matched": 1e-4, **dict.fromkeys(ALIKE, 1e-4), "pass_at_k": 3e-4},
}
"""Task → arm → the rate of three (3e-5, 1e-4, 3e-4) that had the highest pass@k in validation at the end, averaged over
k = 1, 2, 4 … 32 and over the pilot's seeds in `gap0`, `gap2` and `gap4`; all `ALIKE` have that of TA-GRPO."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, or the untrained policy."""

    task: str
    branch: str
    seed: int
    arm: str
    kind: str = KINDS[0]
    path: UpdatePath = "sampled"
    rate: float

    @property
    def file(self) -> str:
        """Below the folder of the study."""
        name = "-".join([self.arm, self.kind, self.path, f"{self.rate:g}"])
        return f"{self.task}/{self.branch}/seed{self.seed}/{name}.json"


def kinds_of(branch: str) -> Sequence[str]:
    """The kinds of reformulations that are asked in a branch."""
    return KINDS if branch == "kinds" else KINDS[:1]


def runs_of(
    task: str, branch: str, seed: int, arms: Sequence[str] = tuple(ARMS), rate: float | None = None
) -> Iterator[Run]:
    """The runs of a cell, the untrained policy first; `rate` replaces the learning rates of the plan, sampled only."""
    if branch == "kinds" and seed in SEEDS and seed not in KINDS_SEEDS:
        return
    yield Run(task=task, branch=branch, seed=seed, arm=UNTRAINED, rate=0.0)
    for name in arms:
        arm, given = ARMS[name], rate or ARM_RATES[task][name]
        twin = rate is None and branch in GAPS[::2] and (name == "grpo" or seed in EXPECTED_SEEDS[arm.anchor])
        paths: Sequence[UpdatePath] = ("sampled", "expected") if twin else ("sampled",)
        for kind, path in product(kinds_of(branch) if arm.reformulations else KINDS[:1], paths):
            yield Run(task=task, branch=branch, seed=seed, arm=name, kind=kind, path=path, rate=given)
