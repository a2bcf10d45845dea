"""SEED-GRPO (Eq. 5) estimates SE = −(1/K) Σ_k ln p(C_k|q) over K clusters of answers, p(C_k|q) = Σ_{o in C_k} π(o|q).

Here clusters are weighed by their counts, which need no likelihoods (discrete semantic entropy). The paper names its
dampings f of Eq. 6 linear, exponential and focal, and writes none of them: 1 − x and e^−x are assumed, focal is left
out. A third party says that the authors' code has 1 / (1 + x) with α = 0.0417 and SE = −Σ p ln p over length-normalised
likelihoods; the code itself was not to be had. At the paper's α = 0.02 the three forms differ by less than 0.0004.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .based import BasedAdvantage
from .group import GroupAdvantage
from .pools import POOLS, Pool, answers_of, check_choice, pool_index, pool_size, pool_sum

DAMPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: 1 - x,
    "exponential": lambda x: torch.exp(-x),
}
"""f, which scales advantages by the normalised uncertainty x ≥ 0."""


def semantic_entropy(groups: RewardGroups, index: Tensor, num_pools: int) -> Tensor:
    """[num_pools] float64 entropy of the final answers of a pool, nats: −Σ_a (n_a / n) ln(n_a / n).

    Equal answers form a cluster. Each response without an answer is a cluster of its own: it agrees with nobody.

    >>> groups = RewardGroups(
    ...     rewards=torch.zeros(4), correct=torch.zeros(4) > 0, question=torch.zeros(4), prompt=torch.zeros(4),
    ...     answers=["7", "7", None, None])
    >>> semantic_entropy(groups, torch.tensor([0, 0, 0, 0]), 1)  # ½ ln 2 + 2 · ¼ ln 4 = 1.5 ln 2
    tensor([1.0397], dtype=torch.float64)
    """
    names: dict[tuple[int, object], int] = {}
    cluster = torch.tensor(
        [
            names.setdefault((pool, row if answer is None else answer), len(names))
            for row, (pool, answer) in enumerate(zip(index.tolist(), answers_of(groups), strict=True))
        ],
        dtype=torch.long,
    )
    # Σ over responses of −ln(share of its cluster) / n is the entropy.
    share = torch.bincount(cluster)[cluster] / pool_size(index, num_pools)[index]
    return pool_sum(-share.log(), index, num_pools) / pool_size(index, num_pools)


class SemanticEntropyAdvantage(BasedAdvantage):
    """Advantages of a base strategy, damped where the answers disagree (arXiv 2505.12346, SEED-GRPO).

    A' = A · f(α · SE / SE_max): SE is the entropy of the pool's final answers, SE_max = ln n its largest value.
    The paper averages over clusters and weighs them by likelihood; here every response counts 1/n.

    Zero where the base is. A pool of one response has SE = 0 and is not damped.

    Args:
        alpha: α ≥ 0, how strongly uncertainty damps; 0 is the base. At most 1 for `linear`, which reaches 0 there.
        damping: f: `linear`, 1 − x; `exponential`, e^−x.
        base: Strategy that is damped; None is the mean baseline without scale over `group_by`.
        group_by: The pool whose answers are clustered: `question` | `prompt` | `batch`.

    Raises:
        ValueError: an option is out of its range, or the groups carry no answers.

    >>> groups = RewardGroups(
    ...     rewards=torch.tensor([1.0, 1.0, 0.0, 0.0]), correct=torch.tensor([True, True, False, False]),
    ...     question=torch.zeros(4, dtype=torch.long), prompt=torch.zeros(4, dtype=torch.long),
    ...     answers=["7", "7", "3", "3"])
    >>> SemanticEntropyAdvantage(alpha=0.5)(groups)  # SE / SE_max = ln 2 / ln 4 = ½: ±½ times 1 − ¼
    tensor([ 0.3750,  0.3750, -0.3750, -0.3750])
    """

    def __init__(
        self,
        alpha: float,
        damping: Literal["linear", "exponential"] = "linear",
        base: AdvantageStrategy | None = None,
        group_by: Pool = "question",
    ) -> None:
        check_choice("damping", damping, tuple(DAMPINGS))
        check_choice("group_by", group_by, POOLS)
        if alpha < 0 or (damping == "linear" and alpha > 1):
            raise ValueError(
                "Expected advantage.alpha to be at least 0, and at most 1 with advantage.damping=linear, but got "
                f"{alpha} with {damping}."
            )
        self.alpha = alpha
        self.damping = damping
        super().__init__(base or GroupAdvantage(group_by, scale="none"))
        self.group_by: Pool = group_by

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """[R] the damped advantages."""
        index, num_pools = pool_index(groups, self.group_by)
        largest = pool_size(index, num_pools).clamp(min=2).log()
        # Rounded, so that full disagreement is exactly 1 and a full damping exactly 0.
        uncertainty = (semantic_entropy(groups, index, num_pools) / largest).round(decimals=12)
        return advantages * DAMPINGS[self.damping](self.alpha * uncertainty)[index]
