"""Unbiased gradients of pass@k from n ≥ k responses, for binary rewards (PKPO).

The paper's max@k is not implemented.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ...modules.advantages.pass_at_k import all_wrong
from ...modules.advantages.pools import POOLS, Pool, as_rewards, pool_index, pool_size, pool_sum
from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False)
class PKPOAdvantage(AdvantageStrategy):
    """Marginal worth of a response for pass@k: the mean over its groups of k responses (arXiv 2505.15201).

    f_i is the verdict on response i of n, c_i the number of correct responses among the n − 1 others, and
    ρ(n, c, k) the unbiased pass@k (Eq. 3). The paper's values are multiplied by n, because the paper sums
    over responses, and a loss here is a mean over responses:

    | baseline | advantage | source |
    |---|---|---|
    | none | k if f_i = 1, else k · ρ(n−1, c_i, k−1) | Eq. 8 |
    | leave_one_out | the value of `none` − k n/(n−1) · ρ(n−1, c_i, k) | Eq. 29 |
    | fewer | k · (1 − ρ(n−1, c_i, k−1)) if f_i = 1, else 0 | Eq. 33, what the paper calls PKPO |

    `fewer` compares a group with and without the response. All three have the same expected gradient: the
    gradient of the probability that k of the pool's responses, drawn without replacement, include a correct
    response. If all responses have the success rate p, this probability is pass@k (Theorem 2), and the
    gradient is k (1 − p)^(k−1) · ∇p. If rephrasings have different success rates, the probability is the mean
    of 1 − ∏(1 − p_j) over the groups of k responses. `PassAtKAdvantage` divides by the standard deviation of
    pass@k and is biased. `correct` decides which responses are correct, not the rewards.

    Advantages are 0 in pools of fewer than k responses, and in pools of exactly k responses with
    `leave_one_out`: they have no unbiased estimate (Corollary 2). With `fewer`, advantages are also 0 in
    pools without a correct response and in pools with fewer than k − 1 wrong responses.

    Args:
        k: Responses per group, at least 1; k = 1 gives the verdict itself (minus the baseline).
        baseline: `none` | `leave_one_out` | `fewer`.
        group_by: The pool: `question` | `prompt` | `batch`.
    """

    reads_rewards = False
    k: int
    baseline: Literal["none", "leave_one_out", "fewer"] = "fewer"
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"Expected advantage.k to be at least 1, but got {self.k}.")
        check_choice("baseline", self.baseline, ("none", "leave_one_out", "fewer"))
        check_choice("group_by", self.group_by, POOLS)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.group_by)
        n = pool_size(index, num_pools)[index]
        enough = n >= self.k + (self.baseline == "leave_one_out")
        # small pools are computed as if of size k + 1, then masked
        others = (n - 1).where(enough, float(self.k))
        right = (pool_sum(groups.correct, index, num_pools)[index] - groups.correct.double()).where(
            enough, 0.0
        )
        needed = all_wrong(others, right, self.k - 1)
        worth = needed * groups.correct if self.baseline == "fewer" else 1 - needed * ~groups.correct
        if self.baseline == "leave_one_out":
            worth = worth - (others + 1) / others * (1 - all_wrong(others, right, self.k))
        return as_rewards((self.k * worth).where(enough, 0.0), groups)
