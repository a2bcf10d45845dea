"""Calls of a chat model and its replies, which are untrusted: reading one never raises."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One call of a chat model. Calls with equal keys get the same reply and are paid for once."""

    purpose: str  # `rephrase` or `judge`: a row of the account
    model: str
    system: str  # the instruction
    user: str  # the problem
    parameters: Mapping[str, Any] = field(default_factory=dict)  # for the server: temperature, max_tokens, seed, …
    attempt: int = 0  # counts repetitions after unusable replies; each is a call of its own
    expected_tokens: int = 0  # roughly how long the completion will be, for the estimate

    @property
    def key(self) -> str:
        """32 hexadecimal digits of the body and the attempt, the same in every process and session."""
        return hashlib.sha256(json.dumps([self.body(), self.attempt], sort_keys=True).encode()).hexdigest()[:32]

    def body(self) -> dict[str, Any]:
        """The request to the chat completions endpoint."""
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": valid_unicode(self.user)}]
        return {"model": self.model, "messages": messages, **self.parameters}


class Usage(NamedTuple):
    """Tokens that a server charges for."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A chat completion, or the reason why there is none."""

    text: str = ""  # the completion without the reasoning in think tags
    fault: str = ""  # why there is no text; empty where there is one
    model: str = ""  # the server's name of the model that replied
    usage: Usage = Usage()  # noqa: RUF009 (a tuple, which nobody can change)
    time: str = ""  # when it arrived: UTC, ISO 8601


def read_reply(body: str, time: str = "") -> Reply:
    r"""The reply in the body of a response; values that are missing or of another type count as empty.

    >>> read_reply('{"choices": [{"message": {"content": "Add 1 \\ud83d"}}]}').text
    'Add 1 \ufffd'
    >>> read_reply('{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}').fault
    'it was cut off at its limit of tokens'
    >>> read_reply("<html>").fault
    "it holds no text: '<html>'"
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):  # RecursionError: brackets by the thousand
        content = None
    choice = _at(content, dict, "choices", 0)
    said, fault = valid_unicode(_at(choice, str, "message", "content")), ""
    unfinished = said.lstrip().startswith("<think>") and "</think>" not in said  # reasoning that some servers leave in
    text = "" if unfinished else said.rpartition("</think>")[2].strip()
    if not text:
        cut = choice.get("finish_reason") == "length"
        fault = "it was cut off at its limit of tokens" if cut else f"it holds no text: {body[:200]!r}"
    counts = (_at(content, int, "usage", name) for name in Usage._fields)
    usage = Usage(*(count if 0 <= count < 2**53 else 0 for count in counts))
    return Reply(text=text, fault=fault, model=valid_unicode(_at(content, str, "model")), usage=usage, time=time)


def _at(value: Any, kind: type[T], *path: str | int) -> T:
    """The value at a path in parsed JSON; an empty one of this type if it is missing or of another type."""
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return kind()
    return value if type(value) is kind else kind()


def valid_unicode(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which no encoding can write."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
