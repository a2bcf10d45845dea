"""Pass@k accumulated over batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from .functional import pass_at_k_curve


class PassAtK(Metric):
    """Unbiased pass@k, the mean over questions; see `functional.pass_at_k`.

    Keeps two integers per question, so that uneven batches and ranks make no difference.

    Args:
        ks: The k of interest, each at most the samples per question.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = PassAtK(ks=(1, 2))
    >>> metric.update(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
    >>> {k: float(v) for k, v in metric.compute().items()}
    {1: 0.25, 2: 0.5}
    """

    full_state_update = False
    higher_is_better = True
    num_samples: list[Tensor]
    num_correct: list[Tensor]

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ks = tuple(ks)
        self.add_state("num_samples", [], dist_reduce_fx="cat")
        self.add_state("num_correct", [], dist_reduce_fx="cat")

    def update(self, correct: Tensor, question: Tensor) -> None:
        """Add [R] bool verdicts of whole questions [R] long."""
        _, index = torch.unique(question, return_inverse=True)
        self.num_samples.append(torch.bincount(index))
        self.num_correct.append(torch.bincount(index, weights=correct.double()).long())

    def compute(self) -> dict[int, Tensor]:
        """K → [] float64 pass@k."""
        samples, correct = dim_zero_cat(self.num_samples), dim_zero_cat(self.num_correct)
        curve = pass_at_k_curve(samples, correct, self.ks).mean(0)
        return dict(zip(self.ks, curve, strict=True))
