"""The batch interface of OpenAI: half the price within a day. Upload, create, poll, download; survives a kill."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import openai

from .client import Server, ServerRefusedError, unnoticed
from .requests import Answer, Answers, Request, now
from .store import Store

logger = logging.getLogger(__name__)

ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_TAG = "tagrpo_requests"
_OVER = ("completed", "failed", "expired", "cancelled")
_REFUSED_FOR_ITS_FORM = (400, 422, 501)
_BYTES_PER_BATCH = 150_000_000


class BatchClient:
    """A `Completer` over `/v1/files` and `/v1/batches`.

    A batch is paid for when it is created, so the store learns of it in two steps: the intent, with a tag of its own,
    before it is created, and its id afterwards. Where an intent has no id (a kill in between, a lost reply), the tag is
    looked for among the server's batches before anything is created. A later session goes on polling what is there.
    Cancelled and expired batches leave what they have; the rest is asked for again.

    Args:
        server: Whom to ask.
        store: Where answers and the ids of batches are kept.
        poll_seconds: Between two looks at a batch.
        requests_per_batch: OpenAI takes 50,000.
        on_progress: Called with (answered, wanted) when a batch is over.

    Raises:
        ValueError: `requests_per_batch` or `poll_seconds` is not positive.
    """

    def __init__(
        self,
        server: Server,
        store: Store,
        poll_seconds: float = 60.0,
        requests_per_batch: int = 20_000,
        on_progress: Callable[[int, int], None] = unnoticed,
    ) -> None:
        if requests_per_batch < 1 or poll_seconds <= 0:
            raise ValueError(
                f"Expected requests_per_batch and poll_seconds to be positive, but got {requests_per_batch} and "
                f"{poll_seconds}."
            )
        self.server = server
        self.store = store
        self.poll_seconds = poll_seconds
        self.requests_per_batch = requests_per_batch
        self._on_progress = on_progress

    async def complete(self, requests: Sequence[Request]) -> Answers:
        """All answers that could be had; what the server refuses with a schema is asked for once more without.

        Raises:
            ServerRefusedError: the server takes no batch of ours.
        """
        wanted = {request.key: request for request in requests}
        failures: dict[str, str] = {}
        async with self.server.connect() as connection:
            client = connection.with_options(timeout=self.server.timeout, max_retries=self.server.tries - 1)
            try:
                for tag in [tag for tag, asked in self._under_way().items() if wanted.keys() & asked.keys()]:
                    await self._finish(client, tag, wanted, failures)
                for _ in range(2):
                    await self._ask(client, wanted, failures)
            except openai.APIError as error:
                raise ServerRefusedError(
                    f"The batch interface failed: {self.server.redact(str(error))}. Batches that were started go on: "
                    "run the same command again. Servers without batches need batch=false."
                ) from None  # the original quotes headers
        answers = {key: self.store.answers[key] for key in wanted if key in self.store.answers}
        without = [key for key in wanted if key not in answers]
        return Answers(
            answers=answers, failures={key: failures.get(key, "its batch ended without an answer") for key in without}
        )

    def _under_way(self) -> dict[str, dict[str, dict[str, str]]]:
        """Tag → key → purpose and question, of the batches that were begun and are not known to be over."""
        begun = {event["tag"]: event["requests"] for event in self.store.batches if event["event"] == "intent"}
        over = {event["tag"] for event in self.store.batches if event["event"] == "over"}
        return {tag: asked for tag, asked in begun.items() if tag not in over}

    def _plain(self) -> set[str]:
        """Keys that the server refused in the form with a schema, in this session or before."""
        return {key for event in self.store.batches for key in event.get("refused", ())}

    async def _ask(self, client: openai.AsyncOpenAI, wanted: Mapping[str, Request], failures: dict[str, str]) -> None:
        """Make batches of what is neither answered nor failed, and wait for them."""
        missing = [r for key, r in wanted.items() if key not in self.store.answers and key not in failures]
        plain = self._plain()
        tags = []
        for chunk in self._chunks(missing):
            lines = [self._line(request, request.key not in plain) for request in chunk]
            content = "\n".join(lines).encode()
            tag = hashlib.sha256(content + str(len(self.store.batches)).encode()).hexdigest()[:32]
            requests = {r.key: {"purpose": r.purpose, "question": r.question} for r in chunk}
            self.store.note_batch({"event": "intent", "tag": tag, "requests": requests, "time": now()})
            file = await client.files.create(file=(f"{tag}.jsonl", content), purpose="batch")
            await self._create(client, tag, file.id)
            tags.append(tag)
        for tag in tags:
            await self._finish(client, tag, wanted, failures)

    def _line(self, request: Request, structured: bool) -> str:
        structured = structured and self.server.structured != "never"
        line = {"custom_id": request.key, "method": "POST", "url": ENDPOINT, "body": request.body(structured)}
        return json.dumps(line, ensure_ascii=False, default=dict)

    def _chunks(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        chunk: list[Request] = []
        size = 0
        for request in requests:
            length = len(self._line(request, True).encode())
            if chunk and (len(chunk) == self.requests_per_batch or size + length > _BYTES_PER_BATCH):
                yield chunk
                chunk, size = [], 0
            chunk.append(request)
            size += length
        if chunk:
            yield chunk

    async def _create(self, client: openai.AsyncOpenAI, tag: str, file_id: str) -> None:
        """Create the batch once, whatever becomes of the reply."""
        once = client.with_options(max_retries=0)
        for tries in range(1, self.server.tries + 1):
            try:
                batch = await once.batches.create(
                    input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h", metadata={_TAG: tag}
                )
            except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError):
                if tries == self.server.tries:
                    raise
                await asyncio.sleep(min(self.server.first_wait * 2.0 ** (tries - 1), self.server.longest_wait))
                if await self._find(client, tag):
                    return
            else:
                self._note_id(tag, batch.id)
                return

    async def _find(self, client: openai.AsyncOpenAI, tag: str) -> str | None:
        """The id of the batch with this tag, from the store or from the server."""
        for event in self.store.batches:
            if event["event"] == "created" and event["tag"] == tag:
                return str(event["id"])
        async for batch in client.batches.list():
            if (batch.metadata or {}).get(_TAG) == tag:
                self._note_id(tag, batch.id)
                return batch.id
        return None

    def _note_id(self, tag: str, batch_id: str) -> None:
        self.store.note_batch({"event": "created", "tag": tag, "id": batch_id, "time": now()})
        logger.info("Batch %s: created", batch_id)

    async def _finish(
        self, client: openai.AsyncOpenAI, tag: str, wanted: Mapping[str, Request], failures: dict[str, str]
    ) -> None:
        """Wait for a batch, store what it holds, and note that it is over."""
        batch_id = await self._find(client, tag)
        if batch_id is None:
            self.store.note_batch({"event": "over", "tag": tag, "status": "never created"})
            return
        while (batch := await client.batches.retrieve(batch_id)).status not in _OVER:
            await asyncio.sleep(self.poll_seconds)
        refused = []
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id:
                content = await client.files.content(file_id)
                refused += self._keep(content.text, self._under_way()[tag], failures)
        self.store.note_batch({"event": "over", "tag": tag, "status": batch.status, "refused": refused, "time": now()})
        self._on_progress(sum(key in self.store.answers for key in wanted), len(wanted))
        if batch.status == "failed":
            errors = batch.errors.data if batch.errors else None
            reasons = "; ".join(str(error.message) for error in errors or []) or "no reason given"
            raise ServerRefusedError(f"The server refused batch {batch_id}: {self.server.redact(reasons)}")

    def _keep(self, content: str, asked: Mapping[str, Mapping[str, str]], failures: dict[str, str]) -> list[str]:
        """Store the answers of a result file; return the keys of those to ask again without a schema."""
        refused = []
        plain = self._plain()
        for line in filter(None, content.split("\n")):
            result = json.loads(line)
            key, response = result["custom_id"], result.get("response") or {}
            status = response.get("status_code")
            if status == 200:
                try:
                    self.store.add(Answer.of(response.get("body"), key=key, time=now(), batch=True, **asked[key]))
                except ValueError as error:
                    failures[key] = str(error)
            elif self.server.structured == "auto" and status in _REFUSED_FOR_ITS_FORM and key not in plain:
                refused.append(key)
            elif status is not None and status < 500 and status != 429:
                failures[key] = self.server.redact(f"HTTP {status}: {str(response.get('body'))[:500]}")
        return refused
