"""Order callbacks, and collect the scalars of an iteration or an evaluation for the loggers."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn


class Stage(IntEnum):
    """Position of a callback among all callbacks, declared by the callback's class attribute `stage`."""

    CHECKPOINT = 0  # before the others change anything
    CLOCK = 1  # measures the others
    # reads and logs, in the order in which they were given; for callbacks that declare no stage
    DIAGNOSTIC = 2
    ROLLOUT = 3  # samples, once the others have prepared the batch
    LOG = 4  # writes what the others have logged


def in_order(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return callbacks sorted by stage, the order that a `Trainer` needs."""
    return sorted(callbacks, key=lambda callback: getattr(callback, "stage", Stage.DIAGNOSTIC))


def log_scalars(module: LightningModule, values: Mapping[str, float]) -> None:
    """Log scalars by name.

    Call this function in a hook around a training batch, in a training step, or at the end of an evaluation.
    The values are added to the trainer's `ScalarLog`, or passed to `module.log_dict` in a project without
    `ScalarLog`.
    """
    for callback in module.trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ScalarLog):
            callback.add(module.trainer, values)
            return
    module.log_dict(dict(values))


class ScalarLog(Callback):
    """Collector that sends the scalars of an iteration or evaluation to every logger as one row.

    In iterations that do not log a scalar, `LightningModule.log` would repeat the scalar's last value until
    the epoch ends. A resumed run could not repeat values from before its checkpoint.
    """

    stage = Stage.LOG
    shapes_learning = False

    def __init__(self) -> None:
        self._row: dict[str, float] = {}

    def add(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        """Add scalars to the row, as float32, like Lightning."""
        tensors = torch.tensor(list(values.values()), dtype=torch.float32)
        trainer.callback_metrics.update(zip(values, tensors.unbind(), strict=True))
        self._row.update(zip(values, tensors.tolist(), strict=True))

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the row if the iteration is a multiple of `log_every_n_steps`."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        step = trainer.fit_loop.total_batch_idx
        if every and ((step + 1) % every == 0 or trainer.should_stop):
            self._write(trainer, step)
        self._row = {}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the evaluation's row.

        During training, the row has the step of the previous iteration. Outside of training, its step is the
        number of iterations so far, or 0 if this trainer has run no iteration.
        """
        self._write(trainer, trainer.fit_loop.total_batch_idx + (trainer.state.fn != TrainerFn.FITTING))

    on_test_epoch_end = on_validation_epoch_end

    def _write(self, trainer: Trainer, step: int) -> None:
        row, self._row = self._row, {}
        if row:
            for logger in trainer.loggers:
                logger.log_metrics({**row, "epoch": trainer.current_epoch}, step=step)
                logger.save()
