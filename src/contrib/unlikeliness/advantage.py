"""Smaller rewards for correct responses that the policy finds likely, so that rare solutions gain."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.pools import POOLS, Pool, pool_index, uniform_pools
from ...types import RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False)
class UnlikelinessAdvantage(BasedAdvantage):
    """Advantages of a base strategy for the rewards R (1 − β · rank(log π) / G) (arXiv 2506.02355).

    The rank of a response, 0 … G − 1, is the number of less likely responses in its pool of size G: the most
    likely response loses most. Pools of equal rewards keep their rewards, as in the paper. R must be at least
    0.

    Departure: responses whose log-probs differ by at most `tolerance` share the mean of their ranks. In the
    authors' code, the ranks of equal responses depend on sorting and rounding.

    Args:
        base: Strategy for the resulting rewards; `GroupAdvantage` in the paper.
        beta: β, 0..1; the paper's is 0.25.
        ranked_by: `sequence`, log π(o | q), in the paper; `token`, its mean per token, in the authors' code.
        group_by: The pool: `question` | `prompt` | `batch`.
        tolerance: Largest difference between the log-probs of two responses that count as equally likely, in
            nats of a whole response. With `ranked_by="token"`, the difference between the means is multiplied
            by the longer response's length.
    """

    needs_logprobs = True
    beta: float = 0.25
    ranked_by: Literal["sequence", "token"] = "sequence"
    group_by: Pool = "question"
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("ranked_by", self.ranked_by, ("sequence", "token"))
        check_choice("group_by", self.group_by, POOLS)
        if not 0 <= self.beta <= 1:
            raise ValueError(f"Expected advantage.beta to lie between 0 and 1, but got {self.beta}.")
        if not self.reads_rewards:
            raise ValueError(
                "Expected advantage.base to learn from the rewards that result, but "
                f"{type(self.base).__name__} reads verdicts alone. Use a base that reads rewards, as "
                "GroupAdvantage."
            )

    def shaped(self, groups: RewardGroups) -> RewardGroups:
        """Return the groups with the rewards R (1 − β · rank / G)."""
        if groups.logprob is None or groups.lengths is None:
            raise ValueError(
                "Expected the policy's log-prob of every response in RewardGroups.logprob, and lengths, but "
                "got None. Score all responses before the advantages."
            )
        if (groups.rewards < 0).any():
            raise ValueError(
                "Expected rewards of at least 0, of which a likely response loses a part, but got "
                f"{float(groups.rewards.min()):g}. Choose other reward_terms."
            )
        by_token = self.ranked_by == "token"
        logprobs = groups.logprob / groups.lengths if by_token else groups.logprob
        index, num_pools = pool_index(groups, self.group_by)
        uniform = uniform_pools(groups.rewards, index, num_pools)
        rewards = groups.rewards.clone()
        for pool in (~uniform).nonzero()[:, 0]:
            rows = (index == pool).nonzero()[:, 0]
            above = logprobs[rows, None] - logprobs[rows]
            if by_token:  # in nats of a response, so that rounding is told from a difference
                above = above * torch.maximum(groups.lengths[rows, None], groups.lengths[rows])
            less_likely = (above > self.tolerance).sum(1)
            rank = less_likely + ((above.abs() <= self.tolerance).sum(1) - 1) / 2
            rewards[rows] *= (1 - self.beta * rank / len(rows)).to(rewards.dtype)
        return replace(groups, rewards=rewards)
