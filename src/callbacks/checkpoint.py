"""Checkpoints between iterations, and an orderly end when the machine is wanted back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from ..checkpoints import AtomicCheckpointIO, checkpoints_in, name_of, remove, set_aside
from ..distributed import gather_objects, max_over_ranks, rank, world_size
from ..preemption import StopRequest
from ..rollouts.cache import RolloutCache
from ..scalars import forget_logged
from .rollout import RolloutCallback


class Checkpointer(Callback):
    """Writes a checkpoint every few iterations, and keeps the newest ones.

    It writes when an iteration is over: after its update, its log and the validation that follows it, before the next
    batch changes anything. What goes on from there repeats nothing and leaves nothing out; Lightning's own
    `ModelCheckpoint` writes before the log and the validation, which a resumed run then never makes up for. Put it
    first among the callbacks.

    Beside what Lightning saves (weights, optimizer, schedule, loops, loader, states of callbacks) a checkpoint holds
    the random states of torch, numpy and Python on every rank, and the `state_dict` of each logger that has one.

    SIGTERM or SIGUSR1 to any rank: all ranks finish the iteration that they are at, write a checkpoint, and leave by
    `SystemExit`, with exit code 0. During a test there is nothing to write. An error while a batch is being sampled
    also leaves a checkpoint of the state before that batch, where there is a single process.

    Rollouts of the iterations since the last checkpoint lie in `rollout_cache`, and are taken from there when a run
    goes on with the same weights. An update that is not reproducible to the bit, as on GPUs, leaves only those of the
    first iteration after the checkpoint to be used; where rollouts are dear, write one after each (`every=1`).

    Args:
        every: Iterations between checkpoints; there is also one at the end of training.
        keep: Newest checkpoints that are kept; two, so that one is left should the disk damage the other. None: all.
        directory: Where to write; None is `checkpoints` in the trainer's `default_root_dir`.
        keep_rollouts: Whether rollouts are kept on disk until a checkpoint covers them.

    Raises:
        ValueError: `every` or `keep` is less than 1.
    """

    def __init__(
        self,
        every: int = 10,
        keep: int | None = 2,
        directory: str | Path | None = None,
        keep_rollouts: bool = True,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"Expected callbacks.checkpoint.{name} to be at least 1, but got {value}.")
        self.every = every
        self.keep = keep
        self.directory = Path(directory) if directory is not None else None
        self.keep_rollouts = keep_rollouts
        self.stop = StopRequest()
        self._done = 0
        self._epoch = 0
        self._saved_at = 0
        self._progress: dict[str, Any] | None = None
        self._saving = False
        self._states_to_save: dict[str, Any] = {}
        self._before: dict[str, Any] | None = None
        self._loggers: list[Any] = []
        self._rng_to_restore: dict[str, Any] | None = None

    def directory_of(self, trainer: Trainer) -> Path:
        """Where the checkpoints of `trainer` are."""
        return self.directory or Path(trainer.default_root_dir) / "checkpoints"

    def _rollout_callbacks(self, trainer: Trainer) -> list[RolloutCallback]:
        callbacks = trainer.callbacks if self.keep_rollouts else []  # type: ignore[attr-defined]
        return [callback for callback in callbacks if isinstance(callback, RolloutCallback)]

    # ------------------------------------------------------------------ beginning

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """See to it that a checkpoint is written at once, and rollouts are kept."""
        self._loggers = list(trainer.loggers)
        if stage == "fit":
            self._done, self._saved_at, self._progress, self._rng_to_restore = 0, 0, None, None
            if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
                trainer.strategy.checkpoint_io = AtomicCheckpointIO()
            for callback in self._rollout_callbacks(trainer):
                callback.pipeline.cache = RolloutCache(self.directory_of(trainer).with_name("rollout_cache"))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to signals; set checkpoints of another course aside."""
        self.stop.listen()
        if trainer.is_global_zero:
            set_aside(self.directory_of(trainer), self._done)
        trainer.strategy.barrier()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to signals."""
        self.stop.listen()

    # ------------------------------------------------------------------ safe points

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Between two iterations: save when it is time, leave when asked to.

        Raises:
            SIGTERMException: a rank was asked to stop; a `SystemExit` with code 0.
        """
        forget_logged(trainer)
        if self._rng_to_restore is not None:
            set_rng_state(self._rng_to_restore)
            self._rng_to_restore = None
        stopping = max_over_ranks(self.stop.received) > 0
        if stopping or self._done % self.every == 0:
            self.save(trainer)
        if stopping:
            rank_zero_info(f"Asked to stop: left after {self._done} iterations. Go on with resume=last.")
            raise SIGTERMException
        if world_size() == 1:
            self._before = self._states(trainer)

    def _states(self, trainer: Trainer) -> dict[str, Any]:
        """What the callbacks and the data module would put into a checkpoint now."""
        states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        return {
            "callbacks": {key: state for key, state in states.items() if state},
            **({type(datamodule).__qualname__: state} if datamodule and (state := datamodule.state_dict()) else {}),
        }

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Leave when asked to: all that was trained is saved.

        Raises:
            SIGTERMException: as in training.
        """
        if max_over_ranks(self.stop.received) > 0:
            raise SIGTERMException

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note how far loops and loader are: Lightning resumes from the end of a batch, and from nowhere else."""
        self._done = trainer.fit_loop.total_batch_idx + 1
        self._progress = trainer.fit_loop.state_dict()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what was trained."""
        self._epoch = trainer.current_epoch
        self.save(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the last epoch and iteration where there was nothing left to train, as the run that trained did."""
        if self._progress is None and self._done:
            trainer.fit_loop.epoch_progress.current.completed = self._epoch
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._done

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save when the policy is still what it was when the last iteration ended."""
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        sampling = trainer.training and batches.ready == self._done + 1 and batches.started == self._done
        # Several ranks: the others wait in collectives that this one has left. Nothing can be saved with them.
        if sampling and self._before is not None and not self._saving:
            self.save(trainer, self._before)

    # ------------------------------------------------------------------ saving and loading

    def save(self, trainer: Trainer, states: dict[str, Any] | None = None) -> None:
        """Write a checkpoint of the iterations done, unless there is one, then delete the oldest. Collective.

        Args:
            trainer: Its state is written.
            states: States of callbacks and data module to write in the place of their present ones.
        """
        if self._progress is None or self._saved_at == self._done:
            return
        directory = self.directory_of(trainer)
        self._saving, self._states_to_save = True, states or {}
        try:
            trainer.save_checkpoint(directory / name_of(self._done))
        finally:
            self._saving = False
        self._saved_at = self._done
        for callback in self._rollout_callbacks(trainer):
            callback.pipeline.checkpointed()
        if trainer.is_global_zero and self.keep is not None:
            for path in checkpoints_in(directory)[: -self.keep]:
                remove(path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the loops back to where the last batch ended; the next batch may have been fetched since."""
        if self._saving:
            checkpoint["loops"]["fit_loop"] = self._progress
            checkpoint.update(self._states_to_save)

    def state_dict(self) -> dict[str, Any]:
        """Iterations done, epochs at the end of training, random states of all ranks, states of loggers. Collective."""
        return {
            "iterations": self._done,
            "epoch": self._epoch,
            "rng": gather_objects(rng_state()),
            "loggers": {
                type(logger).__name__: logger.state_dict() for logger in self._loggers if hasattr(logger, "state_dict")
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting and logging; random states are restored right before the next batch."""
        self._done = self._saved_at = state_dict["iterations"]
        self._epoch = state_dict["epoch"]
        states = state_dict["rng"]
        if len(states) == world_size():
            self._rng_to_restore = states[rank()]
        else:
            rank_zero_warn(
                f"The checkpoint has random states of {len(states)} ranks, but there are {world_size()} now: they "
                "begin anew."
            )
        for logger in self._loggers:
            if type(logger).__name__ in state_dict["loggers"] and hasattr(logger, "load_state_dict"):
                logger.load_state_dict(state_dict["loggers"][type(logger).__name__])


def rng_state() -> dict[str, Any]:
    """Random states of Python, numpy and torch in this process, as plain containers and tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 (the global state is what is meant)
    state = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def set_rng_state(state: dict[str, Any]) -> None:
    """Put back what `rng_state` returned."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, numbers, *rest = state["numpy"]
    np.random.set_state((name, numbers.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
