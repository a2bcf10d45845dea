"""Paid replies by the key of their call. Each is saved before it is read, so that a restart never pays twice."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ..runs.files import lock
from .calls import Reply, read_reply

logger = logging.getLogger(__name__)


class ReplyCache:
    """Key of a call → reply, in an append-only file of JSON lines; a context manager.

    The body of a response is stored as it came and read afterwards, so that a malformed one is not paid for again.
    Lines that a kill or an editor broke are skipped with a warning. The file is locked: two processes would pay twice.

    Raises:
        RuntimeError: another process has the file open.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        lock(self._file, "Wait for it, or set another `work`.")
        self._replies: dict[str, Reply] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        """File of a batch of calls → what is known of the batch: `keys`, and `status` once it is over."""
        self._file.seek(0)
        line = b""
        for number, line in enumerate(self._file, start=1):
            try:
                self._take(json.loads(line))
            except ValueError:
                logger.warning("%s, line %d: skipped what is no JSON; it will be asked again.", path, number)
        if line and not line.endswith(b"\n"):  # torn by a kill
            self._file.write(b"\n")

    def add(self, key: str, body: str, batch: bool = False) -> None:
        """Store the body of a response; the first one of a key stays."""
        if key not in self._replies:
            time = datetime.now(UTC).isoformat(timespec="seconds")
            self._append({"key": key, "time": time, "batch": batch, "body": body})

    def add_batch(self, file: str, keys: list[str], status: str | None = None) -> None:
        """Store what is known of a batch."""
        self._append({"file": file, "keys": keys, "status": status})

    def __contains__(self, key: object) -> bool:
        return key in self._replies

    def __getitem__(self, key: str) -> Reply:
        return self._replies[key]

    def _append(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        if "key" in row:
            self._replies[row["key"]] = read_reply(row["body"], row["time"], row["batch"])
        else:
            self.batches[row["file"]] = row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
