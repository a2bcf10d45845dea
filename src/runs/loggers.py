"""Loggers that a resumed run goes on with: no row twice, none missing."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from .files import disk_full_explained, sync, written_whole


class ResumableLogger(Logger, ABC):
    """A logger whose state is part of checkpoints. Collective: `Checkpointer` calls both methods on every rank."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """How much has been logged."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what had been logged at `state_dict`; what came after it will be logged again."""


class MetricsCSV(ResumableLogger):
    """`metrics.csv`, a row for each call, which a resumed run cuts back to its checkpoint and then continues.

    Args:
        directory: Where `metrics.csv` lies.
    """

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
        columns, kept = _read_rows(self.path, self._rows)
        self._rows, self._columns = len(kept), sorted({*columns, *row})
        with written_whole(self.path) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows([*kept, row])

    def state_dict(self) -> dict[str, Any]:
        """Rows so far; forces them to disk."""
        if self._columns and self.path.exists():
            sync(self.path)
        return {"rows": self._rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep as many rows; warn of those that are missing, unless the run goes on in another directory."""
        self._rows, self._columns = state_dict["rows"], []
        found = len(_read_rows(self.path, self._rows)[1])
        if found < self._rows and (self.path.exists() or (self.path.parent / "checkpoints").exists()):
            rank_zero_warn(
                f"Expected the {self._rows} rows before the checkpoint in {self.path}, but found {found}: it has been "
                "cut or deleted. The run goes on; reports on it lack what is missing."
            )


def _read_rows(path: Path, count: int) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """Columns and whole rows among the first `count` of a CSV file; nothing where there is none."""
    if not count or not path.exists():
        return [], []
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row, _ in zip(reader, range(count), strict=False)]
            return reader.fieldnames or [], [row for row in rows if None not in row and None not in row.values()]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected a table in {path}, but it can't be read: {error}. Put a copy in its place, or move it away: the "
            "run goes on without it."
        ) from error


class ResumableTensorBoard(TensorBoardLogger, ResumableLogger):
    """TensorBoard's files. It does not show what an earlier attempt at the run has logged after its checkpoint."""

    _last_step = -1
    _began = False
    _settings = ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Write `hparams.yaml`, and show the settings as a text with the first scalars."""
        super().log_hyperparams(params, *args, **kwargs)
        self._settings = "".join(f"    {line}\n" for line in json.dumps(params, indent=1, default=str).splitlines())

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log, and note the step; of a new start, TensorBoard forgets all that came before."""
        if not self._began:
            self._forget_later_steps()
        if self._settings:
            rank_zero_only(self.experiment.add_text)("settings", self._settings, step or 0)
            self._settings = ""
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
