"""What can be plugged in: strategies, losses, engines, verifiers, reward terms.

Deriving from a protocol inherits its defaults; any other object that has all of its members will do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from torch import Tensor

from .data import Completion, LossInputs, LossOutputs, QuestionGroup, Request, RewardGroups, Rollouts, Score


@runtime_checkable
class AdvantageStrategy(Protocol):
    """Turns the rewards of a global batch into advantages. Derive from it to inherit its defaults."""

    needs_entropy: bool = False
    """Whether `RewardGroups.entropy` is read, which costs a forward over all responses."""

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] float advantages, finite, in the order of `groups`."""
        ...


@runtime_checkable
class Loss(Protocol):
    """The loss of a micro-batch. Derive from it to inherit its defaults."""

    by_token: bool = False
    """Whether it may be called on parts of a micro-batch's tokens, which add up: each logit is then made once."""
    kl_coef: float = 0.0
    """Where it is not zero, a reference policy is loaded and `LossInputs.reference_logprobs` are given."""
    entropy_coef: float = 0.0
    """Where it is not zero, `LossInputs.entropy` carries gradient."""

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """The loss, normalised by the global counts of `inputs`, and the sums of its metrics."""
        ...


Deliver = Callable[[int, list[Completion]], None]
"""Takes the row of a prompt and all its responses, as soon as the last of them is there."""
Finish = Callable[[], list[list[Completion]]]
"""Waits for responses and returns them as `Engine.generate` does. Called once per rank, by the training thread."""


def ignore(prompt: int, completions: list[Completion]) -> None:
    """The `Deliver` of callers that wait for everything."""


@runtime_checkable
class Engine(Protocol):
    """Samples from a copy of the policy that it holds itself. Derive from it to inherit its defaults."""

    asynchronous: bool = False
    """Whether `generate_async` works: whether it can sample while the policy is updated."""

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the policy's weights.

        Args:
            parameters: Hugging Face names and full tensors, tied ones once. Consumed to the end.
        """
        ...

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Sample what `request` asks for.

        Args:
            request: Prompts, numbers of samples, how to draw, and the seed.
            deliver: Called once for each prompt that has samples, in any order and from any thread, though never from
                two at a time, so that responses can be scored while others are sampled.

        Returns:
            [P] of [num_samples[p]], in the order of the prompts.

        Raises:
            EngineError: the engine is gone or hangs, and trying again did not help.
            ValueError: a prompt and the length limit exceed the model's context.
        """
        ...

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """Start what `generate` does and return at once. Nothing else is asked of the engine until `Finish` has been.

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
    """Compares responses with reference answers. Derive from it to inherit its defaults."""

    in_background: bool = False
    """Whether `score_async` works beside the caller, so that handing responses over while others are sampled pays."""

    def __call__(self, response: str, reference: str | Sequence[str]) -> Score:
        """Score one response against its reference answers, any of which is correct."""
        ...

    def score_batch(self, responses: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[Score]:
        """Score each response against the reference answers in the same place."""
        return [self(*pair) for pair in zip(responses, references, strict=True)]

    def score_async(self, responses: Sequence[str], references: Sequence[str | Sequence[str]]) -> Future[list[Score]]:
        """`score_batch` that returns at once where `in_background` is true."""
        future: Future[list[Score]] = Future()
        future.set_result(self.score_batch(responses, references))
        return future

    def close(self) -> None:
        """End worker processes; the next call starts them again."""


@runtime_checkable
class EnumeratingVerifier(Verifier, Protocol):
    """A verifier of tasks whose correct responses can all be listed, which makes pass@k exact."""

    def correct_responses(self, reference: str | Sequence[str]) -> Sequence[str]:
        """Every text that is scored as correct, letter by letter, each once."""
        ...


@runtime_checkable
class RewardTerm(Protocol):
    """A shaped reward that is added to the verdict in training. Any callable of this form is one."""

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:
        """[R] float, one value per response; `groups` are the questions of this rank's batch."""
        ...


def require(value: object, protocol: type, setting: str) -> None:
    """Refuse an object that lacks something its part needs, when the run is built.

    Args:
        value: What was configured.
        protocol: One of the protocols above.
        setting: Its name in the configuration, for the message.

    Raises:
        TypeError: naming the setting and what the object lacks.
    """
    if isinstance(value, protocol):
        return
    members = {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")} | {"__call__"}
    missing = sorted(name for name in members if hasattr(protocol, name) and not hasattr(value, name))
    raise TypeError(
        f"Expected {setting} to be a {protocol.__name__} (tagrpo.types), but {value!r} has no {', '.join(missing)}. "
        f"Derive its class from tagrpo.types.{protocol.__name__}, which has defaults for what is optional."
    )
