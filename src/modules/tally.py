"""What a training step counts: sums over micro-batches and ranks, divided only once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ..types import LossOutputs


class Tally:
    """Sums over the micro-batches of one training step on one rank."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.token_sums: Counter[str] = Counter()
        self.response_sums: dict[str, dict[int, float]] = {}
        self.grad_norms: list[float] = []
        self.lr = 0.0
        self.dropped = 0
        self.skipped = 0
        self.compared = 0
        self.mismatch = 0.0
        self.largest_mismatch = 0.0
        self.stale = dict.fromkeys(("tokens", "weight", "truncated", "kl"), 0.0)

    def add(self, parts: Sequence[LossOutputs], rows: Tensor) -> None:
        """Add a micro-batch of the responses `rows`, whose tokens are in one part or in several."""
        for outputs in parts:
            self.loss += float(outputs.loss.detach())
            self.token_sums.update({name: float(value) for name, value in outputs.sums.items()})
        for name in parts[0].response_sums:
            values = torch.stack([outputs.response_sums[name] for outputs in parts]).sum(0)
            self.response_sums.setdefault(name, {}).update(zip(rows.tolist(), values.tolist(), strict=True))

    def compare_engine(self, log_ratio: Tensor) -> None:
        """Add log π_trainer − log π_engine of tokens scored under the prompt that they were sampled from.

        The KL estimate is the low-variance k3 of KL(π_engine ‖ π_trainer): exp(d) − 1 − d.
        """
        if len(log_ratio):
            self.compared += len(log_ratio)
            self.mismatch += float((torch.expm1(log_ratio) - log_ratio).sum())
            self.largest_mismatch = max(self.largest_mismatch, float(log_ratio.abs().max()))

    def compare_stale(self, log_ratio: Tensor, cap: float) -> None:
        """Add log π − log μ of tokens that earlier weights μ have sampled, under the prompt that was sampled.

        What is summed: their weights exp(min(d, cap)), how many are truncated, and the k3 estimate of KL(μ ‖ π).
        """
        if len(log_ratio):
            self.stale["tokens"] += len(log_ratio)
            self.stale["weight"] += float(log_ratio.clamp(max=cap).exp().sum())
            self.stale["truncated"] += float((log_ratio > cap).sum())
            self.stale["kl"] += float((torch.expm1(log_ratio) - log_ratio).sum())

    def sums(self) -> dict[str, float]:
        """Everything that is added over ranks."""
        own = {
            "loss": self.loss,
            "dropped": self.dropped,
            "compared": self.compared,
            "mismatch": self.mismatch,
            **{f"stale_{name}": value for name, value in self.stale.items()},
        }
        return {**self.token_sums, **own}

    def sum_of(self, name: str, num_responses: int) -> Tensor:
        """[R] float32 sums over the tokens of each response; NaN for responses without a forward."""
        column = self.response_sums.get(name, {})
        return torch.tensor([column.get(row, math.nan) for row in range(num_responses)])

    def mean_of(self, name: str, lengths: Tensor) -> Tensor:
        """[R] float32 means over the tokens of each response; NaN for responses without a forward."""
        return self.sum_of(name, len(lengths)) / lengths
