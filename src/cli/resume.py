"""The two phases of a resume: compare the checkpoint with the built run, and write once training begins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.directory import value_at

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from ..settings.config import Run

TABLES = ("metrics.csv", "embedding_diversity.csv")
"""Tables in the directory of a run that a resume cuts back to its checkpoint."""


def iterations_done(content: Mapping[str, Any]) -> int:
    """Return the number of iterations that a checkpoint has seen; 0 if no `Checkpointer` has written it."""
    return int(value_at(content, "callbacks", "Checkpointer", "iterations") or 0)


def check_resume(run: Run, checkpoint: Path, content: Mapping[str, Any]) -> None:
    """Check that a run can continue from an intact checkpoint. Write nothing.

    Args:
        run: The built run.
        checkpoint: Path of the checkpoint, which errors name.
        content: What `content_of` returns for the checkpoint.

    Raises:
        ValueError: if the checkpoint belongs to a run with another model, tokenizer, seed or other questions, or if a
            table of the run can't be read.
    """
    import torch

    from ..digests import bit_sums, json_digest
    from ..files import read_csv
    from ..packing.policy import CausalPolicy

    data = run.datamodule
    tokenizer = value_at(content, type(data).__qualname__, "tokenizer")
    if tokenizer not in (None, data.tokenizer_digest):
        raise ValueError(
            f"Expected the tokenizer of the run in {checkpoint}, but data.tokenizer={data.tokenizer_path} differs. "
            "Resume with the data.tokenizer and model.path of that run."
        )
    loaders = value_at(content, "loops", "fit_loop", "state_dict", "combined_loader") or []
    for state in loaders:
        copy(data).train_dataloader().load_state_dict(state)  # of the copy alone, which no trainer has
    with torch.random.fork_rng(devices=[]):
        model = run.module.load_model()
    if content.get("loaded") not in (None, json_digest(bit_sums(model))):
        raise ValueError(
            f"Expected the model that the run in {checkpoint} began with, but the weights at model.path="
            f"{run.module.model_path} differ. Resume with the model.path of that run; for a new run set "
            "another name=…"
        )
    policy = torch.nn.ModuleDict({"policy": CausalPolicy(model)})  # as the module that wrote the checkpoint calls it
    _check_shapes(checkpoint, content["state_dict"], policy.state_dict())
    for name in TABLES:
        read_csv(run.directory / name)


def _check_shapes(checkpoint: Path, stored: Mapping[str, Any], built: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose parameters have other names or shapes than those of the policy."""
    then = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    now = {name: tuple(tensor.shape) for name, tensor in built.items()}
    differ = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if differ:
        name = differ[0]
        raise ValueError(
            f"Expected {checkpoint} to have the parameters of the model at model.path, but {len(differ)} differ: "
            f"{name} has shape {then.get(name, 'none')} there and {now.get(name, 'none')} here. Resume with the "
            "model.path and the lora settings of that run."
        )


def when_it_begins(trainer: Trainer, commit: Callable[[], None]) -> None:
    """Have a trainer call `commit` when training or a test begins, or when a fit without steps ends.

    Until then a wrong checkpoint, strategy or machine can still refuse the run. `commit` may be called several times.
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
def log_held_back() -> Iterator[Callable[[], None]]:
    """Buffer what is logged to files, and yield a function that writes the buffer; without a call it is lost."""
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
