"""Calls of a chat model and its replies, which are untrusted: reading one never raises."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One call of a chat model. Calls with equal keys get the same reply and are paid for once."""

    purpose: str
    """`rephrase` or `judge`: a row of the account."""
    model: str
    system: str
    """The instruction."""
    user: str
    """The problem."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, handed to the server as they are: temperature, max_tokens, seed, …"""
    attempt: int = 0
    """Counts repetitions after unusable replies; each is a call of its own."""
    expected_tokens: int = 0
    """Roughly how long the completion will be, for the estimate."""

    @property
    def key(self) -> str:
        """32 hexadecimal digits of the body and the attempt, the same in every process and session."""
        return hashlib.sha256(json.dumps([self.body(), self.attempt], sort_keys=True).encode()).hexdigest()[:32]

    def body(self) -> dict[str, Any]:
        """The request to the chat completions endpoint."""
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": valid_unicode(self.user)}]
        return {"model": self.model, "messages": messages, **self.parameters}


class Usage(NamedTuple):
    """Tokens that a server charges for; `cached_tokens` are those prompt tokens that it had in its own cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A chat completion as far as it could be read, or the reason why there is none."""

    text: str = ""
    """The completion without the reasoning in think tags; empty where nothing could be read."""
    fault: str = ""
    """Why there is no text; empty where there is one."""
    model: str = ""
    """The server's name of the model that replied."""
    usage: Usage = Usage()  # noqa: RUF009 (a tuple, which nobody can change)
    time: str = ""
    """When it arrived: UTC, ISO 8601."""


def read_reply(body: str, time: str = "") -> Reply:
    r"""The reply in the body of a response; what is missing or of another type counts as empty.

    >>> read_reply('{"choices": [{"message": {"content": "Add 1 \\ud83d"}}]}').text
    'Add 1 \ufffd'
    >>> read_reply('{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}').fault
    'it was cut off at its limit of tokens'
    >>> read_reply("<html>").fault
    "it holds no text: '<html>'"
    """
    try:
        content = _mapping(json.loads(body))
    except (ValueError, RecursionError):  # RecursionError: brackets by the thousand
        content = {}
    choices = content.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    text, fault = without_reasoning(_text(_mapping(choice.get("message")).get("content"))), ""
    if not text:
        cut = choice.get("finish_reason") == "length"
        fault = "it was cut off at its limit of tokens" if cut else f"it holds no text: {body[:200]!r}"
    counts = _mapping(content.get("usage"))
    cached = _mapping(counts.get("prompt_tokens_details")).get("cached_tokens")
    usage = Usage(*map(_count, (counts.get("prompt_tokens"), counts.get("completion_tokens"), cached)))
    return Reply(text=text, fault=fault, model=_text(content.get("model")), usage=usage, time=time)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return valid_unicode(value) if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


def valid_unicode(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which no encoding can write."""
    return _SURROGATE.sub("\ufffd", text)


def without_reasoning(text: str) -> str:
    r"""A completion without the reasoning that some servers leave in it; empty when the reasoning never ended.

    >>> without_reasoning("<think>Well …</think>\nYes."), without_reasoning("Yes."), without_reasoning("<think>Well")
    ('Yes.', 'Yes.', '')
    """
    if text.lstrip().startswith("<think>") and "</think>" not in text:
        return ""
    return text.rpartition("</think>")[2].strip()
