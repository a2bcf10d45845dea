"""Loggers that a resumed run goes on with: no row twice, none missing."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from .files import disk_full_explained, read_rows, sync, write_rows


class ResumableLogger(Logger, ABC):
    """A logger whose state is part of checkpoints. Collective: `Checkpointer` calls both methods on every rank."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """How much has been logged."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what had been logged at `state_dict`; what came after it will be logged again."""


class MetricsCSV(ResumableLogger):
    """`<directory>/metrics.csv`, a row for each call, which a resumed run cuts back to its checkpoint and continues."""

    name = version = ""

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self.path = Path(directory) / "metrics.csv"
        self._rows = 0
        self._columns: list[str] = []

    @property
    def save_dir(self) -> str:
        """Directory of the file."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the settings are in `config.yaml` beside the file."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write a row, at once."""
        row = {**metrics, "step": self._rows if step is None else step}
        if self._columns and row.keys() <= set(self._columns):
            with disk_full_explained(self.path), self.path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        else:
            self._rewrite(row)
        self._rows += 1

    def _rewrite(self, row: Mapping[str, Any]) -> None:
        columns, kept = read_rows(self.path, self._rows)
        self._rows, self._columns = len(kept), sorted({*columns, *row})
        write_rows(self.path, self._columns, [*kept, row])

    def state_dict(self) -> dict[str, Any]:
        """Rows so far; forces them to disk."""
        if self._columns and self.path.exists():
            sync(self.path)
        return {"rows": self._rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep as many rows; warn of those that are missing, unless the run goes on in another directory."""
        self._rows, self._columns = state_dict["rows"], []
        found = len(read_rows(self.path, self._rows)[1])
        if found < self._rows and (self.path.exists() or (self.path.parent / "checkpoints").exists()):
            rank_zero_warn(
                f"Expected the {self._rows} rows before the checkpoint in {self.path}, but found {found}: it has been "
                "cut or deleted. The run goes on; reports on it lack what is missing."
            )


class ResumableTensorBoard(TensorBoardLogger, ResumableLogger):
    """TensorBoard's files. It does not show what an earlier attempt at the run has logged after its checkpoint."""

    _last_step = -1
    _began = False

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log, and note the step; of a new start, TensorBoard forgets all that came before."""
        if not self._began:
            self._forget_later_steps()
        super().log_metrics(metrics, step)
        self._last_step = max(self._last_step, -1 if step is None else step)

    def state_dict(self) -> dict[str, Any]:
        """The last step that was logged."""
        return {"step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after that step, and have TensorBoard forget later ones."""
        self._last_step = state_dict["step"]
        self._forget_later_steps()

    @rank_zero_only
    def _forget_later_steps(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._began = True
        start = Event(step=self._last_step + 1, session_log=SessionLog(status=SessionLog.START))
        self.experiment.file_writer.add_event(start)
