"""Controls: rewards by lot, and rephrasings of which a known share asks something else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hydra.utils import get_class
from torch import Tensor

from tagrpo.datamodules.sources.base import Source
from tagrpo.rewards.terms import uniform_draws
from tagrpo.seeds import derive_seed
from tagrpo.types import QuestionGroup, Rollouts


class RandomReward:
    """A reward term that makes every reward 0 or 1 by lot, whatever the verdict.

    What training gains from it comes from elsewhere than the rewards (arXiv 2506.10947). The draw depends on the seed,
    the questions and the response tokens alone.

    Args:
        seed: Of the draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:
        """[R] float32: what turns the verdict into the reward that was drawn."""
        drawn = uniform_draws(rollouts, groups, self.seed) < 0.5
        return drawn.float() - rollouts.correct.float()


class WrongRephrasings(Source):
    """The questions of a source; some rephrasings are those of another question, under the answer of their own.

    Every rephrasing is exchanged with the same probability, for one with the same number of another question.

    Args:
        of: Path of the source's class.
        wrong: Probability of each rephrasing to be wrong.
        options: Of the source; `seed` is that of the draws too.
    """

    def __init__(self, of: str, wrong: float, **options: Any) -> None:
        self.source: Source = get_class(of)(**options)
        self.wrong = wrong
        self.seed = int(options["seed"])

    def load(self) -> list[QuestionGroup]:
        """The same at every call."""
        groups = self.source.load()
        rng = random.Random(derive_seed(self.seed, "wrong_rephrasings"))
        return [group._replace(rephrasings=self._some_exchanged(group, groups, rng)) for group in groups]

    def _some_exchanged(self, group: QuestionGroup, groups: list[QuestionGroup], rng: random.Random) -> tuple[str, ...]:
        others = [other for other in rng.sample(groups, min(len(groups), 8)) if other.answer != group.answer]
        return tuple(
            others[0].rephrasings[place] if others and rng.random() < self.wrong else own
            for place, own in enumerate(group.rephrasings)
        )
