"""Pass@k and maj@k accumulated over batches and ranks, with intervals over questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import RecordMetric
from .functional import Interval, bootstrap_intervals, exact_mean, group_index, maj_at_k, pass_at_k_curve


class _Curve(RecordMetric):
    """Mean over questions of a value for each k. An update takes all responses to a question."""

    higher_is_better = True

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ks = tuple(ks)

    def curves(self) -> Tensor:
        """[Q, len(ks)] float64, in an order that does not depend on batches and ranks."""
        return torch.tensor(sorted(self.records()), dtype=torch.float64).view(-1, len(self.ks))

    def compute(self) -> dict[int, Tensor]:
        """K → [] float64 mean over questions."""
        means = [exact_mean(column) for column in self.curves().T.tolist()]
        return dict(zip(self.ks, torch.tensor(means, dtype=torch.float64), strict=True))

    def intervals(self, confidence: float = 0.95) -> dict[int, Interval]:
        """K → mean with its interval over the questions of this rank, within `sync_context` over those of all."""
        return dict(zip(self.ks, bootstrap_intervals(self.curves(), confidence=confidence), strict=True))


class PassAtK(_Curve):
    """Unbiased pass@k, the mean over questions; see `functional.pass_at_k`.

    Args:
        ks: The k of interest, each at most the samples per question.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = PassAtK(ks=(1, 2))
    >>> metric.update(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
    >>> {k: float(v) for k, v in metric.compute().items()}
    {1: 0.25, 2: 0.5}
    """

    def update(self, correct: Tensor, question: Tensor) -> None:
        """Add [R] bool verdicts of whole questions [R] long."""
        index, count = group_index(question)
        right = torch.bincount(index, weights=correct.double(), minlength=count)
        self.add(*pass_at_k_curve(torch.bincount(index), right, self.ks).tolist())


class MajAtK(_Curve):
    """Probability that the majority of k samples is right, the mean over questions; see `functional.maj_at_k`.

    Args:
        ks: The k of interest, each at most the samples per question.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = MajAtK(ks=(1, 3))
    >>> metric.update(["7", "7", "2"], torch.tensor([True, True, False]), torch.tensor([0, 0, 0]))
    >>> {k: round(float(v), 4) for k, v in metric.compute().items()}
    {1: 0.6667, 3: 1.0}
    """

    def update(self, answers: Sequence[str | None], correct: Tensor, question: Tensor) -> None:
        """Add [R] answers and bool verdicts of whole questions [R] long."""
        self.add(*torch.stack([maj_at_k(answers, correct, question, k) for k in self.ks], -1).tolist())
