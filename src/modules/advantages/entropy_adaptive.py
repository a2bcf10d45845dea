"""Pass@1 where the policy explores, Pass@k where it does not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .group import GroupAdvantage
from .pass_at_k import PassAtKAdvantage
from .pools import Pool, pool_index, pool_mean


class EntropyAdaptiveAdvantage(AdvantageStrategy):
    """Adaptive training by policy entropy (arXiv 2508.10751, §4.2.3).

    Of the pools, ranked by the mean policy entropy of their responses, the ⌊fraction · pools⌋ highest use Pass@1
    (`GroupAdvantage` on the rewards), the others Pass@k (`PassAtKAdvantage`, analytic, on `correct`). Both divide by
    the population's σ (Eq. 12). Of equal entropies the smaller id counts as higher; a single pool uses Pass@k unless
    `fraction` is 1.

    Args:
        k: Responses per group of Pass@k.
        fraction: Share of pools with Pass@1, 0..1; the paper's is one half.
        group_by: The pool, which is what is ranked: `question` | `prompt`.
        epsilon: Added to both standard deviations.

    Raises:
        ValueError: an option is out of its range, or the groups carry no finite entropy.

    >>> from dataclasses import replace
    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> groups = replace(verdicts([1, 0, 0, 0], [1, 0, 0, 0]), entropy=torch.tensor([0.2] * 4 + [0.9] * 4))
    >>> EntropyAdaptiveAdvantage(k=2, epsilon=0.0)(groups)[[0, 1, 4, 5]]
    tensor([ 1.0000, -0.3333,  1.7321, -0.5774])
    """

    needs_entropy = True

    def __init__(self, k: int, fraction: float = 0.5, group_by: Pool = "question", epsilon: float = 1e-6) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Expected advantage.fraction to lie between 0 and 1, but got {fraction}.")
        if group_by == "batch":
            raise ValueError(
                "Expected advantage.group_by to be question or prompt, but got batch: a single pool cannot be ranked."
            )
        self.fraction = fraction
        self.group_by: Pool = group_by
        self.pass_at_k = PassAtKAdvantage(k, group_by=group_by, epsilon=epsilon)
        self.pass_at_1 = GroupAdvantage(group_by, unbiased=False, epsilon=epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] advantages, in the precision of the rewards."""
        if groups.entropy is None or not torch.isfinite(groups.entropy).all():
            raise ValueError(
                "Expected a finite policy entropy for every response in RewardGroups.entropy, but got "
                f"{'None' if groups.entropy is None else 'others'}. Score all responses before the advantages."
            )
        index, num_pools = pool_index(groups, self.group_by)
        entropy = pool_mean(groups.entropy, index, num_pools)
        exploring = torch.zeros(num_pools, dtype=torch.bool)
        exploring[entropy.argsort(descending=True, stable=True)[: math.floor(self.fraction * num_pools)]] = True
        return torch.where(exploring[index], self.pass_at_1(groups), self.pass_at_k(groups))
