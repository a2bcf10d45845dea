"""Helpers of several diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from ..types import SampledPolicy


def current_iteration(trainer: Trainer) -> int:
    """Number of the current training batch, from 0 over all epochs and resumes; −1 before the first."""
    return trainer.fit_loop.total_batch_idx


def another_follows(trainer: Trainer, updates: int = 0) -> bool:
    """Whether another batch follows this one, on which `updates` more optimizer steps are made if none is skipped."""
    if 0 <= trainer.max_steps <= trainer.global_step + updates:
        return False
    epochs = trainer.max_epochs
    return not (trainer.is_last_batch and epochs is not None and 0 <= epochs <= trainer.current_epoch + 1)


def updates_of(module: LightningModule) -> int:
    """Optimizer steps that a module makes on each batch, if none is skipped."""
    return module.mini_batches if isinstance(module, SampledPolicy) else 1


def total_iterations(trainer: Trainer, module: LightningModule) -> int | None:
    """Iterations of the whole run, where no update is skipped; None where nothing limits them."""
    limits = [trainer.max_steps // updates_of(module)] if trainer.max_steps >= 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        limits.append(trainer.max_epochs * int(trainer.num_training_batches))
    return min(limits, default=None)


def of_this_batch(metric: Metric, *arguments: Any) -> Any:
    """The value of `metric` over one batch of all ranks. Collective."""
    metric.update(*arguments)
    value = metric.compute()
    metric.reset()
    return value


def advantages_of(outputs: Any) -> Tensor:
    """[R] advantages that the training step returned, on the CPU.

    Raises:
        TypeError: there are none in `outputs`.
    """
    if not isinstance(outputs, Mapping) or "advantages" not in outputs:
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            f"Expected training_step to return a mapping with `advantages` ([R], one per rollout), but got {found}. "
            "Return them, or leave this callback out."
        )
    advantages: Tensor = outputs["advantages"]
    return advantages.detach().cpu()
