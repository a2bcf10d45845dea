"""Progress of a run: a bar in a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from .shared import current_iteration, total_iterations

FIGURES = (
    ("rollout/correct_original", "correct on originals {:.2f}"),
    ("rollout/reward", "reward {:.2f}"),
    ("zero_gradient/without_gradient", "without gradient {:.0f} %"),
    ("rollout/length", "{:.0f} tokens"),
)
"""Scalar → how it is shown, as far as it is logged."""
RECENT = 20
"""Iterations whose mean duration tells the time left."""


class IterationProgress(ProgressBar):
    """Shows iterations, what they are like (`FIGURES`) and the time left; of a test, its batches.

    Counts go on where a resumed run does. In a terminal, what is logged or printed meanwhile stands above the bar.

    Args:
        seconds: Between two lines, where the output is no terminal; the first and the last are always written.
        console: Where to write; None is the standard output.
    """

    def __init__(self, seconds: float = 5.0, console: Console | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self._console = console or Console()
        self._enabled = True
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._began, self._said = 0.0, -math.inf
        self._durations: deque[float] = deque(maxlen=RECENT)
        self._tested = self._to_test = 0

    def disable(self) -> None:
        """Show nothing from now on; Lightning asks for it on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin where the run is."""
        self._durations.clear()
        self._began = time.monotonic()
        self._open("iteration", current_iteration(trainer) + 1, total_iterations(trainer, pl_module))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the iteration."""
        now = time.monotonic()
        self._durations.append(now - self._began)
        self._began = now
        done, total = current_iteration(trainer) + 1, total_iterations(trainer, pl_module)
        logged = trainer.callback_metrics
        figures = [text.format(float(logged[name])) for name, text in FIGURES if name in logged]
        if total is not None:
            left = (total - done) * sum(self._durations) / len(self._durations)
            figures.append(f"{timedelta(seconds=round(left))} left")
        self._show("iteration", done, total, " · ".join(figures))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the time of a validation out of that of an iteration."""
        self._began = time.monotonic()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End."""
        self._close()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with the first batch of the test."""
        self._tested, self._to_test = 0, int(sum(trainer.num_test_batches))
        self._open("test batch", 0, self._to_test)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Show the batch."""
        self._tested += 1
        self._show("test batch", self._tested, self._to_test, "")

    on_test_end = on_train_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back."""
        self._close()

    def _open(self, what: str, done: int, total: int | None) -> None:
        self._close()
        self._said = -math.inf
        if not self._enabled or not self._console.is_terminal:
            return
        columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[figures]}"))
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(_place(what, done, total), total=total, completed=done, figures="")
        before = sys.stdout, sys.stderr
        self._bar.start()
        # Handlers of logs keep the stream that they were made with, and would write into the bar.
        for handler in _handlers():
            if handler.stream in before:
                self._handlers.append((handler, handler.stream))
                handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)

    def _show(self, what: str, done: int, total: int | None, figures: str) -> None:
        if self._bar is not None:
            place = _place(what, done, total)
            self._bar.update(self._task, completed=done, total=total, description=place, figures=figures)
        elif self._enabled and (done == total or time.monotonic() - self._said >= self.seconds):
            self._said = time.monotonic()
            line = " · ".join(filter(None, (_place(what, done, total), figures)))
            self._console.print(line, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        if self._bar is not None:
            for handler, stream in self._handlers:
                handler.setStream(stream)
            self._handlers.clear()
            self._bar.stop()
            self._bar = None


def _place(what: str, done: int, total: int | None) -> str:
    return f"{what} {done}/{total}" if total is not None else f"{what} {done}"


def _handlers() -> set[logging.StreamHandler[Any]]:
    """The handlers of all loggers that write to a stream."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {handler for logger in loggers for handler in logger.handlers if isinstance(handler, logging.StreamHandler)}
