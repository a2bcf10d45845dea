"""Loggers that a resumed run continues without duplicate or missing rows."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from ..files import append_csv, read_csv, sync, write_csv
from .directory import is_first_rank


class ResumableLogger(Logger, ABC):
    """Logger whose state is part of checkpoints.

    `state_dict` and `load_state_dict` are collective: `Checkpointer` calls them on every rank.
    """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return how much has been logged: the number of rows, or the last step."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the rows that `state_dict` counted, and discard later rows, which will be logged again."""


class MetricsCSV(ResumableLogger):
    """Logger to `<directory>/metrics.csv`, with one row per call.

    A resumed run truncates the file to the rows of its checkpoint and continues.
    """

    name = version = ""

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self.path = Path(directory) / "metrics.csv"
        self._rows = 0
        self._columns: list[str] = []

    @property
    def save_dir(self) -> str:
        """Directory of `metrics.csv`."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the settings are in `config.yaml` beside the file."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write a row to disk at once."""
        row: dict[str, Any] = {**metrics, "step": self._rows if step is None else step}
        if self._columns and row.keys() <= set(self._columns):
            append_csv(self.path, self._columns, [row])
        else:
            columns, kept = read_csv(self.path, self._rows)
            self._rows, self._columns = len(kept), sorted({*columns, *row})
            write_csv(self.path, self._columns, [*kept, row])
        self._rows += 1

    def state_dict(self) -> dict[str, Any]:
        """Force all rows to disk, and return the number of rows."""
        if self._columns and self.path.exists():
            sync(self.path)
        return {"rows": self._rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Truncate the file to the number of rows in the state.

        Warn if rows are missing, unless the run continues in another directory.
        """
        self._rows, self._columns = state_dict["rows"], []
        found = len(read_csv(self.path, self._rows)[1])
        if found < self._rows and (self.path.exists() or (self.path.parent / "checkpoints").exists()):
            rank_zero_warn(
                f"Expected the {self._rows} rows before the checkpoint in {self.path}, but found {found}: it "
                "has been cut or deleted. The run goes on; reports on it lack these rows."
            )


class ResumableTensorBoard(TensorBoardLogger, ResumableLogger):
    """TensorBoard logger that hides the steps that an earlier attempt logged after the checkpoint."""

    _last_step = -1
    _began = False

    @property
    def experiment(self) -> Any:
        """TensorBoard writer; a new one if a fit has closed the previous one.

        `number_files` renames existing files before a new writer creates a file.
        """
        if self._experiment is not None and self._experiment.file_writer is None:
            self._experiment = None
        if self._experiment is None and is_first_rank():
            number_files(Path(self.log_dir))
        return super().experiment

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Log metrics and record the step.

        Before the first row, make TensorBoard discard the steps after the checkpoint (in a new run, all
        steps).
        """
        if not self._began:
            self._forget_later_steps()
        super().log_metrics(metrics, step)
        self._last_step = max(self._last_step, -1 if step is None else step)

    def state_dict(self) -> dict[str, Any]:
        """Return the last logged step."""
        return {"step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a checkpoint's step.

        Before the next row, TensorBoard is made to discard the steps after the checkpoint.
        """
        self._last_step = state_dict["step"]
        self._began = False

    def save(self) -> None:
        """Write what has been logged, if anything; Lightning may call this method before the first row."""
        if self._experiment is not None:
            super().save()

    @rank_zero_only
    def _forget_later_steps(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._began = True
        start = Event(step=self._last_step + 1, session_log=SessionLog(status=SessionLog.START))
        self.experiment.file_writer.add_event(start)


def number_files(directory: Path) -> None:
    """Replace the times in the names of TensorBoard's files by 1, 2, …, in the order of the files.

    TensorBoard reads files in the order of these times, and a machine's clock may be behind the previous
    machine's clock.
    """
    prefix = "events.out.tfevents."
    for number, path in enumerate(sorted(directory.glob(f"{prefix}*.*")), 1):
        rest = path.name.removeprefix(prefix).partition(".")[2]
        path.replace(path.with_name(f"{prefix}{number:010d}.{rest}"))
