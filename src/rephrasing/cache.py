"""Paid replies by the key of their call, on disk before anybody looks at them; they survive `kill -9`."""

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

    The body of a response is stored as it came and read afterwards, so that a malformed one is not paid for again. A
    last line that was torn by a kill is cut off. The file is locked: two processes would pay for the same replies.

    Raises:
        RuntimeError: another process has the file open.
        ValueError: a line other than the last is broken; file and line are named.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        lock(self._file, "Wait for it, or set another `work`.")
        self._replies: dict[str, Reply] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        """File of a batch of calls → what is known of the batch: `keys`, and `status` once it is over."""
        self._read()

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

    def _read(self) -> None:
        self._file.seek(0)
        position = 0
        for number, line in enumerate(self._file, start=1):
            try:
                self._take(json.loads(line))
            except ValueError as error:
                if line.endswith(b"\n"):
                    raise ValueError(
                        f"{self._file.name}, line {number}: expected JSON, but {error}. Delete the line; what it held "
                        "will be asked for again."
                    ) from error
                logger.warning("%s: cut off the last line, which was torn by a kill.", self._file.name)
                self._file.truncate(position)
                return
            position += len(line)
            if not line.endswith(b"\n"):  # torn before its line break
                self._file.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
