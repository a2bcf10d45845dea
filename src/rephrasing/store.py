"""The memory of a job: every paid answer and every batch that was started, on disk before anything goes on."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from .requests import Answer

logger = logging.getLogger(__name__)


class Journal:
    """An append-only file of JSON lines that a killed process leaves readable.

    Each line is flushed to the disk (`fsync`) before `append` returns. A last line that was torn by a kill is cut off
    when the file is opened, or completed when only its line break is missing. One process at a time: the file is
    locked, since two would pay for the same answers.

    Args:
        path: Created, with its folders, where there is none.

    Attributes:
        rows: What the file held when it was opened.

    Raises:
        RuntimeError: another process has the file open.
        ValueError: a line other than the last is broken; file and line are named.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RuntimeError(f"Expected {path} to be free, but another process works on it. Wait for it.") from error
        self.rows = self._read()

    def append(self, line: str) -> None:
        """Write one line; it is on the disk when this returns."""
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _read(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        content = self._file.read()
        *lines, last = content.split(b"\n")
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(
                    f"{self.path}, line {number}: expected JSON, but {error}. Move the line out of the file; what it "
                    "held will be asked again."
                ) from error
        if last:
            rows += self._mend(last, len(content) - len(last))
        return rows

    def _mend(self, last: bytes, start: int) -> list[dict[str, Any]]:
        """Complete or cut off a last line without a line break."""
        try:
            row = json.loads(last)
        except ValueError:
            logger.warning("%s: cut off a last line that was torn by a kill (%d bytes)", self.path, len(last))
            self._file.truncate(start)
            return []
        self._file.write(b"\n")
        self._file.flush()
        return [row]


class Store:
    """Answers by key, and the batches that were started; a context manager.

    Args:
        folder: Holds `answers.jsonl` and `batches.jsonl`.

    Raises:
        RuntimeError: another process works on it.
        ValueError: a file is broken.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._answers = Journal(self.folder / "answers.jsonl")
        try:
            self._batches = Journal(self.folder / "batches.jsonl")
        except BaseException:
            self._answers.close()
            raise
        self.answers = {row["key"]: Answer.from_dict(row) for row in self._answers.rows}
        self.batches: list[dict[str, Any]] = self._batches.rows

    def add(self, answer: Answer) -> None:
        """Keep an answer; one that is there already stays."""
        if answer.key not in self.answers:
            self._answers.append(answer.to_json())
            self.answers[answer.key] = answer

    def note_batch(self, event: dict[str, Any]) -> None:
        """Keep an event in the life of a batch."""
        self._batches.append(json.dumps(event))
        self.batches.append(event)

    def close(self) -> None:
        """Release both files."""
        self._answers.close()
        self._batches.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
