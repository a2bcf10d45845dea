"""Progress of a run: a bar in a terminal; in a file or a notebook, one line every few seconds."""

import math
import sys
import time
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from .shared import current_iteration, total_iterations

FIGURES = (
    ("rollout/correct_original", "correct on originals {:.2f}"),
    ("rollout/reward", "reward {:.2f}"),
    ("zero_gradient/without_gradient", "without gradient {:.0f} %"),
    ("rollout/length", "{:.0f} tokens"),
)
"""Scalar → its format in a printed line; scalars that were not logged are left out."""
BAR_FIGURES = (
    ("rollout/reward", "reward {:.2f}"),
    ("rollout/correct_original", "correct {:.2f}"),
    ("zero_gradient/without_gradient", "without gradient {:.0f} %"),
)
"""Scalar → its format beside a bar. There are fewer than in `FIGURES`, so that a bar fits into 80 columns."""


class IterationProgress(ProgressBar):
    """Progress bar with the iteration, the time left and figures of the iteration; in a test, with the batch.

    In a terminal, a bar is drawn on one line. If the output goes to a file or a notebook, lines are printed.
    A resumed run continues the count. The time left is estimated from the mean duration of iterations in this
    process.

    Args:
        seconds: Seconds between two printed lines; the first and the last line are always printed. A bar is
            drawn at every iteration.
        bar: Whether to draw a bar; None draws one if standard output is a terminal.
    """

    shapes_learning = False

    def __init__(self, seconds: float = 5.0, bar: bool | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self.bar = bar
        self._enabled = True
        self._began, self._said = 0.0, -math.inf
        self._seen = 0
        self._drawn: Progress | None = None

    def disable(self) -> None:
        self._enabled = False
        self._close()

    def enable(self) -> None:
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        text = kwargs.get("sep", " ").join(map(str, args))
        if self._drawn is not None:
            self._drawn.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen, self._began, self._said = 0, time.monotonic(), -math.inf
        wanted = sys.stdout.isatty() if self.bar is None else self.bar
        if wanted and self._enabled:
            console = Console(file=sys.stdout, force_terminal=True if self.bar else None)
            self._drawn = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True)),
                console=console,
                auto_refresh=False,
                expand=True,
            )
            self._drawn.start()

    on_test_start = on_train_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._seen += 1
        done, total = current_iteration(trainer) + 1, total_iterations(trainer, pl_module)
        logged = trainer.callback_metrics
        formats = FIGURES if self._drawn is None else BAR_FIGURES
        figures = [text.format(float(logged[name])) for name, text in formats if name in logged]
        self._say("iteration", done, total, figures)

    def on_test_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._seen += 1
        self._say("test batch", self._seen, int(sum(trainer.num_test_batches)), [])

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    on_test_end = on_train_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _say(self, what: str, done: int, total: int | None, figures: list[str]) -> None:
        left = []
        if total is not None:
            seconds = max(total - done, 0) * (time.monotonic() - self._began) / self._seen
            left = [f"{timedelta(seconds=round(seconds))} left"]
        place = str(done) if total is None else f"{done}/{total}"
        if self._drawn is not None:
            self._draw(self._drawn, place, done, total, " · ".join([*left, *figures]))
        elif self._enabled and (done == total or time.monotonic() - self._said >= self.seconds):
            self._said = time.monotonic()
            left = left if what == "iteration" else []
            print(" · ".join([f"{what} {place}", *figures, *left]), flush=True)

    def _draw(self, drawn: Progress, place: str, done: int, total: int | None, figures: str) -> None:
        if not drawn.tasks:
            drawn.add_task("", total=total, figures="")
        drawn.update(
            drawn.tasks[0].id, completed=done, total=total, description=place, figures=figures, refresh=True
        )

    def _close(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None
