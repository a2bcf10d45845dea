"""The vocabulary: the data that flows through an iteration, and the parts that can be plugged in.

Symbols: B questions in a batch, P sample prompts, R responses, T tokens. A question has N rephrasings; the original and
each rephrasing are sampled G times.

Deriving from a protocol inherits its defaults; any other object that has all of its members will do as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class QuestionGroup(NamedTuple):
    """A question and its rephrasings: the unit that loaders, shards and batches never split."""

    id: str  # unique within its source; names the question in logs, recordings and errors
    question: str  # the original question, q0
    rephrasings: tuple[str, ...]  # q1 … qN: problem-equivalent rewordings; N may differ between questions of a source
    answer: tuple[str, ...]  # reference answers, any of which is correct. Never empty.
    metadata: Mapping[str, Any] = {}  # source-specific facts (level, subject, phrasing family), kept for analysis
    kinds: tuple[str, ...] = ()  # [N] how each one changes the question (`harder`, `hint`, …); empty: all are wordings

    def select_rephrasings(self, rows: Iterable[int]) -> QuestionGroup:
        """The question with the rephrasings in `rows` alone, 0 being the first.

        >>> group = QuestionGroup("a", "1 + 1", ("add 1 to 1", "1 + 1: 2 or 3?"), ("2",), kinds=("wording", "format"))
        >>> group.select_rephrasings([1])[2:]
        (('1 + 1: 2 or 3?',), ('2',), {}, ('format',))
        """
        rows = list(rows)
        kinds = tuple(self.kinds[row] for row in rows) if self.kinds else ()
        return self._replace(rephrasings=tuple(self.rephrasings[row] for row in rows), kinds=kinds)


class Prompt(NamedTuple):
    """One rendered prompt, and how often it is to be sampled."""

    question: int  # row of its question in `QuestionBatch.groups`
    rephrasing: int  # 0 for the original question, n ≥ 1 for its n-th rephrasing
    template: str  # name of the template it was rendered in
    text: str  # the question as the template renders it, before tokenisation
    token_ids: Tensor  # [L] long: the sample prompt, from which responses are drawn
    anchor_ids: Tensor  # [L0] long: the original question in the same template; `token_ids` where that is sampled
    num_samples: int  # G: responses to draw
    past: Completion | None = None  # a response of an earlier policy that joins those that are drawn; for replay
    kind: str = ""  # `original`, or the kind of its rephrasing; empty where the question names none


class Step(NamedTuple):
    """A part of a response, and what it earns. Steps of one response may overlap, and need not cover it."""

    start: int  # where it begins: in a `Score` a character of the response's text, elsewhere one of its tokens
    end: int  # where it ends, exclusive and greater than `start`, in the same unit
    value: float  # its reward, finite. It has no unit: the credit that reads it sets the scale.


@dataclass
class QuestionBatch:
    """A batch of the data module. Mutable, because Lightning rebuilds the dataclasses that it moves between devices."""

    groups: list[QuestionGroup]  # [B] the questions of this rank
    prompts: list[Prompt]  # [P] sample prompts, ordered by question, then rephrasing, then template
    split: str = "train"  # `train`, or the name of the evaluation split
    rollouts: Rollouts | None = None  # sampled and scored responses; None until the rollout callback has run


class Seconds(dict[str, float]):
    """Phase → wall seconds on this rank; every step of an iteration adds its own."""

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the wall seconds of the block to `phase`."""
        start = time.perf_counter()
        yield
        self[phase] = self.get(phase, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How responses are drawn."""

    temperature: float = 1.0
    """Divides the logits. Positive, or 0 for greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: the smallest set of tokens with this much probability; 1 keeps all."""
    top_k: int = 0
    """Keep this many tokens; 0 keeps all."""
    max_new_tokens: int = 256
    """Length limit of a response, stop token included."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_new_tokens < 1:
            raise ValueError(
                "Expected temperature ≥ 0, 0 < top_p ≤ 1, top_k ≥ 0 and max_new_tokens ≥ 1, "
                f"but got {self}. Correct rollout.sampling."
            )


class Request(NamedTuple):
    """Prompts to sample from, and how."""

    prompts: list[Tensor]  # [P] of [L_p] long, on the CPU
    num_samples: list[int]  # [P] number of responses to draw for each prompt
    sampling: SamplingConfig  # how to draw
    seed: int  # seed of this request: the same weights, request and seed give the same responses


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One response as an engine returns it."""

    token_ids: Tensor  # [T_r] long, the stop token included when there was one. Never empty.
    logprobs: Tensor
    """[T_r] float32 log-probs, nats, under the sample prompt, at its temperature, before top-p, top-k (vLLM: after)."""
    truncated: bool  # true when the length limit ended it rather than a stop token


class History(NamedTuple):
    """Earlier results on the question of each response, those of its own batch left out; see `QuestionMemory`."""

    samples: Tensor  # [R] long, earlier responses to the question and its rephrasings, without replayed ones
    correct: Tensor  # [R] long, how many of them were correct
    same_answer: Tensor  # [R] long, how many of them gave the same final answer as this response; none counts as one

    @classmethod
    def joined(cls, parts: Iterable[History | None]) -> History | None:
        """Concatenate the histories of several parts; None where no part has one."""
        given = [part for part in parts if part is not None]
        return cls(*map(torch.cat, zip(*given, strict=True))) if given else None


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """R scored responses to the P prompts of one rank's batch, ordered by prompt. All tensors on the CPU."""

    prompts: Sequence[Prompt]  # [P] the prompts that were sampled
    prompt: Tensor  # [R] long, row of the sampled prompt in `prompts`
    question: Tensor  # [R] long, row of the original question in `QuestionBatch.groups`
    rephrasing: Tensor  # [R] long, 0 where the original question was sampled, n ≥ 1 for its n-th rephrasing
    token_ids: Sequence[Tensor]  # [R] of [T_r] long, response tokens with the stop token
    logprobs: Sequence[Tensor]  # [R] of [T_r] float32, engine log-probs under the sample prompt, nats
    truncated: Tensor  # [R] bool, ended by the length limit
    text: Sequence[str]  # [R] decoded responses, special tokens left out
    correct: Tensor  # [R] bool, the verifier's verdict. Pass@k counts this and nothing else.
    answers: Sequence[str | None]  # [R] normalised final answers; None where none was found
    rewards: Tensor  # [R] float32, what the advantage strategy learns from: `correct` plus the sum of `reward_terms`
    replayed: Tensor  # [R] bool, past successes, replayed: their `logprobs` are those of the policy that sampled them
    staleness: Tensor  # [R] long, optimizer steps from the weights that sampled the response to those that it updates
    reward_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] float32: shaped terms (format, length penalty, noise), each already weighted."""
    history: History | None = None  # the questions before this batch; None where nobody reads it, and in evaluation
    steps: Sequence[Sequence[Step]] | None = None
    """[R] of any number of steps each, counted in tokens of the response; None where the verifier has given none."""
    seconds: Seconds = field(default_factory=Seconds)
    """Wall seconds of the phases `sync`, `generate` and `score`; later phases of the iteration add theirs."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def lengths(self) -> Tensor:
        """[R] long, response tokens, stop token included."""
        return torch.tensor([len(ids) for ids in self.token_ids], dtype=torch.long)


@dataclass(frozen=True, kw_only=True)
class RewardGroups:
    """Input of an advantage strategy: R responses of one *global* batch (all ranks)."""

    rewards: Tensor  # [R] float, shaped reward to learn from
    correct: Tensor  # [R] bool, the verifier's verdict
    question: Tensor  # [R] long, original question of each response; any distinct integers
    prompt: Tensor  # [R] long, sampled prompt of each response (a question has N+1, more with several templates)
    entropy: Tensor | None = None  # [R] float, mean policy entropy per response token under the score prompt, nats
    logprob: Tensor | None = None  # [R] float, policy's log-prob of the whole response under the score prompt, nats
    lengths: Tensor | None = None  # [R] long, tokens per response
    history: History | None = None  # records of the questions before this batch, for strategies that look back
    progress: float = 0.0  # fraction of training done, 0..1


class Score(NamedTuple):
    """A verifier's judgement of one response."""

    correct: bool  # whether the final answer equals a reference answer
    answer: str | None  # the normalised final answer; None where none was found
    failure: str | None = None  # why there is no verdict, so `correct` is false: `timeout`, `memory` or `crash`
    steps: Sequence[Step] = ()
    """Rewards for parts of the response, counted in characters of its text; they change neither verdict nor reward."""


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """T tokens of a packed micro-batch, all or some. Normalisers are global: parts, micro-batches and ranks add up."""

    logprobs: Tensor  # [T] float32 with gradient, log π_θ of each response token under the score prompt, nats
    old_logprobs: Tensor
    """[T] float32, the same before this batch's first update: `logprobs` in the first mini-batch, unless replayed."""
    reference_logprobs: Tensor | None  # [T] float32, the same under the reference policy; needed unless `kl_coef` is 0
    entropy: Tensor | None  # [T] float32, entropy at each token, nats; with gradient where `entropy_coef` is not 0
    advantages: Tensor  # [R] float32, one per response of this micro-batch
    response: Tensor  # [T] long, non-decreasing: row of each token's response in `advantages`
    lengths: Tensor  # [R] long, tokens per response, including tokens that are in other parts of the micro-batch
    num_responses: float  # responses of the mini-batch over all ranks, including those dropped for lack of gradient
    num_tokens: float  # response tokens of the mini-batch over all ranks, likewise
    weights: Tensor | None = None  # [T] float32 without gradient, factors of the policy term; None means ones
    replayed: Tensor | None = None  # [R] bool, of an earlier policy, whose log-probs `old_logprobs` are; None: none
    token_advantages: Tensor | None = None  # [T] float32, replaces `advantages` (`TokenCredit`)
    token_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [T] float32, coefficients of terms that are added to the loss of a token (`losses.TOKEN_TERMS`)."""


@dataclass(frozen=True, kw_only=True)
class CreditInputs:
    """Input of token credit: R responses of this rank, and the T tokens of those that count in the loss.

    The responses are those of one mini-batch, or of the whole batch where the credit has `whole_batch`. A rank may have
    none. All tensors are on the CPU.
    """

    groups: RewardGroups  # of the R responses; questions and prompts have ids of this rank; `history` if it is needed
    advantages: Tensor  # [R] float32, what the advantage strategy made of the rewards of all ranks
    prompts: Sequence[Tensor]  # [R] of [L_r] long, score prompts
    responses: Sequence[Tensor]  # [R] of [T_r] long, response tokens
    response: Tensor  # [T] long, non-decreasing: row of each token's response
    logprobs: Tensor  # [T] float32, log π of each token under the score prompt before the batch's first update, nats
    entropy: Tensor  # [T] float32, entropy of the same policy at each token, nats
    texts: Sequence[str] = ()  # [R] decoded responses
    steps: Sequence[Sequence[Step]] = ()  # [R] of the rewarded steps, counted in tokens of the response
    reward_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] float32, the shaped terms that `groups.rewards` hold beside the verdict."""

    @property
    def step_rewards(self) -> Tensor:
        """[T] float32: the reward of each step at its last token, 0 at all others."""
        rewards = torch.zeros(len(self.response))
        first = torch.searchsorted(self.response, torch.arange(len(self.steps))).tolist()
        for row in self.response.unique().tolist():
            for step in self.steps[row]:
                rewards[first[row] + step.end - 1] += step.value
        return rewards


class Credit(NamedTuple):
    """Output of token credit for the T tokens that it was given."""

    advantages: Tensor  # [T] float32, finite; 0 where a token has no policy gradient
    terms: Mapping[str, Tensor] = {}  # name → [T] float32, see `LossInputs.token_terms`


@dataclass(frozen=True, kw_only=True)
class LossOutputs:
    """The loss of a micro-batch and the sums that its metrics are made of."""

    loss: Tensor  # [] float32. Summed over micro-batches and ranks it is the loss of the mini-batch.
    sums: Mapping[str, Tensor]  # name → [] sum over the response tokens (`kl`, `ratio`, …), without gradient
    response_sums: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] the same sums over the tokens of each response of this micro-batch."""


@runtime_checkable
class AdvantageStrategy(Protocol):
    """Turns the rewards of a global batch into advantages."""

    needs_entropy: bool = False  # whether `RewardGroups.entropy` is read, which costs a forward over all responses
    needs_logprobs: bool = False  # whether `RewardGroups.logprob` is read; one forward serves both
    needs_history: bool = False  # whether `RewardGroups.history` is read, for which the run remembers every question
    reads_rewards: bool = True  # whether `RewardGroups.rewards` is read; if not, reward terms are refused

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] float advantages, finite, in the order of `groups`."""


@runtime_checkable
class TokenCredit(Protocol):
    """Turns the advantages of responses into those of their tokens. Costs a forward, which gives old log-probs too."""

    whole_batch: bool = False  # whether it is called once with a whole batch, not once for each mini-batch
    needs_history: bool = False  # whether `CreditInputs.groups.history` is read: the run remembers every question

    def __call__(self, inputs: CreditInputs) -> Credit:
        """[T] advantages, and terms of the loss. All ranks call it together, also those without responses."""


@runtime_checkable
class Loss(Protocol):
    """The loss of a micro-batch."""

    by_token: bool = False
    """Whether it may be called on parts of a micro-batch's tokens, with losses that add up: each logit is made once."""
    kl_coef: float = 0.0  # where it is not 0, there is a reference policy, and `LossInputs.reference_logprobs`
    entropy_coef: float = 0.0  # where it is not 0, `LossInputs.entropy` carries gradient
    takes_credit: bool = False  # whether `LossInputs.token_advantages` and `token_terms` are read, as token credit asks

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """The loss, normalised by the global counts of `inputs`, and the sums of its metrics."""


Deliver = Callable[[int, list[Completion]], None]
"""Takes the row of a prompt and all its responses, as soon as the last response is complete."""
Finish = Callable[[], list[list[Completion]]]
"""Waits for responses and returns them as `Engine.generate` does. Called once per rank, by the training thread."""


def ignore(prompt: int, completions: list[Completion]) -> None:
    """Do nothing: the `Deliver` of callers that wait for all responses."""


@runtime_checkable
class Engine(Protocol):
    """Samples from a copy of the policy that it holds itself."""

    asynchronous: bool = False  # whether `generate_async` works, to sample while the policy is updated

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load the policy's weights: Hugging Face names and full tensors, tied ones once. Must exhaust the iterator."""

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Sample what `request` asks for: [P] of [num_samples[p]], in the order of the prompts.

        `deliver` is called once for each prompt that has samples, in any order and from any thread, never two at a
        time, so that responses can be scored while others are sampled.

        Raises:
            EngineError: the engine is gone or hangs, and trying again did not help.
            ValueError: a prompt and the length limit exceed the model's context.
        """

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """Start `generate` in the background. Do not call the engine again until `Finish` returns.

        What runs meanwhile calls no collectives, leaves torch's random state alone and shares no weights with the
        trainer. `Finish` may be collective, and raises what `generate` does.
        """
        raise NotImplementedError(f"{type(self).__name__} can't sample while the policy is updated.")

    def sleep(self) -> None:
        """Give memory back until the next `sync` or `generate`. Does nothing where there is nothing to give back."""

    def close(self) -> None:
        """Give memory and processes back for good."""


@runtime_checkable
class Verifier(Protocol):
    """Compares responses with reference answers."""

    in_background: bool = False  # whether `score_async` scores in the background, so that calling it early pays

    def __call__(self, response: str, reference: str | Sequence[str]) -> Score:
        """Score one response against its reference answers, any of which is correct."""

    def score_batch(self, responses: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[Score]:
        """Score each response against the reference answers in the same place."""
        return [self(*pair) for pair in zip(responses, references, strict=True)]

    def score_async(
        self, responses: Sequence[str], references: Sequence[str | Sequence[str]]
    ) -> Callable[[], list[Score]]:
        """Start `score_batch` if `in_background` is true; return at once a function that waits for the scores."""
        return partial(self.score_batch, responses, references)

    def check_reference(self, reference: str | Sequence[str]) -> None:
        """Raise a ValueError if no response could match the reference answers of a question; called on loading."""

    def close(self) -> None:
        """End worker processes; the next call starts them again."""


@runtime_checkable
class EnumeratingVerifier(Verifier, Protocol):
    """A verifier of tasks whose correct responses can all be listed, which makes pass@k exact."""

    def correct_responses(self, reference: str | Sequence[str]) -> Sequence[str]:
        """Every text that is scored as correct, verbatim, each once."""


@runtime_checkable
class RewardTerm(Protocol):
    """A shaped reward that is added to the verdict in training. Any callable of this form is one."""

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:
        """[R] float, one value per response; `groups` are the questions of this rank's batch."""


Ask = Callable[[Sequence[QuestionGroup]], QuestionBatch]
"""Samples and scores the rephrasings of questions, without the questions themselves; returns a batch with rollouts.

Each rephrasing gets as many responses as a prompt of the batch, from the present weights, and is verified against the
answers of its question. Rephrasings that are empty, too long, or equal to their question or an earlier rephrasing are
left out, as are questions without any left. Collective: every rank calls it equally often, if need be with nothing.
"""


@runtime_checkable
class Reformulator(Protocol):
    """Reformulates questions in the loop, by what the policy has responded to them."""

    def extend(self, batch: QuestionBatch, ask: Ask) -> Sequence[QuestionBatch]:
        """Return batches from `ask`, perhaps with other rewards, that join the training batch. Collective.

        `batch` has its rollouts. With dynamic sampling its questions have a gradient, and returned questions without
        one are left out. Each question that is asked joins as a question of its own: give it an id of its own.
        """

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run, the same on every rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""


@runtime_checkable
class SampledPolicy(Protocol):
    """The part of `PolicyModule` that callbacks and engines use. Of other modules, engines get parameters by name."""

    mini_batches: int = 1  # optimizer steps on each batch of rollouts, if none is skipped
    needs_history: bool = False  # whether `Rollouts.history` is read

    def full_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Hugging Face names and full tensors, for `Engine.sync`. Collective: every rank must exhaust it."""

    def response_entropy(self, prompts: Sequence[Prompt], responses: Sequence[Tensor]) -> Tensor:
        """[n] float32, mean entropy per token of a rank's responses under the policy, nats; for replay. Collective."""


def require(value: object, protocol: type, setting: str) -> None:
    """Raise a TypeError, when a run is built, if `value`, chosen by `setting`, lacks members of `protocol`."""
    if isinstance(value, protocol):
        return
    members = {*vars(protocol), *protocol.__annotations__}
    missing = sorted(n for n in members if (n == "__call__" or not n.startswith("_")) and not hasattr(value, n))
    raise TypeError(
        f"Expected {setting} to be a {protocol.__name__} ({protocol.__module__}), but {value!r} has no "
        f"{', '.join(missing)}. Derive its class from it: it has defaults for what is optional."
    )


NESTED = frozenset({"rollouts", "groups", "prompts"})  # fields of a batch that have fields themselves


class Fields:
    """Reads `fields.name` as an attribute of an object or a key of a mapping, `NESTED` ones likewise.

    Diagnostics read batches through it, so that other projects need not use our types. Errors call the batch `name`.

    >>> batch = {"groups": [{"id": "7"}], "rollouts": {"text": ["two"]}}
    >>> Fields("batch", batch).groups[0].id, Fields("batch", batch).rollouts.text
    ('7', ['two'])
    >>> Fields("batch", batch).rollouts.answers
    Traceback (most recent call last):
    AttributeError: Expected batch.rollouts to have `answers`, but it has text. ...
    """

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):  # asked by copy and pickle
            raise AttributeError(key)
        here = f"{self._name}.{key}"
        try:
            value = self._value[key] if isinstance(self._value, Mapping) else getattr(self._value, key)
        except (KeyError, AttributeError):
            names = self._value if isinstance(self._value, Mapping) else dir(self._value)
            has = ", ".join(sorted(str(name) for name in names if not str(name).startswith("_")))
            raise AttributeError(
                f"Expected {self._name} to have `{key}`, but it has {has or 'nothing'}. "
                "docs/reuse.md has a table of what each callback reads: add it, or leave the callback out."
            ) from None
        if key in NESTED:
            parts = enumerate(value) if isinstance(value, Sequence) else None
            value = Fields(here, value) if parts is None else [Fields(f"{here}[{row}]", part) for row, part in parts]
            setattr(self, key, value)  # so that many prompts are wrapped only once
        return value
