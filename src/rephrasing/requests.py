"""What is asked of a model and what comes back: the unit that is paid for, stored and never asked twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of a chat model.

    Its `key` covers what the answer depends on and nothing else. The form on the wire (structured output or plain
    text, one call or a batch), the estimate and the question's id are left out: changing them never pays for an answer
    again, and questions that occur twice in the same words are asked once.
    """

    purpose: str
    """`rephrase`, `judge` or `solve`."""
    question: str
    """Id of the question."""
    model: str
    """Name of the model on its server."""
    system: str
    """The instruction."""
    user: str
    """The problem."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, handed to the server as they are: temperature, max_tokens, seed, …"""
    samples: int = 1
    """Completions wanted (`n` of the protocol)."""
    attempt: int = 0
    """Counts repetitions after unusable answers; each is a request of its own."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the reply, for servers with structured outputs; None for free text."""
    plain_format: str = ""
    """How to write the reply where there are no structured outputs; appended to the instruction."""
    expected_tokens: int = 0
    """Completion tokens that each sample will about take, for the estimate."""

    @property
    def key(self) -> str:
        """32 hexadecimal digits, the same in every process and session."""
        facts = {name: getattr(self, name) for name in ("purpose", "model", "system", "user", "samples", "attempt")} | {
            "parameters": dict(self.parameters)
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=dict).encode()).hexdigest()[:32]

    def body(self, structured: bool) -> dict[str, Any]:
        """The request as the chat completions endpoint takes it."""
        structured = structured and self.schema is not None
        # Said in words as well: some servers take the schema and ignore it.
        reply = (
            f"Reply with a JSON object of this schema: {json.dumps(self.schema)}" if structured else self.plain_format
        )
        system = f"{self.system}\n\n{reply}" if reply else self.system
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": self.user}],
            **self.parameters,
        }
        if self.samples > 1:
            body["n"] = self.samples
        if structured:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": self.purpose, "strict": True, "schema": self.schema},
            }
        return body


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens that a server charges for."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that the server had in its cache."""

    @classmethod
    def of(cls, usage: Any) -> Usage:
        """From the `usage` of a response body, whose fields may be missing."""
        usage = usage or {}
        details = usage.get("prompt_tokens_details") or {}
        return cls(
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cached_tokens=int(details.get("cached_tokens") or 0),
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A paid answer, as the store keeps it."""

    key: str
    purpose: str
    question: str
    texts: tuple[str, ...]
    """One per completion, reasoning in think tags left out; empty for a refusal."""
    truncated: bool
    """Some completion ended at its token limit."""
    model: str
    """What the server calls the model that answered."""
    request_id: str
    """The server's name of this answer, for its support and its bill."""
    usage: Usage
    time: str
    """UTC, ISO 8601."""
    tries: int = 1
    """Calls that it took; those before the last failed."""
    batch: bool = False
    """Came through the batch interface, at its price."""

    @classmethod
    def of(cls, body: Any, *, key: str, purpose: str, question: str, time: str, **facts: Any) -> Answer:
        """From the body of a chat completion, as a server sent it.

        Raises:
            ValueError: the body is not one.
        """
        choices = body.get("choices") if isinstance(body, Mapping) else None
        if not isinstance(choices, Sequence) or not choices or not all(isinstance(c, Mapping) for c in choices):
            raise ValueError(f"expected a chat completion with `choices`, but got {str(body)[:200]!r}")
        return cls(
            key=key,
            purpose=purpose,
            question=question,
            texts=tuple(without_reasoning((choice.get("message") or {}).get("content") or "") for choice in choices),
            truncated=any(choice.get("finish_reason") == "length" for choice in choices),
            model=str(body.get("model") or ""),
            request_id=str(body.get("id") or ""),
            usage=Usage.of(body.get("usage")),
            time=time,
            **facts,
        )

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Answer:
        """What `to_json` wrote."""
        return cls(**{**fields, "texts": tuple(fields["texts"]), "usage": Usage(**fields["usage"])})


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What came of a set of requests."""

    answers: Mapping[str, Answer]
    """key → answer, those of earlier sessions included."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """key → why there is no answer. Nothing was paid for, and the next session asks again."""


class Completer(Protocol):
    """Answers requests: from the store where it can, else by asking a server."""

    async def complete(self, requests: Sequence[Request]) -> Answers:
        """All answers that could be had. Equal keys are asked once."""
        ...


def without_reasoning(text: str) -> str:
    r"""A reply without the reasoning that some servers leave in it; empty when the reasoning never ended.

    >>> without_reasoning("<think>Well …</think>\nYes."), without_reasoning("Yes."), without_reasoning("<think>Well")
    ('Yes.', 'Yes.', '')
    """
    if text.lstrip().startswith("<think>") and "</think>" not in text:
        return ""
    return text.rpartition("</think>")[2].strip()


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
