"""Group metrics accumulated over batches and ranks, the same however these are cut. An update takes whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from .base import ExactMean, ListMetric
from .functional import (
    CAUSES,
    answer_diversity,
    answer_entropy,
    distinct_n,
    group_effective_sample_share,
    group_index,
    kernel_density,
    mean_pairwise_distance,
    sampled_entropy,
    sum_absolute_advantage,
    uniform_groups,
    zero_gradient_causes,
)


class UniformRewardPercentage(ExactMean):
    """Share of groups whose rewards are all equal, 0..100; see `functional.uniform_reward_percentage`.

    >>> metric = UniformRewardPercentage()
    >>> metric.update(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    tensor(50., dtype=torch.float64)
    """

    higher_is_better = False

    def update(self, rewards: Tensor, group: Tensor) -> None:
        """Add [R] rewards of whole groups."""
        self.add_values(100 * uniform_groups(rewards.double(), group).double())


class ZeroGradientPercentage(ExactMean):
    """Share of groups whose advantages are all zero, 0..100; see `functional.zero_gradient_percentage`.

    >>> metric = ZeroGradientPercentage()
    >>> metric.update(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    tensor(50., dtype=torch.float64)
    """

    higher_is_better = False

    def update(self, advantages: Tensor, group: Tensor) -> None:
        """Add [R] advantages of whole groups."""
        self.add_values(100 * (sum_absolute_advantage(advantages, group) == 0).double())


class ZeroGradientCauses(Metric):
    """Share of groups without gradient by cause, and of those that pooling rescues, 0..100.

    See `functional.zero_gradient_causes`. `rescued`: the rewards of the original's responses are all equal, those of
    the whole pool are not. `total` is the sum of the causes; `rescued` is none of them.

    >>> metric = ZeroGradientCauses()
    >>> rewards, question = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    >>> metric.update(rewards - 1, rewards, rewards > 0, torch.zeros(6).bool(), question, torch.tensor([0, 0, 1] * 2))
    >>> {name: float(value) for name, value in metric.compute().items() if value}
    {'all_right': 50.0, 'total': 50.0, 'rescued': 50.0}
    """

    full_state_update = False
    higher_is_better = False
    counts: Tensor
    groups: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(len(CAUSES) + 1, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("groups", torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        advantages: Tensor,
        rewards: Tensor,
        correct: Tensor,
        truncated: Tensor,
        group: Tensor,
        variant: Tensor,
        masked: Tensor | None = None,
        clipped: Tensor | None = None,
    ) -> None:
        """Add whole groups; `variant` ([R] long) is 0 for the original question, and tells the prompts apart."""
        index, _ = group_index(group)
        prompt = index * (int(variant.max()) + 1 if len(variant) else 1) + variant
        causes = zero_gradient_causes(
            advantages, rewards, correct, truncated, group, prompt, masked=masked, clipped=clipped
        )
        first = variant == 0
        originals = index[first].unique()
        rescued = uniform_groups(rewards[first], index[first]) & ~uniform_groups(rewards, index)[originals]
        self.counts += torch.stack([*(flags.sum() for flags in causes.values()), rescued.sum()]).to(self.counts.device)
        self.groups += len(next(iter(causes.values())))

    def compute(self) -> dict[str, Tensor]:
        """Cause, `total` or `rescued` → [] float64."""
        shares = 100 * self.counts.double() / self.groups
        named = dict(zip(CAUSES, shares[:-1], strict=True))
        return {**named, "total": 100 * self.counts[:-1].sum().double() / self.groups, "rescued": shares[-1]}


class MeanPairwiseDistance(ExactMean):
    """Mean over groups of the mean pairwise cosine distance; see `functional.mean_pairwise_distance`.

    Groups of a single response have no pair and are left out.

    >>> metric = MeanPairwiseDistance()
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 0, 1]))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    higher_is_better = True

    def update(self, embeddings: Tensor, group: Tensor) -> None:
        """Add [R, D] embeddings of whole groups."""
        self.add_values(mean_pairwise_distance(embeddings, group))


class PairwiseDistanceDensity(ListMetric):
    """Density over groups of the mean pairwise cosine distance (TA-GRPO, Fig. 4); see `functional.kernel_density`.

    Args:
        points: Points of the grid from 0 to 2.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = PairwiseDistanceDensity(points=3)
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> [round(float(x), 2) for x in metric.compute()]  # a ridge at 1
    [0.0, 19.95, 0.0]
    """

    distances: list[Tensor]

    def __init__(self, points: int = 256, **kwargs: Any) -> None:
        super().__init__("distances", **kwargs)
        self.grid = torch.linspace(0, 2, points, dtype=torch.float64)

    def update(self, embeddings: Tensor, group: Tensor) -> None:
        """Add [R, D] embeddings of whole groups."""
        distances = mean_pairwise_distance(embeddings, group)
        self.add(distances=distances[~distances.isnan()])

    def compute(self) -> Tensor:
        """[points] float64 density at `grid`; NaN before any distance."""
        distances = self.column("distances").cpu().sort().values
        return kernel_density(distances, self.grid) if len(distances) else torch.full_like(self.grid, torch.nan)


class AnswerDiversity(ExactMean):
    """Mean over groups of the number of distinct wrong answers; see `functional.answer_diversity`.

    >>> metric = AnswerDiversity()
    >>> metric.update(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()  # group 0 has 1 and 2, group 1 has 2
    tensor(1.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def update(self, answers: Sequence[str | None], correct: Tensor, group: Tensor) -> None:
        """Add [R] answers and bool verdicts of whole groups."""
        self.add_values(answer_diversity(answers, correct, group))


class AnswerEntropy(ExactMean):
    """Mean over groups of the entropy of their final answers, nats; see `functional.answer_entropy`.

    >>> metric = AnswerEntropy()
    >>> metric.update(["1", "2", "1", "1"], torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()  # log 2 and 0
    tensor(0.3466, dtype=torch.float64)
    """

    def update(self, answers: Sequence[str | None], group: Tensor) -> None:
        """Add [R] answers of whole groups."""
        self.add_values(answer_entropy(answers, group))


class DistinctN(ExactMean):
    """Mean over groups of distinct n-grams over all n-grams; see `functional.distinct_n`.

    Args:
        n: Length of the n-grams.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = DistinctN(n=1)
    >>> metric.update([torch.tensor([5, 5]), torch.tensor([6])], torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.7500, dtype=torch.float64)
    """

    higher_is_better = True

    def __init__(self, n: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = n

    def update(self, token_ids: Sequence[Tensor], group: Tensor) -> None:
        """Add the [R] token sequences of whole groups."""
        self.add_values(distinct_n(token_ids, group, self.n))


class SampledEntropy(ExactMean):
    """Mean over groups of the entropy per token, nats; see `functional.sampled_entropy`.

    >>> metric = SampledEntropy()
    >>> metric.update([torch.tensor([-1.0, -3.0]), torch.tensor([-4.0])], torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(3., dtype=torch.float64)
    """

    def update(self, logprobs: Sequence[Tensor], group: Tensor) -> None:
        """Add the [R] sequences of log-probs of whole groups."""
        self.add_values(sampled_entropy(logprobs, group))


class SumAbsoluteAdvantage(ExactMean):
    """Mean over groups of η; see `functional.sum_absolute_advantage`.

    >>> metric = SumAbsoluteAdvantage()
    >>> metric.update(torch.tensor([1.0, -1.0, 0.0]), torch.tensor([0, 0, 1]))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    def update(self, advantages: Tensor, group: Tensor) -> None:
        """Add [R] advantages of whole groups."""
        self.add_values(sum_absolute_advantage(advantages, group))


class EffectiveSampleShare(ExactMean):
    """Mean over groups of effective sample size over size; see `functional.group_effective_sample_share`.

    >>> metric = EffectiveSampleShare()
    >>> metric.update(torch.tensor([3.0, 1.0]).log(), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.8000, dtype=torch.float64)
    """

    higher_is_better = True

    def update(self, log_weights: Tensor, group: Tensor) -> None:
        """Add [R] log-weights of whole groups."""
        self.add_values(group_effective_sample_share(log_weights, group))
