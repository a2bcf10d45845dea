"""Group metrics accumulated over batches and ranks. A group must not be split over updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from .functional import mean_pairwise_distance, uniform_groups, zero_gradient_percentage


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
        uniform = uniform_groups(rewards.float(), group)
        self.total += 100 * uniform.double().sum()
        self.count += len(uniform)


class ZeroGradientPercentage(_MeanOverGroups):
    """Share of groups whose advantages are all zero, 0..100; see `functional.zero_gradient_percentage`."""

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
    """

    higher_is_better = True

    def update(self, embeddings: Tensor, group: Tensor) -> None:
        """Add [R, D] embeddings of whole groups."""
        distances = mean_pairwise_distance(embeddings, group)
        self.total += distances.nansum()
        self.count += int((~distances.isnan()).sum())
