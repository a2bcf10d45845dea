"""Calls of a chat model and their replies.

Replies are untrusted: reading a reply raises no error but `NoCompletionError`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from ..foreign import ForeignDataError, Message, printable, read
from ..rewards.response import ResponseParts, split_response
from .errors import NoCompletionError, is_error, read_error

_FINISHED = {
    "", "stop", "stopped", "end", "end_turn", "eos", "eos_token", "stop_sequence", "complete", "completed", "finish",
    "finished", "done", "tool_calls", "function_call",
}  # fmt: skip
"""Lower-case `finish_reason` of a complete reply; empty if the server gives none."""
_FAILED = re.compile(r"error|fail", re.IGNORECASE)
"""Pattern of `finish_reason` from a server that broke off: `error`, `network_error`, `failed`."""
_CUT = {"length", "max_tokens", "max_output_tokens", "model_length"}
_SHOWN = 200
"""Number of characters of foreign text that a fault quotes."""


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """Call of a chat model. Calls with equal keys get the same reply and are paid for once."""

    purpose: str  # `rephrase` or `judge`: a row of the account
    model: str
    system: str  # the instruction
    user: str  # the problem
    # for the server: temperature, max_tokens, seed, …
    parameters: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 0  # number of repetitions after unusable replies; each repetition is a separate call
    expected_tokens: int = 0  # roughly how long the completion will be, for the estimate

    @property
    def key(self) -> str:
        """Cache key: 32 hexadecimal digits of body and attempt, equal in every process and session."""
        return hashlib.sha256(json.dumps([self.body(), self.attempt], sort_keys=True).encode()).hexdigest()[
            :32
        ]

    def body(self) -> dict[str, Any]:
        """Return the request body for the chat completions endpoint."""
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": valid_unicode(self.user)},
        ]
        return {"model": self.model, "messages": messages, **self.parameters}


class Usage(NamedTuple):
    """Number of tokens that a server charges for."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Chat completion that was paid for: its text, or the reason for a missing text."""

    text: str = ""
    """Completion without thoughts, stripped; empty if there is a fault."""
    fault: str = ""
    """Reason for a missing text, in printable characters; empty if there is a text."""
    model: str = ""
    """Name of the model that replied, as the server gives it."""
    usage: Usage = Usage()  # noqa: RUF009 (a tuple, which nobody can change)
    time: str = ""
    """Time of arrival of the reply: UTC, ISO 8601."""


def read_reply(body: str, time: str = "") -> Reply:
    r"""Read the reply in the body of a response.

    A reply counts as paid for if it has a choice with a message, or if the server charged for completion
    tokens. Other fields may be missing or of any type. Only a finished reply has a text, since a truncated
    reply may be a draft.

    Args:
        body: The body of a response of status 200.
        time: Time at which the body arrived.

    Raises:
        NoCompletionError: if the body is not a chat completion, but an error, other content, or empty.

    >>> read_reply('{"choices": [{"message": {"content": "Add 1 \\ud83d"}}]}').text
    'Add 1 \ufffd'
    >>> read_reply('{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}').fault
    'it was cut off at its limit of tokens'
    >>> read_reply('{"error": {"message": "slow down", "code": 429}}')
    Traceback (most recent call last):
    tagrpo.rephrasing.errors.NoCompletionError: Expected the server's reply to be a chat completion, but got: slow ...
    """
    completion = _completion(body)
    choice = _choice(completion, body)
    parts = split_response(choice.message.content)
    fault = _fault(choice, parts, body)
    text = "" if fault else parts.answer.strip()
    usage = Usage(completion.usage.prompt_tokens, completion.usage.completion_tokens)
    return Reply(text=text, fault=fault, model=completion.model, usage=usage, time=time)


def valid_unicode(text: str) -> str:
    """Replace lone surrogates, which no encoding supports, by U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _or(empty: Any) -> WrapValidator:
    """Return a validator that replaces values of a wrong type by `empty`: a paid reply must be read."""

    def validated(value: object, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError:
            return empty

    return WrapValidator(validated)


def _repaired(value: object) -> object:
    return valid_unicode(value) if isinstance(value, str) else value


def _sequence(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _as_message(value: object) -> object:
    """Convert a bare text to a message with this text."""
    return {"content": value} if isinstance(value, str) else value


def _joined(content: object) -> object:
    """Join the text parts of a content; thoughts, images and tool calls are left out."""
    parts = content if isinstance(content, list) else [content]
    return "".join(_text_of(part) for part in parts)


def _text_of(part: object) -> str:
    if isinstance(part, str):
        return part
    try:
        read_part = _Part.model_validate(part)
    except ValidationError:
        return ""
    return read_part.text if read_part.type in ("", "text", "output_text") else ""


_Words = Annotated[str, BeforeValidator(_repaired), _or("")]
_Tokens = Annotated[int, Field(ge=0, lt=2**53), _or(0)]


class _Part(Message):
    type: _Words = ""
    text: _Words = ""


class _Usage(Message):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0


class _Said(Message):
    content: Annotated[_Words, BeforeValidator(_joined)] = ""
    refusal: _Words = ""
    tool_calls: Any = None
    function_call: Any = None
    error: Any = None


class _Choice(Message):
    message: Annotated[_Said, BeforeValidator(_as_message)]
    finish_reason: _Words = ""
    error: Any = None


class _Completion(Message):
    choices: Annotated[tuple[Any, ...], BeforeValidator(_sequence), _or(())] = ()
    model: _Words = ""
    usage: Annotated[_Usage, _or(_Usage())] = _Usage()
    error: Any = None
    errors: Any = None
    object: _Words = ""


def _completion(body: str) -> _Completion:
    """Parse a body. NaN is allowed: servers that write NaN among log-probs have been paid too."""
    try:
        content = json.loads(body.removeprefix("\ufeff"))  # a byte order mark
        completion = read(_Completion, content, source="a reply", remedy="Check server.base_url.")
    except (ValueError, RecursionError):
        raise NoCompletionError(read_error(body)) from None
    if is_error(completion.error) or is_error(completion.errors) or completion.object == "error":
        raise NoCompletionError(read_error(body))
    return completion


def _choice(completion: _Completion, body: str) -> _Choice:
    """Return the first choice; an empty choice if the server charged for tokens without sending a choice."""
    first = completion.choices[0] if completion.choices else None
    try:
        choice = read(_Choice, first, source="a choice", remedy="Check server.base_url.")
    except ForeignDataError:
        choice = _Choice(message=_Said())
        failed = completion.usage.completion_tokens == 0 or (
            isinstance(first, dict) and is_error(first.get("error"))
        )
    else:
        broken_off = _FAILED.search(choice.finish_reason) is not None
        failed = broken_off or is_error(choice.error) or is_error(choice.message.error)
    if failed:
        raise NoCompletionError(read_error(body))
    return choice


def _fault(choice: _Choice, parts: ResponseParts, body: str) -> str:
    """Return why a choice has no usable text; empty if its text is usable."""
    reason, message = choice.finish_reason.casefold(), choice.message
    if reason in _CUT:
        return "it was cut off at its limit of tokens"
    if reason not in _FINISHED:
        return f"it did not finish: its finish_reason is {printable(choice.finish_reason[:_SHOWN])}"
    if not parts.finished:
        return "it holds no text: it ends within its thoughts"
    return "" if parts.answer.strip() else _silence(message, body)


def _silence(message: _Said, body: str) -> str:
    """Return why a finished reply has no text."""
    if message.refusal:
        return f"the model refused: {printable(message.refusal[:_SHOWN])}"
    if message.tool_calls or message.function_call:
        return "it calls a tool and says nothing"
    return f"it holds no text: {printable(body[:_SHOWN])!r}"
