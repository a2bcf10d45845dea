"""Measurement of an iteration's time by phase."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from ..distributed import sum_over_ranks
from ..runs.scalars import Stage, log_scalars
from .shared import BatchDiagnostic, current_iteration

PEAKS = {
    "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12,
    "L40S": 362e12,
}  # fmt: skip
"""Part of a GPU's name → dense bfloat16 FLOP/s stated by its maker. Some of Lightning's rates are sparse."""


class ThroughputMonitor(BatchDiagnostic):
    """Callback that logs the time of an iteration by phase, measured on rank 0, and the sampling rate.

    - `seconds/sync`: sending weights to the engine; `seconds/generate`: sampling; `seconds/score`: scoring
      that continued after sampling; `seconds/update`: advantages, losses, optimizer steps;
      `seconds/validate`: the validation after the iteration.
    - `seconds/wait`: if the engine samples ahead, the time after the update until the next batch was sampled;
      batches that were sampled ahead have no `generate`.
    - `seconds/iteration`: the whole iteration; `seconds/other`: diagnostics, logging, loading.
    - `throughput/tokens_per_second`: response tokens of all ranks per second of the iteration.
    - `throughput/mfu`: share of the devices' peak rate that the update uses: the minimum FLOP of the update
      (`UsefulFlop`) divided by the FLOP that the devices could do in the same time (`peak_rate`); missing on
      unknown GPUs.

    An iteration lasts from the start of its batch to the start of the next batch, so that its figures are
    logged one step late. Figures that are not logged yet are kept in checkpoints, and a resumed run logs
    them. A trainer must call this callback before the callbacks that it measures (`Stage.CLOCK`).
    """

    stage = Stage.CLOCK

    def __init__(self) -> None:
        self._start: float | None = None
        self._validation_start = 0.0
        self._rollouts: Mapping[str, float] = {}
        self._phases: dict[str, float] = {}
        self._tokens = 0.0
        self._mfu: dict[str, float] = {}
        self._peak: float | None = None
        self._loaded: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start, self._rollouts, self._phases = None, {}, {}
        self._peak = peak_rate(trainer.strategy.root_device)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log the figures of the previous iteration, which has now ended."""
        if self._start is not None:
            log_scalars(pl_module, self._figures())
        elif self._loaded:
            log_scalars(pl_module, self._loaded)
        self._start, self._loaded = time.perf_counter(), {}

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        """Store the phases of this iteration; log nothing yet."""
        rollouts = batch.rollouts
        # not a copy: waiting for the next batch is measured after this hook
        self._rollouts = rollouts.seconds
        told: Mapping[str, Any] = outputs if isinstance(outputs, Mapping) else {}
        self._phases = {"update": told["seconds_update"]} if "seconds_update" in told else {}
        sums = sum_over_ranks({"tokens": float(rollouts.lengths.sum()), "flop": told.get("flop_update", 0.0)})
        self._tokens, self._mfu = sums["tokens"], {}
        if self._peak and sums["flop"] and "update" in self._phases:
            possible = self._peak * trainer.world_size * self._phases["update"]
            self._mfu = {"throughput/mfu": sums["flop"] / possible}
        return {}

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_start = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._phases["validate"] = time.perf_counter() - self._validation_start

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the figures of the last iteration, which no batch follows."""
        if self._start is not None:
            self._log_last(trainer, self._figures())
            self._start = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the figures of the checkpoint if no iteration has followed."""
        if self._loaded:
            self._log_last(trainer, self._loaded)
            self._loaded = {}

    def _log_last(self, trainer: Trainer, figures: Mapping[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(dict(figures), step=current_iteration(trainer) + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the figures of the last iteration, which are not logged yet; empty before any iteration."""
        if self._start is None or not self._rollouts:
            return {}
        return {"figures": {name: float(x) for name, x in self._figures().items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the figures of a checkpoint, to be logged in the next iteration."""
        self._loaded = dict(state_dict["figures"])

    def _figures(self) -> dict[str, float]:
        assert self._start is not None
        total = time.perf_counter() - self._start
        phases = {**self._rollouts, **self._phases}
        figures = {f"seconds/{phase}": seconds for phase, seconds in phases.items()}
        figures |= {"seconds/other": total - sum(phases.values()), "seconds/iteration": total}
        return figures | self._mfu | {"throughput/tokens_per_second": self._tokens / total}


def peak_rate(device: torch.device) -> float | None:
    """Return the peak FLOP/s of a device; None if unknown.

    For a GPU, return the bfloat16 rate in `PEAKS`. For a CPU, measure the float32 rate.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return next((rate for part, rate in PEAKS.items() if part in name), None)
    if device.type != "cpu":
        return None
    square, fastest = torch.ones(1024, 1024), float("inf")
    for _ in range(4):
        start = time.perf_counter()
        square @ square
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * 1024**3 / fastest
