"""Functions and classes shared by several callbacks."""

import math
import re
from collections.abc import Mapping, MutableMapping, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..distributed import gather_objects
from ..files import write_json
from ..metrics import MeanByName
from ..runs.scalars import log_scalars
from ..types import Fields, SampledPolicy


def check_at_least_one(callback: str, **settings: int | None) -> None:
    """Raise a ValueError if a setting of a callback is below 1; None is allowed."""
    for name, value in settings.items():
        if value is not None and value < 1:
            raise ValueError(
                f"Expected callbacks.{callback}.{name} to be at least 1, but got {value}. Correct it."
            )


def current_iteration(trainer: Trainer) -> int:
    """Return the index of the current training batch over all epochs and resumes; −1 before any batch."""
    return trainer.fit_loop.total_batch_idx


def another_follows(trainer: Trainer, updates: int = 0, number: int = 1) -> bool:
    """Return whether at least `number` batches follow the current one, if no optimizer step is skipped.

    `updates` is the number of optimizer steps per batch; 0 if the current batch has made its steps.
    """
    if 0 <= trainer.max_steps <= trainer.global_step + number * updates:
        return False
    if trainer.max_epochs is None or trainer.max_epochs < 0:
        return True
    epochs = trainer.max_epochs - trainer.current_epoch
    left = epochs * trainer.num_training_batches - trainer.fit_loop.epoch_loop.batch_idx - 1
    return left >= number and not (trainer.is_last_batch and epochs <= 1)


def updates_of(module: LightningModule) -> int:
    """Return the number of optimizer steps that a module makes per batch, if no step is skipped."""
    return module.mini_batches if isinstance(module, SampledPolicy) else 1


def total_iterations(trainer: Trainer, module: LightningModule) -> int | None:
    """Return the number of iterations of the whole run, if no update is skipped; None without a limit."""
    limits = [math.ceil(trainer.max_steps / updates_of(module))] if trainer.max_steps >= 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        limits.append(trainer.max_epochs * int(trainer.num_training_batches))
    return min(limits, default=None)


def write_evaluation(
    trainer: Trainer, name: str, head: Mapping[str, Any], content: Mapping[str, Any]
) -> None:
    """Write `<name>.json` to the run directory, and to `evaluations/<name>-<iterations trained>.json`."""
    if trainer.is_global_zero:
        iteration = current_iteration(trainer) + 1
        content = {**head, "iteration": iteration, "global_step": trainer.global_step, **content}
        folder = Path(trainer.default_root_dir)
        write_json(folder / "evaluations" / f"{name}-{iteration:06d}.json", content)
        write_json(folder / f"{name}.json", content)


def keep_questions(batch: Any, keep: Sequence[bool]) -> None:
    """Remove the questions whose `keep` is false from `batch`, in place, before it has rollouts.

    The batch and its prompts may be objects or mappings, as `Fields` reads them.
    """
    row_of = {row: new for new, row in enumerate(row for row, kept in enumerate(keep) if kept)}
    mapping = isinstance(batch, MutableMapping)
    groups, prompts = (batch[name] if mapping else getattr(batch, name) for name in ("groups", "prompts"))
    groups = [groups[row] for row in row_of]
    before, prompts = prompts, []
    for prompt in before:
        question = Fields("prompt", prompt).question
        if question in row_of:
            prompts.append(_with_question(prompt, row_of[question]))
    if mapping:
        batch["groups"], batch["prompts"] = groups, prompts
    else:
        batch.groups, batch.prompts = groups, prompts


def _with_question(prompt: Any, question: int) -> Any:
    """Return a copy of a prompt that refers to the question in row `question`."""
    if isinstance(prompt, Mapping):
        return {**prompt, "question": question}
    if hasattr(prompt, "_replace"):
        return prompt._replace(question=question)
    changed = copy(prompt)
    changed.question = question
    return changed


def batch_means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of each name's values over all ranks, as `MeanByName` computes it.

    Ranks may have different names. Collective.
    """
    parts = gather_objects({name: column.detach().cpu() for name, column in values.items()})
    means = MeanByName(dict.fromkeys(chain(*parts)), sync_on_compute=False)
    for part in parts:
        means.update(part)
    return means.compute()


class BatchDiagnostic(Callback):
    """Callback that logs the result of `measure` for each training batch."""

    shapes_learning = False

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> Mapping[str, float]:
        """Compute scalars from a batch and the training step's output; return them by name. Collective."""
        raise NotImplementedError

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        log_scalars(pl_module, self.measure(trainer, Fields("batch", batch), outputs))


def delete_later(trainer: Trainer, pattern: str, after: int) -> None:
    """Delete the files that an earlier attempt left of iterations above `after`.

    The iteration is read from the name of a file, where it has six or more digits.
    """
    for path in Path(trainer.default_root_dir).glob(pattern) if trainer.is_global_zero else ():
        if (number := re.search(r"\d{6,}", path.name)) and int(number[0]) > after:
            path.unlink()


def advantages_of(outputs: Any) -> Tensor:
    """Return the advantages in the training step's output, [R] on the CPU.

    Raises:
        TypeError: if the training step returned no advantages.
    """
    if not isinstance(outputs, Mapping) or "advantages" not in outputs:
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            "Expected training_step to return a mapping with `advantages` ([R], one per rollout), but got "
            f"{found}. Return them, or leave this callback out."
        )
    advantages: Tensor = outputs["advantages"]
    return advantages.detach().cpu()


def reference_texts(answer: Any) -> list[str]:
    """Return reference answers as strings; `answer` may also be a single value of any type."""
    return [str(one) for one in answer] if isinstance(answer, tuple | list) else [str(answer)]
