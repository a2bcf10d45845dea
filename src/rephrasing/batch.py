"""The batch interface of OpenAI: half the price within a day. Upload, create, poll, download; survives a kill."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any, Literal

import openai
from openai.types import Batch

from .calls import ApiCall
from .client import Client, ServerRefusedError

logger = logging.getLogger(__name__)

_ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_OVER = ("completed", "failed", "expired", "cancelled")


class BatchClient(Client):
    """Asks through `/v1/files` and `/v1/batches`; replies go to the same cache.

    A batch is paid for when it is created, so the cache learns of its file and calls before. After a kill or a lost
    response, the batch is found by its file among the server's. What it lacks when it expires the next session asks.
    """

    def __init__(self, *args: Any, poll_seconds: float = 60.0, calls_per_batch: int = 20_000) -> None:
        super().__init__(*args)
        self.poll_seconds = poll_seconds
        self.calls_per_batch = calls_per_batch

    async def _send(self, connection: openai.AsyncOpenAI, calls: dict[str, ApiCall]) -> None:
        try:
            for file, row in list(self.cache.batches.items()):
                if row["status"] is None and not calls.keys().isdisjoint(row["keys"]):
                    await self._finish(connection, file, await self._find(connection, file))
            missing = [call for key, call in calls.items() if key not in self.cache and key not in self.failures]
            starts = range(0, len(missing), self.calls_per_batch)
            parts = [missing[start : start + self.calls_per_batch] for start in starts]
            for batch in [await self._create(connection, part) for part in parts]:
                await self._finish(connection, batch.input_file_id, batch)
                self._on_progress(sum(key in self.cache for key in calls), len(calls))
        except openai.APIError as error:
            raise ServerRefusedError(
                f"The batch interface failed: {self.server.explain(error)}. Batches that were created go on: run the "
                "same command again. A server without batches needs batch.enabled=false."
            ) from None  # the original quotes headers
        for key in calls:
            if key not in self.cache:
                self.failures.setdefault(key, "its batch ended without a reply")

    async def _create(self, connection: openai.AsyncOpenAI, calls: Sequence[ApiCall]) -> Batch:
        lines = [{"custom_id": call.key, "method": "POST", "url": _ENDPOINT, "body": call.body()} for call in calls]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = await connection.files.create(file=("calls.jsonl", content), purpose="batch")
        self.cache.add_batch(file.id, [call.key for call in calls])
        once = connection.with_options(max_retries=0)  # a repetition could create the batch twice
        try:
            return await once.batches.create(input_file_id=file.id, endpoint=_ENDPOINT, completion_window="24h")
        except (openai.APIConnectionError, openai.InternalServerError):
            batch = await self._find(connection, file.id)
            if batch is None:
                raise
            return batch

    async def _find(self, connection: openai.AsyncOpenAI, file: str) -> Batch | None:
        async for batch in connection.batches.list(limit=100):
            if batch.input_file_id == file:
                return batch
        return None

    async def _finish(self, connection: openai.AsyncOpenAI, file: str, batch: Batch | None) -> None:
        """Wait for the batch of a file, store its replies, and note that it is over; None was never created."""
        while batch is not None and batch.status not in _OVER:
            await asyncio.sleep(self.poll_seconds)
            batch = await connection.batches.retrieve(batch.id)
        for result in filter(None, (batch.output_file_id, batch.error_file_id) if batch else ()):
            content = await connection.files.content(result)
            for line in filter(None, content.text.split("\n")):
                self._store(line)
        self.cache.add_batch(file, self.cache.batches[file]["keys"], batch.status if batch else "never created")
        if batch and batch.status == "failed":
            errors = batch.errors.data if batch.errors else None
            reasons = "; ".join(str(error.message) for error in errors or []) or "no reason given"
            raise ServerRefusedError(f"The server refused batch {batch.id}: {self.server.explain(reasons)}")

    def _store(self, line: str) -> None:
        """Store the reply in a line of results, or note why there is none."""
        try:
            result = json.loads(line)
            key, response = str(result["custom_id"]), result.get("response") or {}
            status, body = response.get("status_code"), json.dumps(response.get("body"))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):  # the server's text, not ours
            logger.warning("A line of a batch's results cannot be read: %r", line[:200])
            return
        if status == 200:
            self.cache.add(key, body, batch=True)
        elif status is not None and key in self.calls:
            self.failures[key] = self.server.explain(f"HTTP {status}: {body}")
