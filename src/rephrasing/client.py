"""Asks an OpenAI-compatible server, and adds up what it costs.

The `openai` client waits and retries; no reply is paid for twice.
"""

import asyncio
import json
import logging
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import NamedTuple, Self

import openai
import pandas as pd
from rich.console import Console
from rich.progress import track

from ..runs.files import lock
from .calls import ApiCall, Reply, Usage, read_reply

logger = logging.getLogger(__name__)

_REFUSES_EVERYBODY = (401, 402, 403, 404)
_FAILURES_IN_A_ROW = 4
CHARACTERS_PER_TOKEN = 3.5  # about 4 in English, fewer in LaTeX


class ServerRefusedError(RuntimeError):
    """The server will answer no call: a wrong key or model, an empty account, or it cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """An OpenAI-compatible server and how to use it. The key itself is no setting: it stays in the environment."""

    base_url: str | None = None  # such as http://localhost:8000/v1; None takes OPENAI_BASE_URL, else OpenAI's own
    api_key_env: str = "OPENAI_API_KEY"  # the variable that holds the key; servers of your own may need none
    concurrency: int = 32  # calls under way at a time
    timeout: float = 120.0  # seconds of silence after which a call has failed
    max_retries: int = 8
    """How often the `openai` client repeats a failed call; a Retry-After of more than two minutes ends the retries."""

    def __post_init__(self) -> None:
        if not self.api_key_env.isidentifier():  # perhaps the key itself: not to be shown
            raise ValueError("Expected server.api_key_env to be the name of an environment variable, but it is none.")
        if self.concurrency < 1 or self.timeout <= 0 or self.max_retries < 0:
            raise ValueError(f"Expected server.concurrency ≥ 1, timeout > 0 and max_retries ≥ 0, but got {self}.")

    def connect(self) -> openai.AsyncOpenAI:
        """A connection; OpenAI's own server needs a key."""
        url, key = self.base_url or os.environ.get("OPENAI_BASE_URL") or None, os.environ.get(self.api_key_env)
        if not key and url is None:
            raise ValueError(f"Expected a key in {self.api_key_env}, but it is empty. Set it, or server.base_url.")
        return openai.AsyncOpenAI(
            base_url=url, api_key=key or "none", max_retries=self.max_retries, timeout=self.timeout
        )

    def explain(self, error: openai.APIError) -> str:
        """The error in words, without the key, which servers like to quote."""
        cause = f" ({error.__cause__})" if isinstance(error, openai.APIConnectionError) else ""
        key = os.environ.get(self.api_key_env) or "\0"
        return f"{error}{cause}".replace(key, "[key]")[:500]


class ReplyCache(dict[str, Reply]):
    """Key of a call → reply, in an append-only file of JSON lines; a context manager.

    The body of a response is saved as it came and read afterwards, so that a malformed one is not paid for again.
    People can read the file, unlike a database (`diskcache`). Lines that a kill or an editor broke are skipped with a
    warning. A second process, which would pay too, is refused.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        lock(self._file, "Wait for it, or set another `work`.")
        self._file.seek(0)
        line = b"\n"
        for number, line in enumerate(self._file, start=1):
            try:
                row = json.loads(line)
                self[row["key"]] = read_reply(row["body"], row["time"])
            except (ValueError, LookupError, TypeError):
                logger.warning("%s, line %d: skipped what is no reply; it will be asked again.", path, number)
        if not line.endswith(b"\n"):  # torn by a kill
            self._file.write(b"\n")

    def add(self, key: str, body: str) -> None:
        """Save the body of a response, then read it."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._file.write(json.dumps({"key": key, "time": time, "body": body}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self[key] = read_reply(body, time)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Client:
    """Answers calls from the cache, else by asking the server, many at a time.

    A reply that never arrived (a dropped connection, a timeout, a kill) is asked for again under the same
    `Idempotency-Key`, which servers may use to charge once.
    """

    def __init__(self, server: Server, cache: ReplyCache) -> None:
        self.server, self.cache = server, cache
        self.calls: dict[str, ApiCall] = {}  # key → call: all that was asked through this client, for the account
        self.failures: dict[str, str] = {}  # key → why there is no reply: nothing was paid, the next session asks again
        self._failed_in_a_row = 0
        self._refusal: ServerRefusedError | None = None

    async def complete(self, calls: Sequence[ApiCall]) -> list[Reply]:
        """One reply per call; if it has no text, `fault` says why. Equal calls are asked once.

        A ServerRefusedError says that no further call would be answered. What was answered is stored.
        """
        wanted = {call.key: call for call in calls}
        self.calls |= wanted
        if missing := {key: call for key, call in wanted.items() if key not in self.cache}:
            slots, screen = asyncio.Semaphore(self.server.concurrency), Console(stderr=True)
            async with self.server.connect() as connection:
                sent = [asyncio.create_task(self._ask(connection, slots, *item)) for item in missing.items()]
                done = asyncio.as_completed(sent)
                for task in track(done, "replies", len(sent), console=screen, disable=not screen.is_terminal):
                    await task
            if self._refusal:
                raise self._refusal
        return [self.cache.get(key) or Reply(fault=self.failures[key]) for key in (call.key for call in calls)]

    async def _ask(self, connection: openai.AsyncOpenAI, slots: asyncio.Semaphore, key: str, call: ApiCall) -> None:
        """Ask the server; the reply goes to the cache, an error to the failures. Does nothing after a refusal."""
        body = call.body()
        async with slots:
            if self._refusal:  # start no more calls; those under way are paid for and waited for
                return
            try:
                response = await connection.chat.completions.with_raw_response.create(
                    model=call.model, messages=body["messages"], extra_body=body, extra_headers={"Idempotency-Key": key}
                )
            except openai.APIError as error:
                self.failures[key] = self.server.explain(error)
                self._refusal = self._refusal or self._refused(error)
                return
        self.cache.add(key, response.text)
        self.failures.pop(key, None)
        self._failed_in_a_row = 0

    def _refused(self, error: openai.APIError) -> ServerRefusedError | None:
        """Return the refusal of all further calls; None if the error concerns this call alone."""
        status = error.status_code if isinstance(error, openai.APIStatusError) else 500
        self._failed_in_a_row += status >= 500 or status == 429
        if status in _REFUSES_EVERYBODY or error.code == "insufficient_quota":
            advice = "Correct the key, the model's name, server.base_url or the account"
        elif self._failed_in_a_row >= _FAILURES_IN_A_ROW:
            advice = f"{self._failed_in_a_row} calls in a row failed {self.server.max_retries + 1} times each. Wait"
        else:
            return None
        said = self.server.explain(error)
        return ServerRefusedError(f"{advice}, then run the same command again: replies are kept. Server: {said}")


class Prices(NamedTuple):
    """Prices of a model, per million tokens, in any currency."""

    prompt: float
    completion: float


def expected(calls: Iterable[ApiCall], answered: Container[str]) -> list[tuple[ApiCall, Usage]]:
    """Calls with their expected usage; equal calls count once, those whose keys are `answered` not at all."""
    distinct = {call.key: call for call in calls if call.key not in answered}.values()
    tokens = [round((len(call.system) + len(call.user)) / CHARACTERS_PER_TOKEN) for call in distinct]
    return [(call, Usage(prompt, call.expected_tokens)) for call, prompt in zip(distinct, tokens, strict=True)]


def account(usages: Iterable[tuple[ApiCall, Usage]], prices: Mapping[str, Prices]) -> str:
    """The table of `costs` and their sum, in words."""
    table = costs(usages, prices)
    if table.empty:
        return "nothing is asked of a model"
    total = f"{table['cost'].sum():,.2f}" if table["cost"].notna().all() else "unknown, for lack of prices"
    shown = table.to_string(index=False, float_format="{:,.2f}".format, na_rep="no price")
    return f"{shown}\nTotal cost: {total}"


def costs(usages: Iterable[tuple[ApiCall, Usage]], prices: Mapping[str, Prices]) -> pd.DataFrame:
    """Calls, tokens and cost, summed per purpose and model; a cost is NaN where no price is known."""
    rows = []
    for call, usage in usages:
        price = prices.get(call.model, Prices(nan, nan))
        cost = (usage.prompt_tokens * price.prompt + usage.completion_tokens * price.completion) / 1e6
        rows.append((call.purpose, call.model, 1, *usage, cost))
    columns = ["purpose", "model", "calls", "prompt tokens", "completion tokens", "cost"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(["purpose", "model"], sort=False, as_index=False).sum(min_count=1)
