"""The budget of a run, added up over batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from .functional import Budget


class BudgetLedger(Metric):
    """Adds up rollouts, tokens, questions, optimizer steps and seconds per phase.

    Rollouts, tokens and questions are added over ranks. Updates and seconds are those of the rank that has most of
    them: all ranks make the same optimizer steps, and wait for each other.

    Args:
        phases: Names of the phases that seconds are given for.
        kwargs: Options of `torchmetrics.Metric`.

    >>> ledger = BudgetLedger(phases=("generate", "update"))
    >>> ledger.update(rollouts=8, tokens=100, updates=2, questions=1, seconds={"generate": 1.5})
    >>> ledger.update(rollouts=8, tokens=80, updates=2, questions=1, seconds={"generate": 1.5, "update": 1.0})
    >>> ledger.compute()
    Budget(rollouts=16, tokens=180, updates=4, questions=2, seconds={'generate': 3.0, 'update': 1.0})
    """

    full_state_update = False
    counts: Tensor
    steps: Tensor
    seconds: Tensor

    def __init__(self, phases: Sequence[str] = ("sync", "generate", "score", "update"), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_dtype(torch.float64)
        self.phases = tuple(phases)
        self.add_state("counts", torch.zeros(3, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("steps", torch.tensor(0), dist_reduce_fx="max")
        self.add_state("seconds", torch.zeros(len(self.phases), dtype=torch.float64), dist_reduce_fx="max")

    def update(self, rollouts: int, tokens: int, updates: int, questions: int, seconds: Mapping[str, float]) -> None:
        """Add what one iteration used on this rank; phases that are not named count as zero."""
        self.counts += torch.tensor([rollouts, tokens, questions], device=self.counts.device)
        self.steps += updates
        used = [seconds.get(phase, 0.0) for phase in self.phases]
        self.seconds += torch.tensor(used, dtype=torch.float64, device=self.seconds.device)

    def compute(self) -> Budget:
        """Totals."""
        rollouts, tokens, questions = self.counts.tolist()
        seconds = dict(zip(self.phases, self.seconds.tolist(), strict=True))
        steps = int(self.steps)
        return Budget(rollouts=rollouts, tokens=tokens, updates=steps, questions=questions, seconds=seconds)
