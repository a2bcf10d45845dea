"""Two phases of a resume: compare the checkpoint with the built run; write files when training begins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.directory import value_at

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor

    from ..settings.config import Run

TABLES = ("metrics.csv", "embedding_diversity.csv")
"""Tables in the directory of a run that a resume cuts back to its checkpoint."""

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
"""Entries in the states of torch's optimizers that have the shape of the parameter."""


def iterations_done(content: Mapping[str, Any]) -> int:
    """Return the number of iterations done at a checkpoint; 0 if it has no state of `Checkpointer`."""
    return int(value_at(content, "callbacks", "Checkpointer", "iterations") or 0)


def check_resume(run: Run, checkpoint: Path, content: Mapping[str, Any]) -> None:
    """Check that a run can continue from a checkpoint, without writing anything.

    Args:
        run: The built run.
        checkpoint: Path of the checkpoint, for messages.
        content: Result of `content_of` for the checkpoint.

    Raises:
        ValueError: if the checkpoint belongs to a run with another model, tokenizer or seed, or with other
            questions; if an entry has a wrong type; or if a table of the run can't be read.
    """
    import torch

    from ..callbacks import Checkpointer
    from ..digests import bit_sums, json_digest
    from ..files import read_csv
    from ..foreign import ForeignDataError, read
    from ..packing.policy import CausalPolicy
    from ..runs.checkpoints import REMEDY, DataState, LoaderState, ModuleState

    data = run.datamodule
    source = f"the checkpoint {checkpoint}"
    saves = any(isinstance(callback, Checkpointer) for callback in run.trainer.callbacks)  # type: ignore[attr-defined]
    if saves and "Checkpointer" not in content.get("callbacks", {}):
        raise ForeignDataError(
            f"Expected {source} to have callbacks.Checkpointer, which has the number of iterations, but it "
            f"is missing. {REMEDY}"
        )
    name = type(data).__qualname__
    tokenizer = read(DataState, content.get(name, {}), source=f"{name} of {source}", remedy=REMEDY).tokenizer
    loaded = read(ModuleState, content, source=source, remedy=REMEDY).loaded
    if tokenizer not in ("", data.tokenizer_digest):
        raise ValueError(
            f"Expected the tokenizer of the run in {checkpoint}, but data.tokenizer={data.tokenizer_path} "
            "differs. Resume with the data.tokenizer and model.path of that run."
        )
    fit_loop = value_at(content, "loops", "fit_loop", "state_dict")
    loaders = fit_loop.get("combined_loader", []) if isinstance(fit_loop, Mapping) else []
    for state in read(list[LoaderState], loaders, source=f"combined_loader of {source}", remedy=REMEDY):
        # of the copy alone, which no trainer has
        copy(data).train_dataloader().load_state_dict(state.model_dump())
    with torch.random.fork_rng(devices=[]):
        model = run.module.load_model()
    if loaded not in ("", json_digest(bit_sums(model))):
        raise ValueError(
            f"Expected the model that the run in {checkpoint} began with, but the weights at model.path="
            f"{run.module.model_path} differ. Resume with the model.path of that run; for a new run set "
            "another name=…"
        )
    # as the module that wrote the checkpoint calls it
    policy = torch.nn.ModuleDict({"policy": CausalPolicy(model)})
    _check_shapes(checkpoint, content["state_dict"], policy.state_dict())
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    _check_moments(checkpoint, content.get("optimizer_states", []), trained)
    for name in TABLES:
        read_csv(run.directory / name)


def _check_shapes(checkpoint: Path, stored: Mapping[str, Any], built: Mapping[str, Any]) -> None:
    """Check that a checkpoint has the names, shapes and dtypes of the policy's parameters (`_kind_of`)."""
    then = {name: _kind_of(tensor) for name, tensor in stored.items()}
    now = {name: _kind_of(tensor) for name, tensor in built.items()}
    differ = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if differ:
        name = differ[0]
        raise ValueError(
            f"Expected {checkpoint} to have the parameters of the model at model.path, but {len(differ)} "
            f"differ: {name} is {then.get(name, 'missing')} there and {now.get(name, 'missing')} here. "
            "Resume with the model.path and the lora settings of that run."
        )


def _check_moments(checkpoint: Path, states: Sequence[Mapping[str, Any]], trained: Sequence[Tensor]) -> None:
    """Check that a checkpoint's optimizer has finite values, and moments in the shapes of the parameters.

    The optimizer would accept another state, and then fail at its first step or make parameters NaN.
    """
    import torch

    from ..runs.checkpoints import REMEDY

    for state in states:
        for row, entries in state.get("state", {}).items():
            for name, value in entries.items() if isinstance(entries, Mapping) else ():
                if not isinstance(value, torch.Tensor):
                    continue
                place = f"optimizer_states of {checkpoint} to have {name} of parameter {row}"
                if value.is_floating_point() and not value.isfinite().all():
                    raise ValueError(f"Expected {place} in finite numbers, but some are not. {REMEDY}")
                known = isinstance(row, int) and 0 <= row < len(trained)
                if name in MOMENTS and known and value.shape != trained[row].shape:
                    shapes = f"{list(trained[row].shape)}, but got {list(value.shape)}"
                    raise ValueError(f"Expected {place} in the shape {shapes}. {REMEDY}")


def _kind_of(tensor: Any) -> str:
    """Return the dtype and shape of a tensor as text, with `float` for all dtypes that loading converts."""
    return f"{'float' if tensor.is_floating_point() else tensor.dtype} {list(tensor.shape)}"


def when_it_begins(trainer: Trainer, commit: Callable[[], None]) -> None:
    """Make a trainer call `commit` when training or a test begins, or when a fit without steps ends.

    Until then, a wrong checkpoint, strategy or machine can still stop the run. `commit` may be called several
    times.
    """
    from lightning.pytorch import Callback

    from ..runs.scalars import Stage, in_order

    class Commit(Callback):
        stage = Stage.CHECKPOINT  # behind the Checkpointer, which compares the ranks first

        def commit(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
            commit()

        on_train_start = on_fit_end = on_test_start = commit

    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    trainer.callbacks = in_order([*callbacks, Commit()])  # type: ignore[attr-defined]


@contextmanager
def restoring(checkpoint: Path | None, begun: Callable[[], bool]) -> Iterator[None]:
    """Add the checkpoint's path to errors in the block, which restores the state from the checkpoint.

    Raises:
        RuntimeError: if the block raises an error before training has begun.
    """
    try:
        yield
    except Exception as error:
        if checkpoint is None or begun() or str(error).startswith("Expected"):
            raise
        from ..runs.checkpoints import REMEDY

        reason = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(".")
        raise RuntimeError(
            f"Expected training to continue from {checkpoint}, but it could not be restored: {reason}. {REMEDY}"
        ) from error


@contextmanager
def log_held_back() -> Iterator[Callable[[], None]]:
    """Buffer messages for log files during the block, and yield a function that writes these messages.

    The messages are discarded if the function is not called.
    """
    root = logging.getLogger()
    held = {
        handler: MemoryHandler(1_000_000, logging.CRITICAL + 1, handler, flushOnClose=False)
        for handler in root.handlers
        if isinstance(handler, logging.FileHandler)
    }
    for handler, memory in held.items():
        for each in handler.filters:
            memory.addFilter(each)
        root.removeHandler(handler)
        root.addHandler(memory)

    def release() -> None:
        for handler, memory in held.items():
            memory.flush()
            root.removeHandler(memory)
            if handler not in root.handlers:
                root.addHandler(handler)

    try:
        yield release
    finally:
        for memory in held.values():
            memory.buffer.clear()
        release()
