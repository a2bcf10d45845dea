"""A question counts by what it can still add to pass@k, given how often the run has solved it (overtraining gate).

After Bayesian Boundary Gating (arXiv 2606.15455): its abstract was read, its formulas are known second-hand.
Departures: counts are those of the whole run before the batch instead of those of the batch itself, so that a question
weighs alike whatever its responses are now; and questions without a success are learned from as the base does, instead
of with a signed REINFORCE loss.
"""

from __future__ import annotations

from torch import Tensor

from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.pools import history_of
from ...types import AdvantageStrategy, RewardGroups


def marginal_worth(samples: Tensor, correct: Tensor, k: int | None) -> Tensor:
    """[…] float64 posterior mean of d pass@k / dp, as a share of that of a question which was never solved.

    With p ~ Beta(1 + m, 1 + n − m) after m of n correct responses, u(m; n, k) = E[k (1 − p)^(k−1)] =
    k ∏_{j=1}^{k−1} (n − m + j) / (n + 1 + j) (arXiv 2606.15455, second-hand), and the share is
    u(m; n, k) / u(0; n, k) = C(n, m) / C(n + k − 1, m). None is its limit for large k: 1 where m = 0, else 0.

    >>> import torch
    >>> marginal_worth(torch.tensor([8, 8, 8]), torch.tensor([0, 1, 2]), k=9)  # 8/16, and 8/16 · 7/15
    tensor([1.0000, 0.5000, 0.2333], dtype=torch.float64)
    """
    if k is None:
        return (correct == 0).double()
    n, m = samples.double(), correct.double()
    return ((n - m + k).lgamma() - (n + k).lgamma() + ((n + 1).lgamma() - (n - m + 1).lgamma())).exp()


class OvertrainingGateAdvantage(BasedAdvantage):
    """Advantages of a base strategy, times the question's marginal worth for pass@k (after arXiv 2606.15455).

    A' = A · w(m, n), w = C(n, m) / C(n + k − 1, m) as in `marginal_worth`, 0 where w < `threshold`; n responses to the
    question and its rephrasings before this batch, m of them correct; k is `reference_k`. w does not depend on the
    batch, so that the expected gradient of each question is w times that of the base. k = 1 is the base; k = None
    learns from a question until the first batch in which it is solved, that one included, and never again.

    The posterior takes the success rate to have been the same all along. Zero where the base is.

    Args:
        base: Strategy whose advantages are weighted.
        reference_k: k of the pass@k that is to grow, at least 1; None is its limit.
        threshold: Smaller weights are 0.
    """

    needs_history = True

    def __init__(self, base: AdvantageStrategy, reference_k: int | None = 256, threshold: float = 0.01) -> None:
        super().__init__(base)
        if reference_k is not None and reference_k < 1:
            raise ValueError(f"Expected advantage.reference_k to be at least 1 or null, but got {reference_k}.")
        if not 0 <= threshold <= 1:
            raise ValueError(f"Expected advantage.threshold to lie between 0 and 1, but got {threshold}.")
        self.reference_k = reference_k
        self.threshold = threshold

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """[R] the weighted advantages."""
        history = history_of(groups)
        worth = marginal_worth(history.samples, history.correct, self.reference_k)
        return advantages * worth.masked_fill(worth < self.threshold, 0.0)
