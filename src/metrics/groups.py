"""Group metrics accumulated over batches and ranks. A group must not be split over updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from .functional import answer_diversity, mean_pairwise_distance, uniform_groups, zero_gradient_percentage


class _MeanOverGroups(Metric):
    """A mean over groups: sums and counts are added over batches and ranks."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """[] float64 mean over all groups; NaN before any."""
        return self.total / self.count


class UniformRewardPercentage(_MeanOverGroups):
    """Share of groups whose rewards are all equal, 0..100; see `functional.uniform_reward_percentage`.

    >>> metric = UniformRewardPercentage()
    >>> metric.update(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    tensor(50., dtype=torch.float64)
    """

    higher_is_better = False

    def update(self, rewards: Tensor, group: Tensor) -> None:
        """Add [R] rewards of whole groups."""
        uniform = uniform_groups(rewards.double(), group)
        self.total += 100 * uniform.double().sum()
        self.count += len(uniform)


class ZeroGradientPercentage(_MeanOverGroups):
    """Share of groups whose advantages are all zero, 0..100; see `functional.zero_gradient_percentage`.

    >>> metric = ZeroGradientPercentage()
    >>> metric.update(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    tensor(50., dtype=torch.float64)
    """

    higher_is_better = False

    def update(self, advantages: Tensor, group: Tensor) -> None:
        """Add [R] advantages of whole groups."""
        count = len(torch.unique(group))
        if count:
            self.total += zero_gradient_percentage(advantages, group) * count
            self.count += count


class MeanPairwiseDistance(_MeanOverGroups):
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
        distances = mean_pairwise_distance(embeddings, group)
        self.total += distances.nansum()
        self.count += int((~distances.isnan()).sum())


class AnswerDiversity(_MeanOverGroups):
    """Mean over groups of the number of distinct wrong answers; see `functional.answer_diversity`.

    >>> metric = AnswerDiversity()
    >>> metric.update(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()  # group 0 has 1 and 2, group 1 has 2
    tensor(1.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def update(self, answers: Sequence[str | None], correct: Tensor, group: Tensor) -> None:
        """Add [R] answers and bool verdicts of whole groups."""
        distinct = answer_diversity(answers, correct, group)
        self.total += distinct.sum()
        self.count += len(distinct)
