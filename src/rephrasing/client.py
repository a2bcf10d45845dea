"""Client of an OpenAI-compatible server, and sums of costs.

The `openai` client waits and retries. No reply is paid for twice.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any, NamedTuple, Self

import openai
import pandas as pd
from rich.console import Console
from rich.progress import track

from ..files import lock
from ..foreign import ForeignDataError, Message, printable, read_json
from ..redaction import SHORTEST, without_secrets
from .calls import ApiCall, Reply, Usage, read_reply
from .errors import ApiError, NoCompletionError, read_error

logger = logging.getLogger(__name__)

_REFUSES_EVERYBODY = (401, 402, 403, 404)
_BAD_REQUEST = (400, 422)
_FAILURES_IN_A_ROW = 4
_LONGEST = 500
"""Maximum number of characters of a server's error to show."""
CHARACTERS_PER_TOKEN = 3.5  # about 4 in English, fewer in LaTeX

_LONGEST_WORD = 6
"""Maximum length of a name that is searched for only in quotes: `stop` and `seed` are common words."""
_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size)|input tokens|prompt is too long|reduce the (?:length|size|prompt|messages)",
    re.IGNORECASE,
)
"""Pattern of errors about a question that is too long; other questions may still fit."""
_LIMIT = re.compile(r"context (?:length|window|size)\D{0,20}(\d{1,9})", re.IGNORECASE)
_INSTEAD = re.compile(r"\buse\W{1,3}(\w{1,64})\W{1,3}instead", re.IGNORECASE)
_JSON_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')


class ServerRefusedError(RuntimeError):
    """Error for a server that refuses all calls: wrong key, model or parameter, or an empty account.

    Also raised if the server can't be reached.
    """


@dataclass(frozen=True, kw_only=True)
class Server:
    """OpenAI-compatible server and its options. The API key is not a setting: it stays in the environment."""

    base_url: str | None = None  # such as http://localhost:8000/v1; None uses OPENAI_BASE_URL, else OpenAI
    api_key_env: str = "OPENAI_API_KEY"  # name of the variable with the key; a private server may need none
    concurrency: int = 32  # calls under way at a time
    timeout: float = 120.0  # seconds of silence after which a call has failed
    max_retries: int = 8
    """Retries of a failed call by the `openai` client; a Retry-After above two minutes ends the retries."""

    def __post_init__(self) -> None:
        if not self.api_key_env.isidentifier():  # perhaps the key itself: not to be shown
            raise ValueError(
                "Expected server.api_key_env to be the name of an environment variable, but it is none."
            )
        if self.concurrency < 1 or self.timeout <= 0 or self.max_retries < 0:
            raise ValueError(
                f"Expected server.concurrency ≥ 1, timeout > 0 and max_retries ≥ 0, but got {self}."
            )

    @property
    def key(self) -> str:
        """API key from the environment; empty if not set."""
        return os.environ.get(self.api_key_env, "")

    def connect(self) -> openai.AsyncOpenAI:
        """Return a connection to the server, which also retries errors in bodies of status 200.

        Raises:
            ValueError: if the server is OpenAI's and there is no key.
        """
        url = self.base_url or os.environ.get("OPENAI_BASE_URL") or None
        if not self.key and url is None:
            raise ValueError(
                f"Expected a key in {self.api_key_env}, but it is empty. Set it, or server.base_url."
            )
        return openai.AsyncOpenAI(
            base_url=url,
            api_key=self.key or "none",
            max_retries=self.max_retries,
            timeout=self.timeout,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_give_errors_their_status]}),
        )

    def explain(self, error: openai.APIError) -> str:
        """Return the error's text in printable characters, without keys, which servers often quote."""
        cause = f" ({error.__cause__})" if isinstance(error, openai.APIConnectionError) else ""
        said = f"{error}{cause}"
        if isinstance(error, openai.APIStatusError):
            said = f"Error code: {error.status_code} - {read_error(error.response.text).message}"
        if self.key:
            said = said.replace(self.key, "[key]")
        return printable(without_secrets(said)[:_LONGEST])


async def _give_errors_their_status(response: Any) -> None:
    """Give a success without a chat completion the status of its error, so that the client retries."""
    if response.is_success:
        await response.aread()
        try:
            read_reply(response.text)
        except NoCompletionError as error:
            response.status_code = error.status


class _Row(Message):
    key: str
    time: str
    body: str


class ReplyCache(dict[str, Reply]):
    """Cache of replies by the key of their call, in an append-only file of JSON lines; a context manager.

    Bodies of responses are saved unchanged, except for secrets in them, and parsed again in each session.
    People can read the file, unlike a database (`diskcache`). Broken lines, left by a kill or an editor, and
    bodies without a reply are skipped with a warning. A second process, which would pay too, is refused.

    Args:
        path: Path of the file, which is created if missing.
        secrets: Keys that must not reach the file or a `Reply`, in addition to those that `without_secrets`
            finds.
    """

    def __init__(self, path: Path, secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._secrets = secrets
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        lock(self._file, "Wait for it, or set another `work`.")
        self._file.seek(0)
        line = b"\n"
        for number, line in enumerate(self._file, start=1):
            try:
                row = read_json(_Row, line, source=f"{path}, line {number}", remedy="")
                self[row.key] = read_reply(self._cleaned(row.body), row.time)
            except ForeignDataError:
                logger.warning("%s, line %d: skipped what is no reply; it will be asked again.", path, number)
        if not line.endswith(b"\n"):  # torn by a kill
            self._file.write(b"\n")

    def add(self, key: str, body: str) -> None:
        """Parse the body of a response, and save it.

        Raises:
            NoCompletionError: if the body has no reply; nothing is saved then.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        body = self._cleaned(body)
        reply = read_reply(body, time)
        self._file.write(json.dumps({"key": key, "time": time, "body": body}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self[key] = reply

    def _cleaned(self, body: str) -> str:
        """Return a JSON body without secrets, even if their characters are escaped."""

        def cleaned(match: re.Match[str]) -> str:
            if len(match[0]) <= SHORTEST:
                return match[0]
            try:
                text = json.loads(match[0], strict=False)
            except ValueError:
                return match[0]
            without = without_secrets(text, *self._secrets)
            return match[0] if without == text else json.dumps(without)

        return _JSON_TEXT.sub(cleaned, body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Client:
    """Client that answers calls from the cache or by concurrent requests to the server.

    A call whose reply never arrived (a dropped connection, a timeout, a kill) is sent again with the same
    `Idempotency-Key`, so that servers can charge for it only once. Until a model has answered, its calls are
    sent one at a time, so that a server refuses a wrong key, model or parameter only once.
    """

    def __init__(self, server: Server, cache: ReplyCache) -> None:
        self.server, self.cache = server, cache
        self.calls: dict[str, ApiCall] = {}  # key → call: all calls through this client, for the account
        # key → why there is no reply: nothing was paid, the next session asks again
        self.failures: dict[str, str] = {}
        self._answered: set[tuple[str, str]] = set()  # purposes and models that have replied in this session
        self._failed_in_a_row = 0
        self._bad_requests = 0
        self._refusal: ServerRefusedError | None = None

    async def complete(self, calls: Sequence[ApiCall]) -> list[Reply]:
        """Send each distinct call once and return one reply per call; `Reply.fault` explains a missing text.

        Raises:
            ServerRefusedError: if the server would answer no further call; earlier replies are kept.
        """
        wanted = {call.key: call for call in calls}
        self.calls |= wanted
        if missing := {key: call for key, call in wanted.items() if key not in self.cache}:
            async with self.server.connect() as connection:
                await self._ask_all(connection, missing)
            if self._refusal:
                raise self._refusal
        return [
            self.cache.get(key) or Reply(fault=self.failures[key]) for key in (call.key for call in calls)
        ]

    async def _ask_all(self, connection: openai.AsyncOpenAI, missing: Mapping[str, ApiCall]) -> None:
        """Send calls one at a time until each model has answered or failed temporarily, then concurrently."""
        slots, screen = asyncio.Semaphore(self.server.concurrency), Console(stderr=True)
        waiting = dict(missing)
        for key, call in missing.items():
            if (call.purpose, call.model) not in self._answered and not self._failed_in_a_row:
                await self._ask(connection, slots, key, waiting.pop(key))
        sent = [asyncio.create_task(self._ask(connection, slots, *item)) for item in waiting.items()]
        done = asyncio.as_completed(sent)
        for task in track(done, "replies", len(sent), console=screen, disable=not screen.is_terminal):
            await task

    async def _ask(
        self, connection: openai.AsyncOpenAI, slots: asyncio.Semaphore, key: str, call: ApiCall
    ) -> None:
        """Send a call; cache the reply, or record the error. Do nothing after a refusal."""
        body = call.body()
        async with slots:
            if self._refusal:  # start no more calls; calls in progress are paid for, so wait for them
                return
            try:
                response = await connection.chat.completions.with_raw_response.create(
                    model=call.model,
                    messages=body["messages"],
                    extra_body=body,
                    extra_headers={"Idempotency-Key": key},
                )
            except openai.APIError as error:
                shown = self.server.explain(error)
                self.failures[key] = shown
                self._refusal = self._refusal or self._refused(error, call, shown)
                return
        self.cache.add(key, response.text)
        self.failures.pop(key, None)
        self._answered.add((call.purpose, call.model))
        self._failed_in_a_row = 0

    def _refused(self, error: openai.APIError, call: ApiCall, shown: str) -> ServerRefusedError | None:
        """Return the error for all further calls; None if the error `shown` concerns only this call."""
        status, said = 500, ApiError(message="")
        if isinstance(error, openai.APIStatusError):
            status, said = error.status_code, read_error(error.response.text)
        part = "judge" if call.purpose == "judge" else "rephraser"
        self._failed_in_a_row += status >= 500 or status == 429
        if status in _REFUSES_EVERYBODY or "insufficient_quota" in said.code:
            advice = "Correct the key, the model's name, server.base_url or the account"
        elif self._failed_in_a_row >= _FAILURES_IN_A_ROW:
            advice = f"{self._failed_in_a_row} calls in a row failed {self.server.max_retries + 1} times each. Wait"
        elif status in _BAD_REQUEST and (call.purpose, call.model) not in self._answered:
            self._bad_requests += 1
            if name := _refused_parameter(said, call):
                advice = _advice(name, part, said, call)
            elif self._bad_requests >= _FAILURES_IN_A_ROW:
                advice = f"The first {self._bad_requests} calls were all refused. Correct {part}.model or {part}.parameters"
            else:
                return None
        else:
            return None
        return ServerRefusedError(
            f"{advice}, then run the same command again: replies are kept. Server: {shown}"
        )


def _refused_parameter(said: ApiError, call: ApiCall) -> str | None:
    """Return the parameter that a server refuses in this and hence in all calls; None if it refuses none.

    If a question is too long for the model, other questions may still fit, unless the reply's limit alone
    reaches the model's limit.
    """
    if _TOO_LONG.search(f"{said.message} {said.code}"):
        limit = _LIMIT.search(said.message)
        longest = int(limit[1]) if limit else 2**63
        for name in ("max_tokens", "max_completion_tokens"):
            value = call.parameters.get(name)
            if isinstance(value, int) and value >= longest:
                return name
        return None
    if said.parameter == "model" or said.parameter in call.parameters:
        return said.parameter
    for name in call.parameters:
        spelled = re.escape(name)
        pattern = rf"['\"`]{spelled}['\"`]"
        if "_" in name or len(name) > _LONGEST_WORD:
            pattern += rf"|\b{spelled}\b"
        if re.search(pattern, said.message):
            return name
    return None


def _advice(name: str, part: str, said: ApiError, call: ApiCall) -> str:
    """Return advice on a refused parameter, with settings to copy to the command line."""
    if name == "model":
        return f"Correct {part}.model"
    if name == "seed" and part == "rephraser":
        return "Set rephraser.seed=null"
    setting, other = f"{part}.parameters.{name}", _INSTEAD.search(said.message)
    if other:
        return f"Set '~{setting}' '+{part}.parameters.{other[1]}={call.parameters[name]}'"
    return f"Change {setting}, or leave it out by '~{setting}'"


class Prices(NamedTuple):
    """Prices of a model per million tokens, in any currency."""

    prompt: float
    completion: float


def expected(calls: Iterable[ApiCall], answered: Container[str]) -> list[tuple[ApiCall, Usage]]:
    """Return each distinct call whose key is not in `answered`, with its expected usage."""
    distinct = {call.key: call for call in calls if call.key not in answered}.values()
    tokens = [round((len(call.system) + len(call.user)) / CHARACTERS_PER_TOKEN) for call in distinct]
    return [
        (call, Usage(prompt, call.expected_tokens)) for call, prompt in zip(distinct, tokens, strict=True)
    ]


def account(usages: Iterable[tuple[ApiCall, Usage]], prices: Mapping[str, Prices]) -> str:
    """Return the result of `costs` as text: the table, and a line with the total cost."""
    table = costs(usages, prices)
    if table.empty:
        return "nothing is asked of a model"
    total = f"{table['cost'].sum():,.2f}" if table["cost"].notna().all() else "unknown, for lack of prices"
    shown = table.to_string(index=False, float_format="{:,.2f}".format, na_rep="no price")
    return f"{shown}\nTotal cost: {total}"


def costs(usages: Iterable[tuple[ApiCall, Usage]], prices: Mapping[str, Prices]) -> pd.DataFrame:
    """Return a table of calls, tokens and cost by purpose and model; cost is NaN if a price is unknown."""
    rows = []
    for call, usage in usages:
        price = prices.get(call.model, Prices(nan, nan))
        cost = (usage.prompt_tokens * price.prompt + usage.completion_tokens * price.completion) / 1e6
        rows.append((call.purpose, call.model, 1, *usage, cost))
    columns = ["purpose", "model", "calls", "prompt tokens", "completion tokens", "cost"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(["purpose", "model"], sort=False, as_index=False).sum(min_count=1)
