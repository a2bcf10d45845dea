"""Asking an OpenAI-compatible server: bounded concurrency, limited rate, patient with failures, nothing paid twice."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import openai

from .limits import RateLimiter, backoff, retry_after
from .requests import Answer, Answers, Request, now
from .store import Store

logger = logging.getLogger(__name__)

_REFUSES_EVERYBODY = (401, 402, 403, 404)
_TRY_AGAIN = (408, 409, 425, 429)
_MAY_BE_THE_SCHEMA = (400, 422, 501)
_SCHEMA_WORDS = ("HTTP 500", "response_format", "json_schema", "schema", "structured", "guided", "grammar")


def unnoticed(answered: int, wanted: int) -> None:
    """Report progress to nobody."""


class ServerRefusedError(RuntimeError):
    """The server will answer no request: a wrong key or model, an empty account, or it is gone."""


class _FailedError(Exception):
    """This request will get no answer in this session."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """An OpenAI-compatible server, and how to treat it. The key itself is no setting: it stays in the environment.

    Raises:
        ValueError: a setting is out of its range.
    """

    base_url: str | None = None
    """For example http://localhost:8000/v1; None takes OPENAI_BASE_URL, else OpenAI's own."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key. Servers of one's own may need none."""
    concurrency: int = 32
    """Requests under way at a time."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    timeout: float = 120.0
    """Seconds for one try, from sending to the last byte."""
    tries: int = 8
    """Of one request, before it is left for the next session."""
    first_wait: float = 1.0
    """Seconds after the first failure; doubled after each further one, less up to a half by chance."""
    longest_wait: float = 60.0
    """Seconds that the doubling ends at. A server's own Retry-After is honoured up to ten times as much."""
    give_up_after: int = 4
    """Requests in a row that used up their tries, after which the server counts as gone."""
    structured: Literal["auto", "always", "never"] = "auto"
    """Structured outputs. `auto` asks for them and falls back to plain text where the server refuses."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "tries", "give_up_after", "timeout", "first_wait", "longest_wait"):
            if getattr(self, name) <= 0:
                raise ValueError(f"Expected server.{name} to be positive, but got {getattr(self, name)}.")
        if self.structured not in ("auto", "always", "never"):
            raise ValueError(f"Expected server.structured to be auto, always or never, but got {self.structured!r}.")

    def connect(self) -> openai.AsyncOpenAI:
        """A client that neither retries nor times out by itself.

        Raises:
            ValueError: OpenAI's own server is asked without a key.
        """
        url = self.base_url or os.environ.get("OPENAI_BASE_URL") or None
        key = os.environ.get(self.api_key_env)
        if not key and url is None:
            raise ValueError(
                f"Expected a key in the environment variable {self.api_key_env}, but it is empty. Export it, or name a "
                "server that needs none with server.base_url."
            )
        return openai.AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, timeout=None)

    def redact(self, text: str) -> str:
        """The text without the key, which servers like to quote in their errors."""
        key = os.environ.get(self.api_key_env)
        return text.replace(key, "[key]") if key else text


@dataclass
class _Session:
    """What the tasks of one `complete` share."""

    answers: dict[str, Answer] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    failed_in_a_row: int = 0
    fatal: ServerRefusedError | None = None


class ChatClient:
    """A `Completer` that asks one request at a time, many at once.

    An answer is stored before it is used, and a stored answer is never asked for again. What can't be known is whether
    a server charges for an answer that never arrived (a dropped connection, a timeout, a kill while it was on its way):
    such a request is sent again under the same `Idempotency-Key`, which servers may use to charge once.

    Args:
        server: Whom to ask.
        store: Where answers are kept.
        on_progress: Called with (answered, wanted) after each request.
        seed: Of the random part of waiting.
    """

    def __init__(
        self,
        server: Server,
        store: Store,
        on_progress: Callable[[int, int], None] = unnoticed,
        seed: int = 0,
    ) -> None:
        self.server = server
        self.store = store
        self._on_progress = on_progress
        self._limiter = RateLimiter(server.requests_per_minute, server.tokens_per_minute)
        self._rng = random.Random(seed)
        self._structured = server.structured != "never"

    async def complete(self, requests: Sequence[Request]) -> Answers:
        """All answers that could be had.

        Raises:
            ServerRefusedError: no further request would be answered. What was answered is stored.
        """
        wanted = {request.key: request for request in requests}
        session = _Session({key: self.store.answers[key] for key in wanted if key in self.store.answers})
        missing = [request for key, request in wanted.items() if key not in session.answers]
        if missing:
            queue = iter(missing)
            async with self.server.connect() as client:
                workers = min(self.server.concurrency, len(missing))
                await asyncio.gather(*(self._work(client, queue, session, len(wanted)) for _ in range(workers)))
        if session.fatal:
            raise session.fatal
        return Answers(answers=session.answers, failures=session.failures)

    async def _work(self, client: openai.AsyncOpenAI, queue: Iterator[Request], session: _Session, total: int) -> None:
        # Once the server refused for good nobody begins a request, but those under way are waited for: they are paid.
        while session.fatal is None and (request := next(queue, None)) is not None:
            try:
                answer = await self._ask(client, request, session)
            except _FailedError as failure:
                session.failures[request.key] = str(failure)
            except ServerRefusedError as refusal:
                session.fatal = session.fatal or refusal
            else:
                self.store.add(answer)
                session.answers[request.key] = answer
                session.failed_in_a_row = 0
            self._on_progress(len(session.answers), total)

    async def _ask(self, client: openai.AsyncOpenAI, request: Request, session: _Session) -> Answer:
        structured, reason = self._structured and request.schema is not None, ""
        tokens = (len(request.system) + len(request.user)) // 4 + request.samples * request.expected_tokens
        for tries in range(1, self.server.tries + 1):
            await self._limiter.wait(tokens)
            if session.fatal:
                raise _FailedError(f"not asked: {session.fatal}")
            headers: Any = {}
            try:
                return await self._try(client, request, structured, tries)
            except openai.APIStatusError as error:
                reason, headers = self._reason(error), error.response.headers
                if structured and self._may_be_the_schema(error.status_code, tries):
                    structured = False
                    self._forget_structured(reason)
                    continue
                self._raise_if_final(error, reason)
            except (TimeoutError, openai.APIConnectionError) as error:
                cause = error.__cause__
                reason = f"{type(error).__name__}: {cause if cause is not None else error}"
            except (ValueError, openai.APIError) as error:  # a body that is cut off, or is no chat completion
                reason = f"broken answer: {error}"
            if tries < self.server.tries:
                await self._wait_after_failure(tries, headers, reason)
        session.failed_in_a_row += 1
        if session.failed_in_a_row >= self.server.give_up_after:
            raise ServerRefusedError(
                f"Gave up on the server: {session.failed_in_a_row} requests in a row failed {self.server.tries} times "
                f"each, the last with {self.server.redact(reason)}. What was answered is stored: run the same command "
                "again later."
            )
        raise _FailedError(f"{self.server.tries} tries, the last: {self.server.redact(reason)}")

    async def _try(self, client: openai.AsyncOpenAI, request: Request, structured: bool, tries: int) -> Answer:
        # The SDK's own time limit restarts with every byte; a server that drips would never end.
        async with asyncio.timeout(self.server.timeout):
            raw = await client.chat.completions.with_raw_response.create(
                **request.body(structured), extra_headers={"Idempotency-Key": request.key}
            )
            body = raw.http_response.json()
        facts = {"key": request.key, "purpose": request.purpose, "question": request.question}
        return Answer.of(body, time=now(), tries=tries, **facts)

    def _may_be_the_schema(self, status: int, tries: int) -> bool:
        """Whether a plain request may fare better; some servers say 500 to a schema, which is worth a second try."""
        refused = status in _MAY_BE_THE_SCHEMA or (status == 500 and tries > 1)
        return refused and self.server.structured == "auto"

    def _forget_structured(self, reason: str) -> None:
        if self._structured and any(word in reason for word in _SCHEMA_WORDS):
            logger.warning("The server has no structured outputs (%s): asking for plain text.", reason)
            self._structured = False

    def _reason(self, error: openai.APIStatusError) -> str:
        said = error.message.removeprefix(f"Error code: {error.status_code} - ")
        return self.server.redact(f"HTTP {error.status_code}: {said[:500]}")

    @staticmethod
    def _raise_if_final(error: openai.APIStatusError, reason: str) -> None:
        status = error.status_code
        if status in _REFUSES_EVERYBODY or (status == 429 and "insufficient_quota" in str(error.body)):
            raise ServerRefusedError(
                f"The server refuses all requests ({reason}). Mend the key, the model's name, the address or the "
                "account; what was answered is stored."
            )
        if status not in _TRY_AGAIN and status < 500:
            raise _FailedError(reason)

    async def _wait_after_failure(self, tries: int, headers: Any, reason: str) -> None:
        server = self.server
        delay = backoff(tries, server.first_wait, server.longest_wait, self._rng)
        asked = retry_after({name.lower(): value for name, value in dict(headers).items()})
        if asked is not None:
            if asked > 10 * server.longest_wait:
                raise ServerRefusedError(
                    f"The server asks to wait {asked:.0f} s ({reason}), more than ten times server.longest_wait. "
                    "What was answered is stored: run the same command again later."
                )
            delay = max(delay, asked)
            self._limiter.pause(asked)  # what it says to one request holds for all
        logger.info("Try %d failed, again in %.1f s: %s", tries, delay, server.redact(reason))
        await asyncio.sleep(delay)
