"""What a training step counts: sums over micro-batches and ranks, divided only once."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from ..types import LossOutputs


class Tally:
    """Sums over the micro-batches of one training step on one rank."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.token_sums: Counter[str] = Counter()
        self.entropy: dict[int, float] = {}
        self.grad_norms: list[float] = []
        self.lr = 0.0
        self.dropped = 0
        self.skipped = 0
        self.compared = 0
        self.mismatch = 0.0
        self.largest_mismatch = 0.0

    def add(self, outputs: LossOutputs, rows: Tensor, lengths: list[int], entropy: Tensor | None) -> None:
        """Add a micro-batch of the responses `rows`; `entropy` is [T], nats."""
        self.loss += float(outputs.loss.detach())
        self.token_sums.update({name: float(value) for name, value in outputs.sums.items()})
        if entropy is not None:
            parts = zip(rows.tolist(), entropy.detach().split(lengths), strict=True)
            self.entropy.update({row: float(part.mean()) for row, part in parts})

    def compare_engine(self, log_ratio: Tensor) -> None:
        """Add log π_trainer − log π_engine of tokens scored under the prompt that they were sampled from.

        The KL estimate is the low-variance k3 of KL(π_engine ‖ π_trainer): exp(d) − 1 − d.
        """
        if len(log_ratio):
            self.compared += len(log_ratio)
            self.mismatch += float((torch.expm1(log_ratio) - log_ratio).sum())
            self.largest_mismatch = max(self.largest_mismatch, float(log_ratio.abs().max()))

    def sums(self) -> dict[str, float]:
        """Everything that is added over ranks."""
        own = {
            "loss": self.loss,
            "dropped": self.dropped,
            "compared": self.compared,
            "mismatch": self.mismatch,
        }
        return {**self.token_sums, **own}

    def entropy_of(self, num_responses: int) -> Tensor:
        """[R] float32, mean entropy per token; NaN for responses without a forward."""
        return torch.tensor([self.entropy.get(row, math.nan) for row in range(num_responses)])
