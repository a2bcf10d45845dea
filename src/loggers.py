"""Loggers that a resumed run goes on with: no row twice, none missing."""

from __future__ import annotations

import csv
import os
import secrets
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from .checkpoints import explained


def _on_rank_zero() -> bool:
    # Known from the launcher's environment before there is a process group.
    return getattr(rank_zero_only, "rank", 0) == 0


class MetricsCSV(CSVLogger):
    """`metrics.csv`, which a resumed run cuts back to its checkpoint and then continues.

    Lightning's logger deletes the file when a run goes on, and empties it to write a longer header: a process that dies
    at that moment loses it. Here the file is replaced at once, and a new run replaces an old run's file when it logs
    for the first time.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer on rank 0, a dummy elsewhere."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir)
        return self._experiment

    def state_dict(self) -> dict[str, Any]:
        """Rows so far; forces them to disk."""
        if not _on_rank_zero():
            return {"rows": 0}
        self.save()
        return {"rows": self.experiment.flush()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep as many rows; those after them are logged again."""
        if _on_rank_zero():
            self.experiment.rows = state_dict["rows"]


class _Writer(ExperimentWriter):
    """Appends rows; the file is rewritten, at once, where rows or columns change."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self.rows = 0
        self._begun = False

    def _check_log_dir_exists(self) -> None:
        """Leave the old file until there is something to log."""

    def save(self) -> None:
        """Write what was logged."""
        if self.metrics:
            path = Path(self.metrics_file_path)
            with explained(path):
                self._write(path)
            self.rows += len(self.metrics)
            self.metrics = []

    def _write(self, path: Path) -> None:
        kept: list[dict[str, Any]] | None = None
        if not self._begun:
            self.metrics_keys, kept = _read_rows(path, self.rows)
            self.rows, self._begun = len(kept), True
        if self._record_new_keys() and kept is None:
            kept = _read_rows(path, self.rows)[1]
        if kept is not None:
            partial = path.with_name(f".partial-{path.name}")
            with partial.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.metrics_keys)
                writer.writeheader()
                writer.writerows([*kept, *self.metrics])
            partial.replace(path)
        else:
            with path.open("a", newline="") as file:
                csv.DictWriter(file, self.metrics_keys).writerows(self.metrics)

    def flush(self) -> int:
        """Force the file to disk; returns its number of rows."""
        path = Path(self.metrics_file_path)
        if self._begun and path.exists():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return self.rows


def _read_rows(path: Path, count: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and the first `count` rows of a CSV file; nothing where there is no file or nothing to keep."""
    if not count or not path.exists():
        return [], []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row, _ in zip(reader, range(count), strict=False)]
        return list(reader.fieldnames or []), rows


class ResumableTensorBoard(TensorBoardLogger):
    """TensorBoard's files; what was logged after the checkpoint is struck out when a run goes on."""

    _last_step = -1

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log, and note the step."""
        super().log_metrics(metrics, step)
        self._last_step = max(self._last_step, -1 if step is None else step)

    def state_dict(self) -> dict[str, Any]:
        """The last step that was logged."""
        return {"step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Tell TensorBoard to forget later steps."""
        self._last_step = state_dict["step"]
        if not _on_rank_zero():
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = Event(step=self._last_step + 1, session_log=SessionLog(status=SessionLog.START))
        self.experiment._get_file_writer().add_event(start)


def wandb_run_id(directory: str, resume: str | None) -> str:
    """The id under which W&B knows the run in `directory`: that of the run it goes on from, else a new one.

    Kept in `<directory>/wandb_id`.
    """
    path = Path(directory) / "wandb_id"
    if resume is not None and path.exists():
        return path.read_text().strip()
    name = secrets.token_hex(4)
    if _on_rank_zero():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name + "\n")
    return name
