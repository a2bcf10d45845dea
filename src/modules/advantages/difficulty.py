"""Pass@k training strategies that depend on the difficulty of a question (arXiv 2508.10751)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice
from .based import BasedAdvantage
from .group import GroupAdvantage
from .pass_at_k import PassAtKAdvantage
from .pools import POOLS, Pool, accuracy, as_rewards, pool_index, pool_mean, pool_sum


class ExceedingPassAtKAdvantage(AdvantageStrategy):
    """Pass@k advantages that weigh the hardest questions most (arXiv 2508.10751, Eq. 17).

    A = f(c) · A_pass@k with f(c) = 4 / (10 · ln(c + 0.5)), c correct responses in the pool: f(1) ≈ 0.99, f(2)
    ≈ 0.44. The paper names no base of the logarithm. The sum of absolute advantages then peaks at one correct
    response. Advantages are zero if those of `PassAtKAdvantage` (analytic) are zero, such as at c = 0, where
    f would be negative.

    Args:
        k: Responses per group.
        group_by: The pool: `question` | `prompt` | `batch`.
        epsilon: Added to the standard deviation.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> ExceedingPassAtKAdvantage(k=2, epsilon=0.0)(verdicts([1, 0, 0, 0]))  # 0.4 / ln 1.5 times (1, −1/3, −1/3, −1/3)
    tensor([ 0.9865, -0.3288, -0.3288, -0.3288])
    """

    reads_rewards = False

    def __init__(self, k: int, group_by: Pool = "question", epsilon: float = 1e-6) -> None:
        self.pass_at_k = PassAtKAdvantage(k, group_by=group_by, epsilon=epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.pass_at_k.group_by)
        correct = pool_sum(groups.correct, index, num_pools).clamp(min=1)
        factor = 4 / (10 * torch.log(correct + 0.5))
        return as_rewards(factor[index] * self.pass_at_k(groups), groups)


class CombinationAdvantage(AdvantageStrategy):
    """Mixture of Pass@1, for hard questions, and Pass@k, for easy ones (arXiv 2508.10751, Eq. 18).

    A = c/n · A_pass@k + (1 − c/n) · A_pass@1, where c of the pool's n responses are correct. A_pass@k is
    `PassAtKAdvantage` (analytic) and counts `correct`. A_pass@1 is `GroupAdvantage` with mean and standard
    deviation, on the rewards. Both divide by the population's σ (Eq. 12).

    A is zero if both advantages are zero. A pool with fewer than k wrong responses keeps the share 1 − c/n of
    A_pass@1.

    Args:
        k: Responses per group of Pass@k.
        group_by: The pool for both advantages: `question` | `prompt` | `batch`.
        epsilon: Added to both standard deviations.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> CombinationAdvantage(k=2, epsilon=0.0)(verdicts([1, 0, 0, 0]))  # ¼ (1, −⅓, …) + ¾ (√3, −1/√3, …)
    tensor([ 1.5490, -0.5163, -0.5163, -0.5163])
    """

    def __init__(self, k: int, group_by: Pool = "question", epsilon: float = 1e-6) -> None:
        self.group_by: Pool = group_by
        self.pass_at_k = PassAtKAdvantage(k, group_by=group_by, epsilon=epsilon)
        self.pass_at_1 = GroupAdvantage(group_by, unbiased=False, epsilon=epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        share = accuracy(groups, self.group_by)
        return as_rewards(share * self.pass_at_k(groups) + (1 - share) * self.pass_at_1(groups), groups)


class EntropyAdaptiveAdvantage(AdvantageStrategy):
    """Pass@1 for pools of high policy entropy, Pass@k for the others (arXiv 2508.10751, §4.2.3).

    Pools are ranked by the mean policy entropy of their responses. The ⌊fraction · pools⌋ pools of highest
    entropy use Pass@1 and the others Pass@k, both as in `CombinationAdvantage`. Among equal entropies, the
    smaller id counts as higher; a single pool uses Pass@k unless `fraction` is 1.

    Args:
        k: Responses per group of Pass@k.
        fraction: Share of pools with Pass@1, 0..1; one half in the paper.
        group_by: The pool to rank: `question` | `prompt`.
        epsilon: Added to both standard deviations.

    Raises:
    Raises:
        ValueError: if an option is out of its range, or the groups have no finite entropies.

    >>> from dataclasses import replace
    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> groups = replace(verdicts([1, 0, 0, 0], [1, 0, 0, 0]), entropy=torch.tensor([0.2] * 4 + [0.9] * 4))
    >>> EntropyAdaptiveAdvantage(k=2, epsilon=0.0)(groups)[[0, 1, 4, 5]]
    tensor([ 1.0000, -0.3333,  1.7321, -0.5774])
    """

    needs_entropy = True

    def __init__(
        self, k: int, fraction: float = 0.5, group_by: Pool = "question", epsilon: float = 1e-6
    ) -> None:
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
        """Return the advantages, [R], in the precision of the rewards."""
        if groups.entropy is None or not torch.isfinite(groups.entropy).all():
            raise ValueError(
                "Expected a finite policy entropy for every response in RewardGroups.entropy, but got "
                f"{'None' if groups.entropy is None else 'others'}. Score all responses before the "
                "advantages."
            )
        index, num_pools = pool_index(groups, self.group_by)
        entropy = pool_mean(groups.entropy, index, num_pools)
        exploring = torch.zeros(num_pools, dtype=torch.bool)
        exploring[entropy.argsort(descending=True, stable=True)[: math.floor(self.fraction * num_pools)]] = (
            True
        )
        return torch.where(exploring[index], self.pass_at_1(groups), self.pass_at_k(groups))


@dataclass(eq=False)
class WithoutEasyAdvantage(BasedAdvantage):
    """Advantages of a base strategy, set to 0 in easy pools (arXiv 2508.10751, §4.1.2 and Fig. 10).

    A pool is easy if its accuracy c/n is above `threshold`; c counts `correct`. The paper states no threshold
    for the removal of easy problems; 0.6 is the accuracy above which its §4.1.1 calls a problem relatively
    easy.

    Args:
        base: Base strategy: `GroupAdvantage(unbiased=False)` for the paper's Pass@1 training.
        threshold: Accuracy from 0 to 1; 1 keeps all.
        group_by: The pool whose accuracy counts: `question` | `prompt` | `batch`.

    Raises:
        ValueError: if an option is out of its range.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> WithoutEasyAdvantage(GroupAdvantage(scale="none"))(verdicts([1, 0, 0], [1, 1, 0]))  # the second are easy
    tensor([ 0.6667, -0.3333, -0.3333,  0.0000,  0.0000,  0.0000])
    """

    threshold: float = 0.6
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("group_by", self.group_by, POOLS)
        if not 0 <= self.threshold <= 1:
            raise ValueError(
                f"Expected advantage.threshold to lie between 0 and 1, but got {self.threshold}."
            )

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], with 0 in easy pools."""
        return advantages.masked_fill(accuracy(groups, self.group_by) > self.threshold, 0.0)
