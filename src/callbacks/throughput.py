"""Where an iteration's time goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ..distributed import sum_over_ranks
from ..runs.scalars import log_scalars
from ..runs.stages import Stage
from .shared import BatchDiagnostic, current_iteration


class ThroughputMonitor(BatchDiagnostic):
    """Logs where the time of an iteration goes, as rank 0 sees it, and how much is sampled in it.

    - `seconds/sync`: weights into the engine; `seconds/generate`: sampling; `seconds/score`: verdicts that were not
      ready when sampling was; `seconds/update`: advantages, losses, optimizer steps; `seconds/validate`: the validation
      after the iteration.
    - `seconds/wait`: what the engine needed for the next batch beyond the update, in batches that were sampled ahead;
      these have no `generate`.
    - `seconds/iteration`: the whole iteration; `seconds/other`: diagnostics, logging, loading.
    - `throughput/tokens_per_second`: response tokens of all ranks by the seconds of the iteration.

    An iteration lasts from the start of its batch to that of the next one, so that its figures are one step late. A
    trainer must call this callback before those that it measures (`Stage.CLOCK`).
    """

    stage = Stage.CLOCK

    def __init__(self) -> None:
        self._start: float | None = None
        self._validation_start = 0.0
        self._rollouts: Mapping[str, float] = {}
        self._phases: dict[str, float] = {}
        self._tokens = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start, self._rollouts, self._phases = None, {}, {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Log the iteration before this one, now that it is over."""
        now = time.perf_counter()
        if self._start is not None:
            log_scalars(pl_module, self._figures(now - self._start))
        self._start = now

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        """Keep the phases of this iteration; nothing is logged yet."""
        rollouts = batch.rollouts
        self._rollouts = rollouts.seconds  # not a copy: waiting for the next batch is measured after this hook
        self._phases = {}
        if isinstance(outputs, Mapping) and "seconds_update" in outputs:
            self._phases["update"] = outputs["seconds_update"]
        self._tokens = sum_over_ranks({"tokens": float(rollouts.lengths.sum())})["tokens"]
        return {}

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_start = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._rollouts:
            self._phases["validate"] = time.perf_counter() - self._validation_start

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the last iteration, which no other one follows."""
        if self._start is not None:
            figures = self._figures(time.perf_counter() - self._start)
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=current_iteration(trainer) + 1)

    def _figures(self, total: float) -> dict[str, float]:
        phases = {**self._rollouts, **self._phases}
        figures = {f"seconds/{phase}": seconds for phase, seconds in phases.items()}
        figures |= {"seconds/other": total - sum(phases.values()), "seconds/iteration": total}
        return figures | {"throughput/tokens_per_second": self._tokens / total}
