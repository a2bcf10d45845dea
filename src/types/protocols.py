"""Interfaces of parts that can be plugged in: strategies, losses, engines, verifiers, reward terms, policies.

A class that derives from a protocol inherits its defaults. Any other object with all members works too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from .data import Completion, Prompt, QuestionBatch, QuestionGroup, Request, RewardGroups, Rollouts, Score
from .learning import Credit, CreditInputs, LossInputs, LossOutputs


@runtime_checkable
class AdvantageStrategy(Protocol):
    """Strategy that turns the rewards of a global batch into advantages."""

    needs_entropy: bool = False
    """Whether `RewardGroups.entropy` is read, which costs a forward over all responses."""
    needs_logprobs: bool = False
    """Whether `RewardGroups.logprob` is read; one forward gives both entropy and log-probs."""
    needs_history: bool = False
    """Whether `RewardGroups.history` is read; if so, the run remembers results on every question."""
    reads_rewards: bool = True
    """Whether `RewardGroups.rewards` is read; if not, only verdicts are, and reward terms are refused."""

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return finite advantages, [R] float, in the order of `groups`."""


@runtime_checkable
class TokenCredit(Protocol):
    """Credit assignment: the advantages of tokens, from the advantages of their responses.

    Credit costs a forward, which also gives the old log-probs.
    """

    needs_history: bool = False
    """Whether `CreditInputs.groups.history` is read; if so, the run remembers results on every question."""

    def __call__(self, inputs: CreditInputs) -> Credit:
        """Return the advantages of T tokens, and terms of the loss.

        Collective: ranks without responses take part.
        """


@runtime_checkable
class Loss(Protocol):
    """Loss of a micro-batch."""

    by_token: bool = False
    """Whether the loss can be called on parts of a micro-batch's tokens, so that the parts' losses add up.

    If so, each logit is computed only once."""
    kl_coef: float = 0.0
    """Coefficient of the KL term.

    If it is not zero, a reference policy is loaded and `LossInputs.reference_logprobs` are given."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy term; if it is not zero, `LossInputs.entropy` carries gradient."""
    takes_credit: bool = False
    """Whether `LossInputs.token_advantages` and `token_terms` are read.

    Losses that do not read them are refused with token credit."""

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """Return the loss, normalised by the global counts of `inputs`, and the sums of its metrics."""


Deliver = Callable[[int, list[Completion]], None]
"""Function that takes a prompt's row and all its responses, as soon as the last response is complete."""
Finish = Callable[[], list[list[Completion]]]
"""Function that waits for responses and returns them as `Engine.generate` does.

The training thread calls this function once per rank."""


def ignore(prompt: int, completions: list[Completion]) -> None:
    """Do nothing; default of `deliver` for callers that wait for all responses."""


@runtime_checkable
class Engine(Protocol):
    """Engine that samples responses from its own copy of the policy."""

    asynchronous: bool = False
    """Whether `generate_async` works, so that the engine can sample while the policy is updated."""

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load the policy's weights from Hugging Face names and full tensors, with tied tensors only once.

        The engine must exhaust the iterator.
        """

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Sample the responses that `request` describes.

        Args:
            request: Prompts, numbers of samples, sampling settings and seed.
            deliver: Called once for each prompt that has samples, so that responses can be scored while other
                responses are sampled. Calls come in any order and from any thread, but never two at a time.

        Returns:
            [P] of [num_samples[p]], in the order of the prompts.

        Raises:
            EngineError: if the engine has died or hangs, and retries failed.
            ValueError: if a prompt and `max_new_tokens` together exceed the model's context.
        """

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """Start `generate` in the background, and return a function that waits for the responses.

        Do not call the engine again before the returned function has returned. This function may be
        collective, and raises the errors of `generate`. The background code must not call collectives, change
        torch's random state or share weights with the trainer.
        """
        raise NotImplementedError(f"{type(self).__name__} can't sample while the policy is updated.")

    def sleep(self) -> None:
        """Release memory, if possible, until the next `sync` or `generate`."""

    def close(self) -> None:
        """Release memory and processes permanently."""


@runtime_checkable
class Verifier(Protocol):
    """Verifier that compares responses with reference answers."""

    in_background: bool = False
    """Whether `score_async` scores in the background.

    If so, `score_async` is best called while other responses are sampled."""
    reads_response: bool = False
    """Whether the verifier gets whole responses, with thoughts, regardless of `rollout.verifier_reads`."""

    def __call__(self, response: str, reference: str | Sequence[str]) -> Score:
        """Score one response against its reference answers, any of which is correct."""

    def score_batch(self, responses: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[Score]:
        """Score each response against the reference answers at the same position."""
        return [self(*pair) for pair in zip(responses, references, strict=True)]

    def score_async(
        self, responses: Sequence[str], references: Sequence[str | Sequence[str]]
    ) -> Callable[[], list[Score]]:
        """Start `score_batch` if `in_background` is true, and return a function that waits for scores."""
        return partial(self.score_batch, responses, references)

    def check_reference(self, reference: str | Sequence[str]) -> None:
        """Raise a ValueError if no response can match a question's references. Called on loading."""

    def reference_notes(self, reference: str | Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the kinds of notes on a reference's spelling, such as `base`. Called on loading."""
        return ()

    def close(self) -> None:
        """End worker processes. The next scoring starts new processes."""


@runtime_checkable
class EnumeratingVerifier(Verifier, Protocol):
    """Verifier of a task whose correct responses can all be listed, so that pass@k can be exact."""

    reads_response: bool = True
    """True, since the listed responses are whole responses."""

    def correct_responses(self, reference: str | Sequence[str]) -> Sequence[str]:
        """Return all distinct texts that are scored as correct, verbatim."""


@runtime_checkable
class PromptVerifier(Verifier, Protocol):
    """Verifier that also reads the prompt, the row of the question and the tokens; see `FunctionReward`.

    All sampled responses to a prompt are scored together, a replayed response separately.
    """

    def check_questions(self, groups: Sequence[QuestionGroup]) -> None:
        """Raise a ValueError if the questions of a split lack a column. Called on loading."""

    def score_prompt(
        self,
        prompt: Prompt,
        group: QuestionGroup,
        texts: Sequence[str],
        token_ids: Sequence[Tensor],
        step: int,
    ) -> Callable[[], list[Score]]:
        """Start scoring responses to one prompt, and return a function that waits for the scores.

        Args:
            prompt: The prompt.
            group: Question of the prompt.
            texts: [n] responses; without their thoughts if `reads_response` is false.
            token_ids: [n] of [T_r] long, the tokens of the responses.
            step: Number of optimizer steps behind the weights that sampled the responses.
        """


@runtime_checkable
class RewardTerm(Protocol):
    """Shaped reward that is added to the reward of each response in training.

    Any callable with this signature is a reward term.
    """

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:
        """Return one value for each response, [R] float; `groups` are the questions of this rank's batch."""


Ask = Callable[[Sequence[QuestionGroup]], QuestionBatch]
"""Function that samples and scores rephrasings of questions, and returns a batch with rollouts.

The questions themselves are not sampled. Each rephrasing gets as many responses as a prompt of the batch,
from the current weights, and is verified against the answers of its question. Rephrasings that are empty, too
long, or equal to their question or an earlier rephrasing are left out. Questions without any rephrasing left
are left out too. Collective: every rank must make equally many calls, if necessary without questions."""


@runtime_checkable
class Reformulator(Protocol):
    """Reformulator of questions during training, from the policy's responses to these questions."""

    def extend(self, batch: QuestionBatch, ask: Ask) -> Sequence[QuestionBatch]:
        """Return batches from `ask` that join the training batch; their rewards may be changed. Collective.

        `batch` has rollouts. With dynamic sampling, its questions have a gradient, and returned questions
        without a gradient are left out. Each question passed to `ask` joins as a separate question and needs
        a unique id.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, equal on every rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


@runtime_checkable
class SampledPolicy(Protocol):
    """Members of `PolicyModule` that callbacks and engines use.

    Only `rollout.replay` requires these members. If a module lacks them, engines sample from the submodule
    that the argument `policy` of `RolloutCallback` names.
    """

    mini_batches: int = 1
    """Optimizer steps on each batch of rollouts, if none is skipped."""
    needs_history: bool = False
    """Whether `Rollouts.history` is read."""

    def full_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Return Hugging Face names and full tensors, for `Engine.sync`.

        Collective: every rank must exhaust the iterator.
        """

    def response_entropy(self, prompts: Sequence[Prompt], responses: Sequence[Tensor]) -> Tensor:
        """Return the mean entropy per token of each response in nats, [n] float32, for replay. Collective."""


def require(value: object, protocol: type, setting: str) -> None:
    """Raise a TypeError that names `setting` if `value` lacks a member of `protocol`.

    Parts are checked when a run is built, before any response is sampled.
    """
    if isinstance(value, protocol):
        return
    members = {*vars(protocol), *protocol.__annotations__}
    missing = sorted(
        n for n in members if (n == "__call__" or not n.startswith("_")) and not hasattr(value, n)
    )
    raise TypeError(
        f"Expected {setting} to be a {protocol.__name__} ({protocol.__module__}), but {value!r} has no "
        f"{', '.join(missing)}. Derive its class from it: it has defaults for what is optional."
    )
