"""Where an iteration's time goes."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class ThroughputMonitor(Callback):
    """Logs `seconds/{sync,generate,score,update,validate,other,iteration}` of rank 0, and tokens per second.

    An iteration lasts from the start of a batch's hooks to the start of the next one's; `other` is what the named
    phases leave of it: diagnostics, logging, loading. Put it first among the callbacks.

    Reads `batch.rollouts.{seconds, lengths}` and `outputs["seconds_update"]`.
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._validation_start = 0.0
        self._phases: dict[str, float] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Log the iteration before this one, now that it is over."""
        now = time.perf_counter()
        if self._start is not None and self._phases:
            total = now - self._start
            tokens = self._phases.pop("tokens")
            metrics = {f"seconds/{phase}": value for phase, value in self._phases.items()}
            metrics["seconds/other"] = total - sum(self._phases.values())
            metrics |= {"seconds/iteration": total, "seconds/tokens_per_second": tokens / total}
            pl_module.log_dict(metrics, rank_zero_only=True)
        self._start = now

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the phases of this iteration."""
        self._phases = {**batch.rollouts.seconds, "update": outputs["seconds_update"]}
        self._phases["tokens"] = float(batch.rollouts.lengths.sum())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note when validation begins."""
        self._validation_start = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count validation as a phase of the iteration that it follows."""
        if self._phases:
            self._phases["validate"] = time.perf_counter() - self._validation_start
