"""Checkpoints between iterations, and a clean exit after a signal to stop."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from ..distributed import gather_objects, max_over_ranks, rank, world_size
from ..files import remove
from ..runs.checkpoints import set_aside
from ..runs.directory import checkpoint_name, checkpoints_in
from ..runs.loggers import ResumableLogger
from ..runs.preemption import RECEIVED, asked_to_stop, listen
from ..runs.scalars import Stage
from .rollout import RolloutCallback
from .shared import check_at_least_one, total_iterations


class Checkpointer(Callback):
    """Callback that writes a checkpoint every few iterations, and keeps the newest checkpoints.

    Checkpoints are written to `<default_root_dir>/checkpoints`, between two iterations. (Lightning's
    `ModelCheckpoint` writes before the log and the validation of an iteration, so that a resumed run lacks
    both.) In addition to Lightning's content, a checkpoint contains the random states of torch, numpy and
    Python on every rank, and the state of each `ResumableLogger`.

    When any rank receives SIGTERM or SIGUSR1, all ranks finish their iteration, write a checkpoint, and exit
    with code 0. In a single process, an error while a batch is being sampled also leaves a checkpoint, with
    the state before that batch.

    Responses that servers have sampled since the last checkpoint are kept on disk. A resumed run uses them if
    it has the weights that sampled them (`CachedEngine`). On GPUs, a repeated update does not give the same
    bits. A resumed run can then use only the responses that the checkpoint's own weights sampled, and samples
    later responses again. If rollouts are expensive, use `every=1`.

    Args:
        every: Iterations between checkpoints; a checkpoint is also written at the end of training.
        keep: Number of newest checkpoints to keep. None keeps all.
        fractions: Shares of the run's iterations, above 0 and below 1, at which a checkpoint is also written
            and always kept; see `tagrpo-eval diagnose=`. If a run is extended, its new length counts.

    Raises:
        ValueError: if `every` or `keep` is less than 1, or one of `fractions` is not between 0 and 1.
    """

    stage = Stage.CHECKPOINT
    shapes_learning = False

    def __init__(self, every: int = 10, keep: int | None = 2, fractions: Sequence[float] = ()) -> None:
        check_at_least_one("checkpoint", every=every, keep=keep)
        if not all(0 < fraction < 1 for fraction in fractions):
            raise ValueError(
                "Expected callbacks.checkpoint.fractions to hold numbers between 0 and 1, but got "
                f"{list(fractions)}. Correct it; the checkpoint at the end is kept anyway."
            )
        self.every = every
        self.keep = keep
        self.fractions = tuple(fractions)
        self._done = self._epoch = self._saved_at = 0
        self._progress: dict[str, Any] | None = None
        self._states_to_save: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._loggers: list[ResumableLogger] = []
        self._rng_to_restore: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loggers = [logger for logger in trainer.loggers if isinstance(logger, ResumableLogger)]
        if stage == "fit":
            self._done, self._saved_at, self._progress, self._rng_to_restore = 0, 0, None, None
            RECEIVED.clear()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install signal handlers, and set aside checkpoints of iterations that will be repeated.

        The repeated iterations will not reproduce these checkpoints.

        Raises:
            RuntimeError: if the ranks have not resumed from the same checkpoint.
        """
        listen()
        if len(counts := set(gather_objects(self._done))) > 1:
            raise RuntimeError(
                "Expected all ranks to resume from the same checkpoint, but they are at iterations "
                f"{sorted(counts)}. Give the path of the newest one that all of them can read as `resume`."
            )
        if trainer.is_global_zero:
            set_aside(Path(trainer.default_root_dir) / "checkpoints", self._done)
        trainer.strategy.barrier()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        listen()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Save a checkpoint if one is due, and stop if any rank has received a signal to stop.

        Raises:
            SIGTERMException: if any rank has received a signal to stop. Lightning then ends the run with exit
                code 0.
        """
        if self._rng_to_restore is not None:
            _set_rng_state(self._rng_to_restore)
            self._rng_to_restore = None
        stopping = max_over_ranks(asked_to_stop()) > 0
        if stopping or self._done % self.every == 0 or self._done in self._milestones(trainer):
            self.save(trainer)
        if stopping:
            rank_zero_info(
                f"Asked to stop: the run ends after {self._done} iterations. Continue it with resume=auto."
            )
            raise SIGTERMException
        # Of several ranks the others would wait in collectives; responses under way would have to be waited
        # for.
        pipelines = [c.pipeline for c in trainer.callbacks if isinstance(c, RolloutCallback)]  # type: ignore[attr-defined]
        if world_size() == 1 and not any(pipeline.following.under_way for pipeline in pipelines):
            self._before = self._states(trainer)

    def _milestones(self, trainer: Trainer) -> set[int]:
        """Return the iterations at which `fractions` of the run are done."""
        total = total_iterations(trainer, trainer.lightning_module)
        return set() if total is None else {round(fraction * total) for fraction in self.fractions}

    def _states(self, trainer: Trainer) -> dict[str, Any]:
        """Return the states of the callbacks and the data module, in the form of a checkpoint."""
        states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        return {
            "callbacks": {key: state for key, state in states.items() if state},
            **(
                {type(datamodule).__qualname__: state}
                if datamodule and (state := datamodule.state_dict())
                else {}
            ),
        }

    def on_test_batch_start(self, *_: Any) -> None:
        """Exit if any rank has received a signal to stop; training has been saved."""
        if max_over_ranks(asked_to_stop()) > 0:
            raise SIGTERMException

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Record the state of loops and loader.

        Lightning could not resume in the middle of an epoch from a state that is recorded in a later hook.
        """
        self._done = trainer.fit_loop.total_batch_idx + 1
        self._progress = trainer.fit_loop.state_dict()
        self._before = None  # this state belongs to the weights before the batch

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = trainer.current_epoch
        self.save(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clean up after a fit.

        If nothing was left to train, log this and restore the final epoch. Delete leftovers of a killed run.
        """
        if self._progress is None and self._done:
            rank_zero_info(f"Nothing is left to train: all {self._done} iterations are done.")
            trainer.fit_loop.epoch_progress.current.completed = self._epoch
            self._prune(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save a checkpoint after an error during sampling, since the policy has not changed in the batch."""
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        sampling = trainer.training and batches.ready == self._done + 1 and batches.started == self._done
        if sampling and self._before is not None and self._states_to_save is None:
            self.save(trainer, self._before)

    def save(self, trainer: Trainer, states: dict[str, Any] | None = None) -> None:
        """Write a checkpoint after the iterations done so far, unless this checkpoint exists.

        `states`, if given, replace the present states.
        """
        if self._progress is None or self._saved_at == self._done:
            return
        self._states_to_save = states or {}
        try:
            trainer.save_checkpoint(
                Path(trainer.default_root_dir) / "checkpoints" / checkpoint_name(self._done)
            )
        finally:
            self._states_to_save = None
        self._saved_at = self._done
        self._prune(trainer)

    def _prune(self, trainer: Trainer) -> None:
        """Delete all checkpoints except the newest `keep` and the checkpoints at `fractions`."""
        if trainer.is_global_zero and self.keep is not None:
            folder = Path(trainer.default_root_dir) / "checkpoints"
            for iteration, path in list(checkpoints_in(folder).items())[: -self.keep]:
                if iteration not in self._milestones(trainer):
                    remove(path)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the loops' state that `on_train_batch_end` recorded after the latest batch.

        When the state was recorded, the next batch had not been fetched.
        """
        if self._states_to_save is not None:
            checkpoint["loops"]["fit_loop"] = self._progress
            checkpoint.update(self._states_to_save)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run. Collective.

        The state has the number of iterations done, the epoch at the end of training, the random states of
        all ranks, and the states of loggers.
        """
        return {
            "iterations": self._done,
            "epoch": self._epoch,
            "rng": gather_objects(_rng_state()),
            "loggers": {type(logger).__name__: logger.state_dict() for logger in self._loggers},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore counters and loggers; `on_train_batch_start` restores the random states."""
        self._done = self._saved_at = state_dict["iterations"]
        self._epoch = state_dict["epoch"]
        states = state_dict["rng"]
        if len(states) == world_size():
            self._rng_to_restore = states[rank()]
        else:
            rank_zero_warn(
                f"The checkpoint holds the random states of {len(states)} ranks, but there are "
                f"{world_size()} now: they start from the seed."
            )
        for logger in self._loggers:
            if (state := state_dict["loggers"].get(type(logger).__name__)) is not None:
                logger.load_state_dict(state)


def _rng_state() -> dict[str, Any]:
    """Return the random states of Python, numpy and torch in this process, as containers and tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 (the global state is what is meant)
    state = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _set_rng_state(state: dict[str, Any]) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, numbers, *rest = state["numpy"]
    np.random.set_state((name, numbers.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
