"""Smaller advantages for questions whose final answers disagree (SEED-GRPO, arXiv 2505.12346).

The paper has three functions f in Eq. 6, called linear, exponential and focal, but gives no formulas for
them. Here, linear is 1 − x and exponential is e^−x; focal is left out. Clusters are weighted by their number
of responses (discrete semantic entropy), whereas Eq. 5 weights them by likelihood.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ...metrics.functional import answer_entropy
from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.pools import pool_index, pool_size, pool_sum
from ...types import RewardGroups
from ...types.checks import check_choice

Damping = Literal["linear", "exponential", "reciprocal"]
DAMPINGS: dict[Damping, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: 1 - x,
    "exponential": lambda x: torch.exp(-x),
    "reciprocal": lambda x: 1 / (1 + x),
}
"""f(x), the factor of an advantage, given x = α · SE / SE_max ≥ 0; f(0) = 1."""


def semantic_entropy(groups: RewardGroups, group_by: Literal["question", "prompt"]) -> Tensor:
    """Return the entropy −Σ_c (n_c / n) ln(n_c / n) of each pool's final answers, [num_pools] float64, nats.

    The n_c responses with equal answers form a cluster c. Each response without an answer is a cluster of its
    own, because no other response agrees with it. The entropy is 0 if all answers are equal, and ln n if all
    differ.

    Raises:
        ValueError: if the groups have no answers.

    >>> same = torch.zeros(4, dtype=torch.long)
    >>> groups = RewardGroups(
    ...     rewards=same.float(), correct=same > 0, question=same, prompt=same, answers=["7", "7", None, None]
    ... )
    >>> semantic_entropy(groups, "question")  # ½ ln 2 + 2 · ¼ ln 4 = 1.5 ln 2
    tensor([1.0397], dtype=torch.float64)
    """
    if groups.answers is None or len(groups.answers) != len(groups.rewards):
        given = "none" if groups.answers is None else f"those of {len(groups.answers)}"
        raise ValueError(
            "Expected RewardGroups.answers to be the final answers of all "
            f"{len(groups.rewards)} responses, but got {given}. In a script, pass Rollouts.answers."
        )
    index, num_pools = pool_index(groups, group_by)
    missing = torch.tensor([answer is None for answer in groups.answers], dtype=torch.bool)
    count = pool_sum(missing, index, num_pools)
    # `answer_entropy` has one cluster for all u responses without an answer. Splitting a cluster of probability
    # u / n into u equal parts adds (u / n) ln u.
    split: Tensor = torch.special.xlogy(count, count) / pool_size(index, num_pools)
    return answer_entropy(groups.answers, index) + split


@dataclass(eq=False)
class SemanticEntropyAdvantage(BasedAdvantage):
    """Advantages of a base strategy, damped if the answers disagree (arXiv 2505.12346, Eq. 6).

    A' = A · f(α · SE / SE_max), where SE is the entropy of the pool's final answers (`semantic_entropy`), and
    SE_max = ln n is its largest value for n responses. The factor f does not depend on verdicts, and is the
    same for all responses of a pool. The signs of advantages never change.

    An advantage is zero if the base strategy's is zero. A pool whose answers are all equal, or that has a
    single response, has SE = 0 and is not damped.

    Args:
        base: Strategy whose advantages are damped.
        alpha: α ≥ 0, the strength of the damping; 0 gives the advantages of the base. At most 1 for `linear`,
            because f is then 0 at x = 1.
        damping: The function f: `linear`, 1 − x; `exponential`, e^−x; `reciprocal`, 1 / (1 + x).
        group_by: The pool whose answers are clustered: all responses to a `question` and its rephrasings, or to
            one `prompt`.

    Raises:
        TypeError: if `base` is not a strategy.
        ValueError: if an option is out of its range, or the groups have no answers.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> same, correct = torch.zeros(4, dtype=torch.long), torch.tensor([True, True, False, False])
    >>> groups = RewardGroups(
    ...     rewards=correct.float(), correct=correct, question=same, prompt=same, answers=["7", "7", "3", "3"]
    ... )
    >>> strategy = SemanticEntropyAdvantage(GroupAdvantage(scale="none"), alpha=0.5)
    >>> strategy(groups)  # SE / SE_max = ln 2 / ln 4 = ½: ±½ times 1 − ¼
    tensor([ 0.3750,  0.3750, -0.3750, -0.3750])
    """

    alpha: float = 0.02
    damping: Damping = "linear"
    group_by: Literal["question", "prompt"] = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("damping", self.damping, get_args(Damping))
        check_choice("group_by", self.group_by, ("question", "prompt"))
        most = 1 if self.damping == "linear" else torch.inf
        if not 0 <= self.alpha <= most or self.alpha == torch.inf:
            raise ValueError(
                "Expected advantage.alpha to be at least 0, and at most 1 with advantage.damping=linear, but got "
                f"{self.alpha} with {self.damping}."
            )

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """Return the damped advantages, [R]."""
        index, num_pools = pool_index(groups, self.group_by)
        largest = pool_size(index, num_pools).clamp(min=2).log()
        # Rounded, so that full disagreement is exactly 1 and a full damping exactly 0.
        uncertainty = (semantic_entropy(groups, self.group_by) / largest).round(decimals=12)
        return advantages * DAMPINGS[self.damping](self.alpha * uncertainty)[index]
