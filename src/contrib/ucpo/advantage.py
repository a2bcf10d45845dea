"""Positive advantage moved from likely to unlikely correct responses (UCPO)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.pools import POOLS, Pool, pool_index
from ...types import RewardGroups
from ...types.checks import check_choice

LEAST = 1e-6
"""Smallest q that is inverted; smaller values of q are replaced by this value."""


@dataclass(eq=False)
class UniformCorrectAdvantage(BasedAdvantage):
    """Advantages of a base strategy, with correct responses weighted by 1 − τ + τ (1/q) / mean(1/q).

    q is the softmax of the mean log-prob per token over the correct responses of the pool, so that the
    weights have the mean 1 and the pool keeps its positive advantage. The formula follows the authors' code
    (AnamikaLochab/UCPO, core_algos.py); the paper, arXiv 2605.00365, was not read. In the authors' code, all
    correct responses get the advantage of the first correct response; this differs only if rewards are
    shaped.

    A pool with fewer than two correct responses keeps its advantages.

    Args:
        base: Strategy whose advantages are changed; `GroupAdvantage` in the authors' code.
        tau: τ, 0..1: 0 changes nothing, 1 makes the weights proportional to 1/q. The authors use 0.2.
        group_by: The pool: `question` | `prompt` | `batch`.
    """

    needs_logprobs = True
    tau: float = 0.2
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("group_by", self.group_by, POOLS)
        if not 0 <= self.tau <= 1:
            raise ValueError(f"Expected advantage.tau to lie between 0 and 1, but got {self.tau}.")

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], with those of correct responses redistributed within each pool."""
        if groups.logprob is None or groups.lengths is None:
            raise ValueError(
                "Expected the policy's log-prob of every response in RewardGroups.logprob, and lengths, but "
                "got None. Score all responses before the advantages."
            )
        index, num_pools = pool_index(groups, self.group_by)
        by_token = groups.logprob.double() / groups.lengths
        weights = torch.ones_like(by_token)
        for pool in range(num_pools):
            rows = ((index == pool) & groups.correct).nonzero()[:, 0]
            inverse = 1 / by_token[rows].softmax(0).clamp(min=LEAST)
            weights[rows] = 1 - self.tau + self.tau * len(rows) * inverse / inverse.sum()
        return advantages * weights
