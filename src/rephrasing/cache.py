"""Paid replies by the key of their call, on disk before anybody looks at them; they survive `kill -9`."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from .calls import Reply, read_reply

logger = logging.getLogger(__name__)


class Journal:
    """An append-only file of JSON lines that a killed process leaves readable; a context manager.

    A last line that was torn by a kill is cut off when the file is opened. The file is locked: two processes would pay
    for the same replies.

    Attributes:
        rows: What the file held when it was opened.

    Raises:
        RuntimeError: another process has the file open.
        ValueError: a line other than the last is broken; file and line are named.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RuntimeError(
                f"Expected {path} to be free, but another process is using it. Wait for it, or set another `work`."
            ) from error
        self.rows = self._read()

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; it is on the disk when this returns."""
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        rows, position = [], 0
        for number, line in enumerate(self._file, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if line.endswith(b"\n"):
                    raise ValueError(
                        f"{self._file.name}, line {number}: expected JSON, but {error}. Delete the line; what it held "
                        "will be asked for again."
                    ) from error
                logger.warning("%s: cut off the last line, which was torn by a kill.", self._file.name)
                self._file.truncate(position)
            else:
                position += len(line)
                if not line.endswith(b"\n"):  # torn before its line break
                    self._file.write(b"\n")
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class ReplyCache(Journal):
    """Key of a call → reply, in `replies.jsonl` of a folder.

    The body of a response is stored as it came and read afterwards, so that a malformed one is not paid for again.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "replies.jsonl")
        self.folder = folder
        self._replies = {row["key"]: read_reply(row["body"], row["time"], row["batch"]) for row in self.rows}
        self.rows.clear()  # bodies are large

    def add(self, key: str, body: str, batch: bool = False) -> None:
        """Store the body of a response; the first one of a key stays."""
        if key not in self._replies:
            time = datetime.now(UTC).isoformat(timespec="seconds")
            self.append({"key": key, "time": time, "batch": batch, "body": body})
            self._replies[key] = read_reply(body, time, batch)

    def __contains__(self, key: object) -> bool:
        return key in self._replies

    def __getitem__(self, key: str) -> Reply:
        return self._replies[key]
