"""Progress of a run, in one line every few seconds."""

import math
import time
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from .shared import current_iteration, total_iterations

FIGURES = (
    ("rollout/correct_original", "correct on originals {:.2f}"),
    ("rollout/reward", "reward {:.2f}"),
    ("zero_gradient/without_gradient", "without gradient {:.0f} %"),
    ("rollout/length", "{:.0f} tokens"),
)
"""Scalar → its format in the line; scalars that were not logged are left out."""


class IterationProgress(ProgressBar):
    """Progress bar that prints the iteration, `FIGURES` and the time left; in a test, the batch.

    A resumed run continues the count. The time left is estimated from the mean duration of iterations in this
    process.

    Args:
        seconds: Seconds between two lines; the first and the last line are always printed.
    """

    shapes_learning = False

    def __init__(self, seconds: float = 5.0) -> None:
        super().__init__()
        self.seconds = seconds
        self._enabled = True
        self._began, self._said = 0.0, -math.inf
        self._seen = 0

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen, self._began, self._said = 0, time.monotonic(), -math.inf

    on_test_start = on_train_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._seen += 1
        done, total = current_iteration(trainer) + 1, total_iterations(trainer, pl_module)
        logged = trainer.callback_metrics
        figures = [text.format(float(logged[name])) for name, text in FIGURES if name in logged]
        if total is not None:
            left = max(total - done, 0) * (time.monotonic() - self._began) / self._seen
            figures.append(f"{timedelta(seconds=round(left))} left")
        self._say("iteration", done, total, figures)

    def on_test_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._seen += 1
        self._say("test batch", self._seen, int(sum(trainer.num_test_batches)), [])

    def _say(self, what: str, done: int, total: int | None, figures: list[str]) -> None:
        if self._enabled and (done == total or time.monotonic() - self._said >= self.seconds):
            self._said = time.monotonic()
            place = f"{what} {done}" if total is None else f"{what} {done}/{total}"
            print(" · ".join([place, *figures]), flush=True)
