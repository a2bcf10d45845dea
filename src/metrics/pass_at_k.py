"""Pass@k and maj@k accumulated over batches and ranks, with intervals over questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import ListMetric
from .functional import Interval, bootstrap_intervals, exact_mean, maj_at_k, pass_at_k_curve


class PassAtK(ListMetric):
    """Unbiased pass@k, the mean over questions; see `functional.pass_at_k`.

    Keeps two integers per question and sorts them before anything is computed, so that neither batches nor ranks make a
    difference.

    Args:
        ks: The k of interest, each at most the samples per question.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = PassAtK(ks=(1, 2))
    >>> metric.update(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
    >>> {k: float(v) for k, v in metric.compute().items()}
    {1: 0.25, 2: 0.5}
    """

    higher_is_better = True
    num_samples: list[Tensor]
    num_correct: list[Tensor]

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32), **kwargs: Any) -> None:
        super().__init__("num_samples", "num_correct", **kwargs)
        self.ks = tuple(ks)

    def update(self, correct: Tensor, question: Tensor) -> None:
        """Add [R] bool verdicts of whole questions [R] long."""
        _, index = torch.unique(question, return_inverse=True)
        samples = torch.bincount(index)
        self.add(
            num_samples=samples, num_correct=torch.bincount(index, weights=correct.double(), minlength=len(samples))
        )

    def compute(self) -> dict[int, Tensor]:
        """K → [] float64 pass@k."""
        curve = self._curve()
        means = [exact_mean(curve[:, column].tolist()) for column in range(len(self.ks))]
        return {k: torch.tensor(mean, dtype=torch.float64) for k, mean in zip(self.ks, means, strict=True)}

    def intervals(self, confidence: float = 0.95) -> dict[int, Interval]:
        """K → pass@k with its interval over the questions of this rank, or after `compute` under `sync` of all."""
        return dict(zip(self.ks, bootstrap_intervals(self._curve(), confidence), strict=True))

    def _curve(self) -> Tensor:
        counts = torch.stack([self.column("num_samples"), self.column("num_correct")], -1).cpu()
        counts = counts[torch.argsort(counts[:, 0] * (counts.max() + 1 if len(counts) else 1) + counts[:, 1])]
        return pass_at_k_curve(counts[:, 0], counts[:, 1], self.ks)


class MajAtK(ListMetric):
    """Probability that the majority of k samples is right, the mean over questions; see `functional.maj_at_k`.

    Args:
        ks: The k of interest, each at most the samples per question.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = MajAtK(ks=(1, 3))
    >>> metric.update(["7", "7", "2"], torch.tensor([True, True, False]), torch.tensor([0, 0, 0]))
    >>> {k: round(float(v), 4) for k, v in metric.compute().items()}
    {1: 0.6667, 3: 1.0}
    """

    higher_is_better = True

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32), **kwargs: Any) -> None:
        self.ks = tuple(ks)
        super().__init__(*(f"at_{k}" for k in self.ks), **kwargs)

    def update(self, answers: Sequence[str | None], correct: Tensor, question: Tensor) -> None:
        """Add [R] answers and bool verdicts of whole questions [R] long."""
        self.add(**{f"at_{k}": maj_at_k(answers, correct, question, k) for k in self.ks})

    def compute(self) -> dict[int, Tensor]:
        """K → [] float64 maj@k."""
        return {k: torch.tensor(exact_mean(self.column(f"at_{k}").tolist()), dtype=torch.float64) for k in self.ks}

    def intervals(self, confidence: float = 0.95) -> dict[int, Interval]:
        """K → maj@k with its interval over the questions of this rank, or under `sync` of all."""
        # The same order for every k, whatever the ranks: the resamples then are the same questions.
        table = torch.stack([self.column(f"at_{k}").cpu() for k in self.ks], -1)
        rows = sorted(table.tolist())
        return dict(
            zip(self.ks, bootstrap_intervals(torch.tensor(rows).view(-1, len(self.ks)), confidence), strict=True)
        )
