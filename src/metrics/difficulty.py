"""Whether the prompts of one question differ in difficulty, over batches and ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import RecordMetric
from .functional import DifficultyTest, homogeneity
from .functional.difficulty import pooled_difficulty_test


class DifficultyHomogeneity(RecordMetric):
    """Whether the prompts of the questions differ in difficulty; see `functional.difficulty_test`.

    >>> metric = DifficultyHomogeneity()
    >>> correct = torch.tensor([True] * 8 + [False] * 8)
    >>> metric.update(correct, torch.arange(16) // 8, torch.zeros(16).long())
    >>> metric.compute().questions
    1
    """

    def update(self, correct: Tensor, prompt: Tensor, question: Tensor) -> None:
        """Add [R] verdicts of whole questions."""
        self.add(*torch.stack(homogeneity(correct, prompt, question), -1).tolist())

    def compute(self) -> DifficultyTest:
        """The test over all questions."""
        rows = self.records()
        return pooled_difficulty_test(*([row[i] for row in rows] for i in range(3)))
