"""Replies of a vLLM server, each checked in full before it becomes a response.

Each reader raises `ForeignDataError`, which names the server and the field, and no other error.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field

from ...foreign import Count, ForeignDataError, Message, Text, read_json
from ...types import Completion

ROUNDING = 1e-4
"""Largest accepted log-prob: a certain token has 0, and rounding may add this much."""
COINCIDENCE = 1e-15
"""Equal responses count as copies if their probability of being equal by coincidence is below this number.

In a million requests, an error has the probability 1e-9."""
REMEDY = (
    "Start the server with the vLLM of this installation and the flags that `python -m tagrpo.rollouts.transfer.flags` "
    "prints, or take it out of rollout.engine.url."
)


class WeightInfo(Message):
    """Reply of `/weight_info`."""

    weight_version: Text
    """The version that the trainer gave the weights."""


class Model(Message):
    """A model that a server serves."""

    max_model_len: Annotated[int, Field(ge=1)]
    """Tokens of the longest prompt and response together."""


class Models(Message):
    """Reply of `/v1/models`."""

    data: Annotated[list[Model], Field(min_length=1)]
    """Models of the server; the first one is used."""


class Span(Message):
    """Tokens of a response that the same weights sampled."""

    version: Text
    """Version of the weights."""
    start: Count
    """First token."""
    end: Count
    """Last token, exclusive."""


class TokenLogprob(Message):
    """The log-prob of a sampled token."""

    logprob: Annotated[float, Field(allow_inf_nan=False, le=ROUNDING)]
    """Nats."""
    token_id: Count | None = None
    """Token id; None if the server does not repeat it here."""


class Logprobs(Message):
    """Log-probs of a response."""

    content: list[TokenLogprob]
    """[T] log-probs, one for each token."""


class Choice(Message):
    """One response."""

    index: Count
    """Number of the sample within its request."""
    token_ids: Annotated[list[Count], Field(min_length=1)]
    """[T] tokens, the stop token included."""
    logprobs: Logprobs
    """Log-probs of the tokens."""
    finish_reason: Literal["stop", "length"]
    """Why the response ended; any other reason means that it is incomplete."""
    weight_versions: Annotated[list[Span], Field(min_length=1)]
    """Weights that sampled the response, from first token to last."""


class Generated(Message):
    """Reply of `/inference/v1/generate`."""

    choices: list[Choice]
    """Responses in any order."""


class Asked(NamedTuple):
    """Contents of a request, which its reply must match."""

    num_samples: int
    """Number of responses."""
    max_new_tokens: int
    """Length limit of a response."""
    vocabulary: int
    """Upper bound of token ids, exclusive."""
    stop_ids: Sequence[int]
    """Tokens that end a response."""
    version: str
    """Version of the weights."""
    random: bool
    """Whether each response has a seed of its own; false for greedy decoding."""

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest reply that is read; vLLM takes about 200 bytes per token."""
        return (1 << 20) + 512 * self.num_samples * self.max_new_tokens


def read_generated(
    content: bytes, asked: Asked, source: str, earlier: Sequence[Completion] = ()
) -> list[Completion]:
    """Read the reply to a request for responses, in the order of their indices.

    Args:
        content: Body of the reply.
        asked: The request.
        source: The server, as errors name it.
        earlier: Responses to earlier requests for the same prompt, which have other seeds.

    Raises:
        ForeignDataError: if the reply does not match the request, or repeats `earlier` responses.
    """
    choices = read_json(Generated, content, source=source, remedy=REMEDY).choices
    found = sorted(choice.index for choice in choices)
    if found != list(range(asked.num_samples)):
        _refuse(
            source, "choices", f"have the indices 0 to {asked.num_samples - 1} once each", str(found[:16])
        )
    for row, choice in enumerate(choices):
        _check_tokens(choice, asked, source, f"choices[{row}]")
        _check_versions(choice, asked.version, source, f"choices[{row}]")
    completions = [_completion(choice) for choice in sorted(choices, key=lambda choice: choice.index)]
    if asked.random and (copies := _copies([*earlier, *completions])):
        _refuse(
            source,
            "choices",
            "be samples with seeds of their own",
            f"{copies} equal ones, whose log-probs make that a coincidence of less than {COINCIDENCE:g}",
        )
    return completions


def _check_tokens(choice: Choice, asked: Asked, source: str, place: str) -> None:
    """Check the tokens of a response, their log-probs, and how the response ended."""
    ids, entries = choice.token_ids, choice.logprobs.content
    if len(ids) > asked.max_new_tokens:
        _refuse(source, f"{place}.token_ids", f"be at most {asked.max_new_tokens} tokens", f"{len(ids)}")
    if max(ids) >= asked.vocabulary:
        _refuse(
            source,
            f"{place}.token_ids",
            f"be below {asked.vocabulary}, the size of the vocabulary",
            f"{max(ids)}",
        )
    if len(entries) != len(ids):
        _refuse(source, f"{place}.logprobs.content", f"be {len(ids)}, one for each token", f"{len(entries)}")
    for position, (token, entry) in enumerate(zip(ids, entries, strict=True)):
        if entry.token_id is not None and entry.token_id != token:
            where = f"{place}.logprobs.content[{position}].token_id"
            _refuse(source, where, f"be {token}, as in token_ids", f"{entry.token_id}")
    stops = [position for position, token in enumerate(ids) if token in asked.stop_ids]
    if stops and stops[0] < len(ids) - 1:
        _refuse(
            source, f"{place}.token_ids", f"end at the stop token in place {stops[0]}", f"{len(ids)} tokens"
        )
    if choice.finish_reason == "stop" and not stops:
        _refuse(source, f"{place}.finish_reason", f"be length without one of {list(asked.stop_ids)}", "stop")
    if choice.finish_reason == "length" and len(ids) < asked.max_new_tokens:
        _refuse(source, f"{place}.finish_reason", f"be stop before {asked.max_new_tokens} tokens", "length")


def _check_versions(choice: Choice, version: str, source: str, place: str) -> None:
    """Check that the weights `version` sampled every token of a response."""
    versions = sorted({span.version for span in choice.weight_versions})
    if versions != [version]:
        _refuse(source, f"{place}.weight_versions", f"be of the weights {version}", repr(versions[:4]))
    end = 0
    for span in choice.weight_versions:
        if span.start != end or span.end < span.start:
            _refuse(
                source,
                f"{place}.weight_versions",
                f"have a span from token {end} on",
                f"{span.start}:{span.end}",
            )
        end = span.end
    if end != len(choice.token_ids):
        _refuse(source, f"{place}.weight_versions", f"cover {len(choice.token_ids)} tokens", f"{end}")


def _completion(choice: Choice) -> Completion:
    return Completion(
        token_ids=torch.tensor(choice.token_ids, dtype=torch.long),
        logprobs=torch.tensor([entry.logprob for entry in choice.logprobs.content], dtype=torch.float32),
        truncated=choice.finish_reason == "length",
    )


def _copies(completions: Sequence[Completion]) -> int:
    """Return the number of equal responses if their log-probs rule out a coincidence; otherwise return 0.

    Among n independent samples, c samples of probability p each are equal with probability C(n, c) p^(c − 1)
    at most. Responses that are short or nearly certain may well be equal.
    """
    texts = [tuple(completion.token_ids.tolist()) for completion in completions]
    for text, count in Counter(texts).items():
        if count == 1:
            continue
        logprob = float(completions[texts.index(text)].logprobs.double().sum())
        if math.log(math.comb(len(texts), count)) + (count - 1) * logprob < math.log(COINCIDENCE):
            return count
    return 0


def _refuse(source: str, place: str, expected: str, found: str) -> None:
    raise ForeignDataError(f"Expected {place} of {source} to {expected}, but got {found[:200]}. {REMEDY}")
