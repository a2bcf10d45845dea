"""Success by the prompt that was sampled: per variant, and whether prompts of one question differ."""

from __future__ import annotations

from math import fsum

import torch
from torch import Tensor

from .base import ListMetric
from .functional import DifficultyTest, exact_parts, homogeneity
from .functional.difficulty import pooled_difficulty_test


class MeanByKey(ListMetric):
    """Mean of values by an integer key: success per variant, clip fraction per template. Rounded only once.

    >>> metric = MeanByKey()
    >>> metric.update(torch.tensor([True, False, True]), torch.tensor([0, 0, 2]))
    >>> {key: float(mean) for key, mean in metric.compute().items()}
    {0: 0.5, 2: 1.0}
    """

    key_of_part: list[Tensor]
    parts: list[Tensor]
    keys: list[Tensor]
    counts: list[Tensor]

    def __init__(self, **kwargs: bool) -> None:
        super().__init__("key_of_part", "parts", "keys", "counts", **kwargs)

    def update(self, values: Tensor, key: Tensor) -> None:
        """Add [n] values (NaN is left out) with their keys [n] long."""
        known = ~values.double().isnan()
        keys, counts = torch.unique(key[known], return_counts=True)
        self.add(keys=keys, counts=counts)
        for one in keys.tolist():
            parts = torch.tensor(exact_parts(values[known & (key == one)].tolist()), dtype=torch.float64)
            self.add(parts=parts, key_of_part=torch.full_like(parts, one))

    def compute(self) -> dict[int, Tensor]:
        """Key → [] float64 mean, ascending."""
        owner, parts, keys, counts = (self.column(name) for name in ("key_of_part", "parts", "keys", "counts"))
        totals = {key: fsum(parts[owner == key].tolist()) for key in keys.unique().tolist()}
        return {
            int(key): torch.tensor(total, dtype=torch.float64) / counts[keys == key].sum().cpu()
            for key, total in totals.items()
        }


class DifficultyHomogeneity(ListMetric):
    """Whether the prompts of the questions differ in difficulty; see `functional.difficulty_test`.

    >>> metric = DifficultyHomogeneity()
    >>> correct = torch.tensor([True] * 8 + [False] * 8)
    >>> metric.update(correct, torch.arange(16) // 8, torch.zeros(16).long())
    >>> metric.compute().questions
    1
    """

    statistic: list[Tensor]
    mean: list[Tensor]
    variance: list[Tensor]

    def __init__(self, **kwargs: bool) -> None:
        super().__init__("statistic", "mean", "variance", **kwargs)

    def update(self, correct: Tensor, prompt: Tensor, question: Tensor) -> None:
        """Add [R] verdicts of whole questions."""
        self.add(**homogeneity(correct, prompt, question)._asdict())

    def compute(self) -> DifficultyTest:
        """The test over all questions."""
        columns = [self.column(name).tolist() for name in ("statistic", "mean", "variance")]
        return pooled_difficulty_test(*columns)
