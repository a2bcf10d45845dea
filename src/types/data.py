"""The data that flows from questions to rollouts, rewards, advantages and the loss.

Symbols: B questions in a batch, P sample prompts, R responses, T tokens. A question has N rephrasings. The
original and each rephrasing are sampled G times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from .checks import dtype_name, found


class QuestionGroup(NamedTuple):
    """A question and its rephrasings: the unit that loaders, shards and batches never split."""

    id: str
    """Identifier of the question in logs, recordings and errors, unique within the question's source."""
    question: str
    """The original question, q0."""
    rephrasings: tuple[str, ...]
    """q1 … qN: problem-equivalent rewordings. Questions of one source may have different N."""
    answer: tuple[str, ...]
    """Reference answers, any of which is correct. Never empty."""
    metadata: Mapping[str, Any] = {}
    """Source-specific facts (level, subject, phrasing family), kept for analysis."""
    kinds: tuple[str, ...] = ()
    """[N] how each rephrasing changes the question (`wording`, `harder`, `hint`, …).

    Empty if all rephrasings are wordings."""

    def select_rephrasings(self, rows: Iterable[int]) -> QuestionGroup:
        """Return the question with only the rephrasings in `rows`; row 0 is the first rephrasing.

        >>> group = QuestionGroup("a", "1 + 1", ("add 1 to 1", "1 + 1: 2 or 3?"), ("2",), kinds=("wording", "format"))
        >>> group.select_rephrasings([1])[2:]
        (('1 + 1: 2 or 3?',), ('2',), {}, ('format',))
        """
        rows = list(rows)
        kinds = tuple(self.kinds[row] for row in rows) if self.kinds else ()
        return self._replace(rephrasings=tuple(self.rephrasings[row] for row in rows), kinds=kinds)


class Prompt(NamedTuple):
    """One rendered prompt, with the number of responses to sample."""

    question: int
    """Row of the prompt's question in `QuestionBatch.groups`."""
    rephrasing: int
    """0 for the original question, n ≥ 1 for its n-th rephrasing."""
    template: str
    """Name of the prompt's template."""
    text: str
    """The question as the template renders it, before tokenisation."""
    token_ids: Tensor
    """[L] long, the sample prompt, from which responses are sampled."""
    anchor_ids: Tensor
    """[L0] long, the original question in the same template; equal to `token_ids` for originals."""
    num_samples: int
    """G, the number of responses to sample."""
    past: Completion | None = None
    """Response of an earlier policy to replay beside the sampled responses; None without replay."""
    kind: str = ""
    """`original`, or the kind of the rephrasing; empty if the question names no kinds."""
    messages: tuple[Mapping[str, str], ...] | None = None
    """Turns before the response, each with `role` and `content`; None if the prompt is no conversation."""


@dataclass
class QuestionBatch:
    """Batch of the data module. It is mutable, since Lightning rebuilds dataclasses when it moves them."""

    groups: list[QuestionGroup]
    """[B] the questions of this rank."""
    prompts: list[Prompt]
    """[P] sample prompts, ordered by question, then rephrasing, then template."""
    split: str = "train"
    """`train`, or the name of the evaluation split."""
    rollouts: Rollouts | None = None
    """Sampled and scored responses; None until the rollout callback has run."""


class Seconds(dict[str, float]):
    """Wall seconds of each phase on this rank, summed over the steps of an iteration."""

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the wall seconds of the block to `phase`."""
        start = time.perf_counter()
        yield
        self[phase] = self.get(phase, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Sampling settings of responses."""

    temperature: float = 1.0
    """Divisor of the logits: positive, or 0 for greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: keep the smallest set of tokens with this much probability; 1 keeps all tokens."""
    top_k: int = 0
    """Keep only this many of the most likely tokens; 0 keeps all tokens."""
    max_new_tokens: int = 256
    """Largest number of tokens in a response, including the stop token."""

    def __post_init__(self) -> None:
        if (
            not 0 <= self.temperature < math.inf
            or not 0 < self.top_p <= 1
            or self.top_k < 0
            or self.max_new_tokens < 1
        ):
            raise ValueError(
                "Expected a finite temperature ≥ 0, 0 < top_p ≤ 1, top_k ≥ 0 and max_new_tokens ≥ 1, "
                f"but got {self}. Correct rollout.sampling."
            )


class Request(NamedTuple):
    """A request to an engine for responses to prompts."""

    prompts: list[Tensor]
    """[P] of [L_p] long, token ids of each prompt, on the CPU."""
    num_samples: list[int]
    """[P] number of responses to sample for each prompt."""
    sampling: SamplingConfig
    """Sampling settings."""
    seed: int
    """Seed of this request: the same weights, request and seed give the same responses."""
    iteration: int | None = None
    """First training iteration that learns from the responses; None in an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One response of an engine."""

    token_ids: Tensor
    """[T_r] long, including the stop token if there was one. Never empty."""
    logprobs: Tensor
    """[T_r] float32, log-probs under the sample prompt, nats.

    At the sampling temperature, before top-p and top-k are applied; with vLLM, after."""
    truncated: bool
    """True if the length limit, not a stop token, ended the response."""

    def __post_init__(self) -> None:
        kinds = {"token_ids": (self.token_ids, torch.long), "logprobs": (self.logprobs, torch.float32)}
        for name, (values, dtype) in kinds.items():
            if not isinstance(values, Tensor) or values.dtype != dtype or values.ndim != 1:
                wanted = dtype_name(dtype)
                raise TypeError(
                    f"Expected Completion.{name} to be a {wanted} [T] tensor, but got {found(values)}."
                )
        if not len(self.token_ids) == len(self.logprobs) > 0:
            raise ValueError(
                "Expected a Completion to have at least one token and a log-prob of each, but got "
                f"{len(self.token_ids)} token_ids and {len(self.logprobs)} logprobs."
            )
        if not isinstance(self.truncated, bool):
            raise TypeError(f"Expected Completion.truncated to be a bool, but got {found(self.truncated)}.")


class History(NamedTuple):
    """Results of earlier batches on each response's question; see `QuestionMemory`."""

    samples: Tensor
    """[R] long, number of earlier responses to the question and its rephrasings, replayed ones excluded."""
    correct: Tensor
    """[R] long, number of these responses that were correct."""
    same_answer: Tensor
    """[R] long, number of these responses whose final answer equals that of the present response.

    A missing answer counts as an answer."""

    @classmethod
    def joined(cls, parts: Iterable[History | None]) -> History | None:
        """Concatenate the histories of several parts; return None if no part has a history."""
        given = [part for part in parts if part is not None]
        return cls(*map(torch.cat, zip(*given, strict=True))) if given else None


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """R scored responses to the P prompts of one rank's batch, ordered by prompt; tensors on the CPU."""

    prompts: Sequence[Prompt]
    """[P] the prompts that were sampled."""
    prompt: Tensor
    """[R] long, row of the sampled prompt in `prompts`."""
    question: Tensor
    """[R] long, row of the original question in `QuestionBatch.groups`."""
    rephrasing: Tensor
    """[R] long, 0 if the original question was sampled, n ≥ 1 for its n-th rephrasing."""
    token_ids: Sequence[Tensor]
    """[R] of [T_r] long, response tokens with the stop token."""
    logprobs: Sequence[Tensor]
    """[R] of [T_r] float32, engine log-probs under the sample prompt, nats."""
    truncated: Tensor
    """[R] bool, true if the length limit ended the response."""
    text: Sequence[str]
    """[R] decoded responses without special tokens, except tokens that mark thoughts (`[THINK]`)."""
    correct: Tensor
    """[R] bool, the verifier's verdict, which is all that pass@k counts."""
    answers: Sequence[str | None]
    """[R] normalised final answers; None if no answer was found."""
    rewards: Tensor
    """[R] float32, rewards for the advantage strategy, including `reward_terms`.

    Without terms, the reward is `Score.reward`, or `correct` if `Score.reward` is None."""
    replayed: Tensor
    """[R] bool, true for replayed past successes.

    The `logprobs` of a replayed response are those of the policy that sampled it."""
    staleness: Tensor
    """[R] long, optimizer steps from the weights that sampled a response to those that learn from it."""
    reward_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] float32: shaped terms (format, length penalty, noise), each already weighted."""
    reward_parts: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] float32: `Score.parts`, such as the values of reward functions; NaN for missing parts."""
    history: History | None = None
    """Results on the questions before this batch; None in evaluation, or if nothing reads them."""
    seconds: Seconds = field(default_factory=Seconds)
    """Wall seconds of the phases `sync`, `generate` and `score`; later phases of the iteration are added."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def lengths(self) -> Tensor:
        """[R] long, number of tokens in each response, including the stop token."""
        return torch.tensor([len(ids) for ids in self.token_ids], dtype=torch.long)


@dataclass(frozen=True, kw_only=True)
class RewardGroups:
    """Input of an advantage strategy: R responses of one *global* batch (all ranks)."""

    rewards: Tensor
    """[R] float, shaped reward to learn from."""
    correct: Tensor
    """[R] bool, the verifier's verdict."""
    question: Tensor
    """[R] long, id of each response's original question; ids are any integers."""
    prompt: Tensor
    """[R] long, id of each response's prompt. A question has N + 1 prompts per template."""
    entropy: Tensor | None = None
    """[R] float, mean policy entropy per response token under the score prompt, nats."""
    logprob: Tensor | None = None
    """[R] float, policy's log-prob of the whole response under the score prompt, nats."""
    lengths: Tensor | None = None
    """[R] long, number of tokens in each response."""
    answers: Sequence[str | None] | None = None
    """[R] normalised final answers, for strategies that compare them; None if a response has no answer."""
    history: History | None = None
    """Results on the questions before this batch, for strategies that need them."""
    progress: float = 0.0
    """Fraction of training done, 0..1."""

    @classmethod
    def joined(cls, parts: Sequence[RewardGroups]) -> RewardGroups:
        """Concatenate the groups of several ranks into the groups of the global batch.

        On each rank, the ids of questions and prompts are rows of the rank's batch. They are shifted so that
        no two ranks share an id.
        """
        joined: dict[str, Any] = {}
        for name in ("question", "prompt"):
            ids = [getattr(part, name) for part in parts]
            starts = torch.tensor([0] + [int(own.max()) + 1 for own in ids[:-1]]).cumsum(0)
            joined[name] = torch.cat([own + start for own, start in zip(ids, starts, strict=True)])
        for name in ("rewards", "correct", "entropy", "logprob", "lengths"):
            columns = [getattr(part, name) for part in parts]
            if columns[0] is not None:
                joined[name] = torch.cat(columns)
        if parts[0].answers is not None:
            joined["answers"] = [answer for part in parts for answer in part.answers or ()]
        return replace(parts[0], **joined, history=History.joined(part.history for part in parts))


class _ScoreFields(NamedTuple):
    correct: bool
    """Whether the final answer equals a reference answer."""
    answer: str | None
    """The normalised final answer; None if no answer was found."""
    failure: str | None = None
    """Reason for a missing verdict (`timeout`, `memory`, `crash`); None if there is a verdict.

    If a verdict is missing, `correct` is false."""
    reward: float | None = None
    """Graded reward to learn from; None if the reward is the verdict, 1 or 0."""
    parts: tuple[tuple[str, float], ...] = ()
    """(name, value) of each component of `reward`, for logging."""


LARGEST_REWARD = 1e18
"""Largest absolute reward. Sums of squares of larger rewards would overflow float32."""
NO_REWARD = "no reward"
"""`Score.failure` of a response that no reward function has scored.

The response counts as wrong. Its reward is the mean reward of the other responses to its question, so that it
does not change this mean."""


class InvalidScoreError(TypeError):
    """Error for invalid values of a `Score`."""


class Score(_ScoreFields):
    """Judgement of a verifier on one response.

    `correct` must be a bool of Python, numpy or torch. Numbers are refused: other libraries use −1.0 for a
    wrong response, while Python treats every number except 0 as true. A partial or signed reward belongs in
    the field `reward`.

    Raises:
        InvalidScoreError: if a field has a wrong type, `reward` is not finite or is above `LARGEST_REWARD` in
            absolute value, or `correct` is true together with a `failure`.

    >>> Score(True, "27"), Score(False, "27", reward=-0.5)
    (Score(correct=True, answer='27', failure=None),
     Score(correct=False, answer='27', failure=None, reward=-0.5))
    >>> Score(-1.0, "27")
    Traceback (most recent call last):
    tagrpo.types.data.InvalidScoreError: Expected Score.correct to be a bool, but got -1.0...
    """

    __slots__ = ()

    def __new__(
        cls,
        correct: bool | np.bool_ | Tensor,
        answer: str | None,
        failure: str | None = None,
        reward: float | None = None,
        parts: Iterable[tuple[str, float]] = (),
    ) -> Self:
        """Check the fields and make the score; see the class."""
        verdict = _as_bool(correct)
        if verdict is None:
            raise InvalidScoreError(
                f"Expected Score.correct to be a bool, but got {found(correct)}. "
                "Compare a partial or signed reward with a threshold, such as `reward >= 1`, and pass the "
                "reward as Score.reward to learn from it."
            )
        for name, text in (("answer", answer), ("failure", failure)):
            if text is not None and not isinstance(text, str):
                raise InvalidScoreError(f"Expected Score.{name} to be a str or None, but got {found(text)}.")
        if verdict and failure:
            raise InvalidScoreError(
                f"Expected Score.correct to be False with Score.failure={failure!r}, but got True. "
                "A response without a verdict counts as wrong."
            )
        graded = reward
        if reward is not None:
            graded = as_number(reward)
            if graded is None or not abs(graded) <= LARGEST_REWARD:
                raise InvalidScoreError(
                    f"Expected Score.reward to be None or a number of at most {LARGEST_REWARD:g} in absolute "
                    f"value, but got {found(reward)}."
                )
        return super().__new__(cls, verdict, answer, failure, graded, tuple(parts))

    def __repr__(self) -> str:
        """Return the fields as text, without `reward` and `parts` if these are not given."""
        fields = [f"correct={self.correct!r}", f"answer={self.answer!r}", f"failure={self.failure!r}"]
        if self.reward is not None:
            fields.append(f"reward={self.reward!r}")
        if self.parts:
            fields.append(f"parts={self.parts!r}")
        return f"{type(self).__name__}({', '.join(fields)})"

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        """Build a score and check its fields; `_replace` calls this method."""
        return cls(*iterable)


def _as_bool(value: object) -> bool | None:
    """Convert a bool of Python, numpy or torch; return None if `value` is not a bool."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Tensor) and value.dtype == torch.bool and value.ndim == 0:
        return bool(value)
    return None


def as_number(value: object) -> float | None:
    """Convert a real number or bool of Python, numpy or torch; return None if `value` is not a single number.

    >>> as_number(True), as_number(torch.tensor(0.5)), as_number("1"), as_number(torch.zeros(2))
    (1.0, 0.5, None, None)
    """
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim != 0 or (isinstance(value, Tensor) and value.is_complex()):
            return None
        value = value.item()
    if not isinstance(value, Real | np.bool_):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
