"""Pipeline from weights and questions to scored responses: sync the engine, generate, score.

The pipeline is plain Python and torch; `RolloutCallback` connects it with a Lightning trainer.
`examples/plain_torch.py` shows its main path step by step.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, get_args

import torch
from torch import nn

from ..datamodules.memory import QuestionMemory, Replay, Visit
from ..distributed import rank, sum_over_ranks
from ..seeds import derive_seed
from ..types import (
    Engine,
    History,
    QuestionBatch,
    QuestionGroup,
    Reformulator,
    Request,
    RewardTerm,
    SamplingConfig,
    Seconds,
    Verifier,
    require,
)
from ..types.checks import found, name_of, own_code
from .ahead import Block, Queue
from .dynamic_sampling import DynamicSampling, join_batches, no_draw
from .engines.synced import NamedWeights, SyncedEngine, own_parameters
from .scoring import Decode, Reads, Scoring, means_of, spent_on, totals_of

Position = tuple[str, int, int]
"""Stage and two counters, unique within the run; in training, the counters are the iteration and the draw."""


class RolloutPipeline:
    """Pipeline that samples and scores batches of questions with a policy's weights.

    Every method is collective over ranks.

    Args:
        engine: Function that returns the engine, called on every rank at the first batch. Weights that have
            changed are sent before a batch.
        verifier: Verifier that scores responses, during sampling if it works in the background.
        decode: Function from the token ids of n responses to n texts.
        sampling: Sampling settings in training.
        evaluation_sampling: Sampling settings in validation and test; None takes those of training.
        reward_terms: Name → term that is added to the reward in training.
        dynamic_sampling: Replacement of questions without gradient in training batches.
        replay: Replay of past successes in training batches.
        reformulator: Reformulator of a training batch's questions; the responses to its questions join the
            batch.
        memory: Memory of the results on training questions; None keeps none, unless `replay` has a memory.
        seed: Seed of all sampling.
        ahead: Number of batches that `sample_next` gets at a time, to be sampled while the policy learns from
            earlier batches. 0 samples each batch just before the policy learns from it. Above 0 needs an
            asynchronous engine (`TransformersEngine`, `VLLMServerEngine`) and excludes `replay`; above 1 also
            excludes `dynamic_sampling` and a curriculum.
        weights: See `NamedWeights`.
        verifier_reads: `answer`: verifiers get responses without their thoughts (`split_response`).
            `response`: they get whole responses; the verifiers of this package skip thoughts by themselves.

    Attributes:
        iteration: Number of training batches so far.
        ledger: Numbers of prompts, rollouts, tokens and discarded questions so far, whether learned from or
            not.
        following: The generations of the next batches, complete or under way.
        scalars: Name → value to log for the last training batch, over all ranks: the scalars of
            `means_of` and `replay`, and
            - `budget/{prompts,rollouts,tokens,discarded_questions}`: totals so far; `budget/updates`:
              optimizer steps.
            - `dynamic_sampling/draws`: batches drawn on top of the first to replace questions without
              gradient; `dynamic_sampling/limit_reached`: 1 if `max_draws` ran out and such questions remain,
              and 0 if not.
            - `rollout/staleness`: mean number of optimizer steps between the weights that sampled and the
              weights that learn.

    Raises:
        TypeError: if engine, verifier, reformulator or a reward term lacks a member that is needed.
        ValueError: if `ahead` is negative, or comes with an engine or an option that does not allow it.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        verifier: Verifier,
        decode: Decode,
        sampling: SamplingConfig,
        *,
        evaluation_sampling: SamplingConfig | None = None,
        reward_terms: Mapping[str, RewardTerm] | None = None,
        dynamic_sampling: DynamicSampling | None = None,
        replay: Replay | None = None,
        reformulator: Reformulator | None = None,
        memory: QuestionMemory | None = None,
        seed: int = 0,
        ahead: int = 0,
        weights: NamedWeights = own_parameters,
        verifier_reads: Reads = "answer",
    ) -> None:
        require(verifier, Verifier, "rollout.verifier")
        for name, term in (reward_terms or {}).items():
            require(term, RewardTerm, f"rollout.reward_terms.{name}")
        if reformulator is not None:
            require(reformulator, Reformulator, "rollout.reformulator")
        if verifier_reads not in get_args(Reads):
            raise ValueError(
                f"Expected rollout.verifier_reads to be answer or response, but got {verifier_reads!r}. "
                "Set rollout.verifier_reads=answer, or =response for a verifier that judges thoughts, too."
            )
        if ahead < 0:
            raise ValueError(f"Expected rollout.ahead to be 0 or a number of batches, but got {ahead}.")
        if ahead and replay is not None:
            raise ValueError(
                "Expected rollout.replay=null with rollout.ahead, but got both: which successes are "
                "replayed depends on the policy after the update. Switch one of them off."
            )
        if ahead > 1 and dynamic_sampling is not None:
            raise ValueError(
                f"Expected rollout.ahead of at most 1 with dynamic sampling, but got {ahead}: what it draws "
                "takes the questions of the batches that follow. Lower rollout.ahead, or set "
                "dynamic_sampling=none."
            )
        self.engine = SyncedEngine(engine, weights, asynchronous=ahead > 0)
        self.verifier = verifier
        self.decode = decode
        self.sampling = sampling
        self.evaluation_sampling = evaluation_sampling or sampling
        self.reward_terms = dict(reward_terms or {})
        self.dynamic_sampling = dynamic_sampling
        self.replay = replay
        self.reformulator = reformulator
        self.memory = memory if replay is None else replay.memory
        self.seed = seed
        self.ahead = ahead
        self.verifier_reads = verifier_reads
        self.iteration = 0
        self.ledger = dict.fromkeys(("prompts", "rollouts", "tokens", "discarded_questions"), 0)
        # `timeout`, … → responses on this rank without a verdict: wrong ones
        self.failures: Counter[str] = Counter()
        self.scalars: dict[str, float] = {}
        self.following = Queue()

    def roll_out(
        self,
        batch: QuestionBatch,
        policy: nn.Module,
        step: int,
        *,
        draw: Callable[[], QuestionBatch] = no_draw,
        observe: Callable[[list[Visit]], None] = lambda _: None,
        reformulated: Callable[[Sequence[QuestionGroup]], QuestionBatch] = no_draw,
    ) -> QuestionBatch:
        """Sample, score and count a training batch; return a new batch to learn from.

        Replay, dynamic sampling and the reformulator change the `groups` and `prompts` of the batch.

        Args:
            batch: Questions and their prompts.
            policy: Policy whose weights sample.
            step: Number of optimizer steps that the policy has made.
            draw: Function that returns an additional batch, for dynamic sampling.
            observe: Function that gets the visits that `memory` recorded for each sampled batch, even if the
                policy does not learn from the batch.
            reformulated: Function that returns the prompts of the rephrasings of some questions, for the
                reformulator.
        """
        numbers = count()
        failed = self.failures.total()
        spent: Counter[str] = Counter()  # by this rank, on all that is sampled for this batch

        def rolled_out(batch: QuestionBatch, remembered: bool = True) -> QuestionBatch:
            batch = self._sampled(batch, policy, step, ("fit", self.iteration, next(numbers)))
            spent.update(spent_on(batch))
            if self.memory is not None and remembered:
                observe(self.memory.remember(batch))
            return batch

        def ask(groups: Sequence[QuestionGroup]) -> QuestionBatch:
            batch = rolled_out(reformulated(groups), remembered=False)
            assert batch.rollouts is not None
            if self.memory is not None:  # it has no record of reformulated questions
                unknown = History(*torch.zeros(len(History._fields), len(batch.rollouts), dtype=torch.long))
                batch.rollouts = replace(batch.rollouts, history=unknown)
            return batch

        if self.replay is not None:
            batch = self.replay.substitute(batch, self.iteration, policy)
        batch = rolled_out(batch)
        self.scalars = {} if self.replay is None else self.replay.observe(batch)
        if self.dynamic_sampling is not None:
            batch, draws, discarded, limited = self.dynamic_sampling.fill_up(
                batch, lambda: rolled_out(draw())
            )
            spent["discarded_questions"] = discarded
            self.scalars |= {
                "dynamic_sampling/draws": float(draws),
                "dynamic_sampling/limit_reached": float(limited),
            }
        if self.reformulator is not None:
            with own_code(self.reformulator, "rollout.reformulator"):
                parts = self.reformulator.extend(batch, ask)
            check_reformulated(parts, self.reformulator)
            if self.dynamic_sampling is not None:
                parts = [self.dynamic_sampling.reduced(part) for part in parts]
            batch = join_batches([batch, *parts])
        self.iteration += 1
        if not self.ahead:
            self.engine.sleep()
        spent["failed"] = self.failures.total() - failed
        totals = sum_over_ranks(totals_of(batch) | {f"spent_{name}": float(n) for name, n in spent.items()})
        for name in self.ledger:
            self.ledger[name] += int(totals.get(f"spent_{name}", 0))
        budget = {f"budget/{name}": float(count) for name, count in {**self.ledger, "updates": step}.items()}
        self.scalars |= means_of(totals) | budget
        if self.ahead:
            self.scalars["rollout/staleness"] = totals["staleness"] / totals["rollouts"]
        return batch

    def sample_next(
        self, batches: Sequence[QuestionBatch], policy: nn.Module, step: int, seconds: Seconds
    ) -> None:
        """Let the engine sample the batches after `following`, while the policy learns from earlier batches.

        Call this method when fewer than `ahead` generations are `following`, so that the engine is idle. The
        batches are one request to the engine. With `ahead` batches at a time, responses are `ahead` to 2
        `ahead` − 1 iterations old when the policy learns from them, and weights are sent once in `ahead`
        iterations. The time is added to `seconds`.

        The responses are part of `state_dict`. Draws of dynamic sampling are sampled by the weights that
        learn from them. If `roll_out` is called with another batch, the responses are dropped, and that batch
        is sampled. If the responses could not be sampled, `roll_out` raises the error; a second call of
        `roll_out` samples them with the current weights.
        """
        first = self.iteration + len(self.following)
        requests = [self._request(batch, ("fit", number, 0)) for number, batch in enumerate(batches, first)]
        block = Block(requests, [self._scoring(batch, step) for batch in batches])
        self.following.join()  # an engine does one thing at a time
        block.finish = self.engine.start(block.request, block.deliver, policy, step, seconds, ahead=True)
        self.following.add(block, requests, step)

    def evaluate(
        self, batch: QuestionBatch, policy: nn.Module, step: int, position: Position
    ) -> QuestionBatch:
        """Sample and score a batch of validation or test; return a copy with `rollouts`.

        Nothing is added to the ledger. Other arguments are those of `roll_out`. `position` is a tuple of the
        stage, `validate` or `test`, and two numbers that together are unique in this stage.
        """
        return self._sampled(batch, policy, step, position)

    def _sampled(
        self, batch: QuestionBatch, policy: nn.Module, step: int, position: Position
    ) -> QuestionBatch:
        """Return a copy of the batch with scored responses.

        The responses are the first generation of `following` if it is of an equal batch, or are sampled now.
        """
        seconds = Seconds()
        request = self._request(batch, position)
        taken = None
        if self.following and position[0] == "fit" and not position[2]:
            taken = self.following.take(request, seconds)
        if taken is None:  # on every rank
            scoring = self._scoring(batch, step)
            self.following.join()  # an engine does one thing at a time
            sample = self.engine.start(request, scoring.deliver, policy, step, seconds)
            with seconds.measure("generate"):
                completions = sample()
            staleness = 0
        else:
            scoring = taken.scoring or self._scoring(batch, taken.step)
            completions = taken.result(seconds)
            staleness = step - taken.step
        terms = self.reward_terms if position[0] == "fit" else {}
        rolled_out = copy(batch)  # the batch may be of the caller's own class
        rolled_out.rollouts = scoring.rollouts(completions, staleness, terms, seconds)
        self.failures += scoring.failures
        return rolled_out

    def _scoring(self, batch: QuestionBatch, step: int) -> Scoring:
        return Scoring(batch, self.verifier, self.decode, self.verifier_reads, step)

    def _request(self, batch: QuestionBatch, position: Position) -> Request:
        stage, first, second = position
        return Request(
            prompts=[prompt.token_ids.cpu() for prompt in batch.prompts],
            num_samples=[prompt.num_samples for prompt in batch.prompts],
            sampling=self.sampling if stage == "fit" else self.evaluation_sampling,
            seed=derive_seed(self.seed, stage, first, second, rank()),
            iteration=first if stage == "fit" else None,
        )

    def weights_replaced(self) -> None:
        """Drop the responses of earlier weights, after weights were replaced without an optimizer step.

        This is necessary, for example, after a checkpoint was loaded.
        """
        self.following.join()
        self.following.clear()
        self.engine.weights_replaced()

    def close(self) -> None:
        """Stop engine and workers until they are needed again, and drop responses in progress.

        Do not call this method between fit and test: vLLM's shutdown destroys the process group that it
        found.
        """
        self.following.clear()
        self.engine.close()
        self.verifier.close()

    @property
    def _stateful(self) -> dict[str, Any]:
        return {"replay": self.replay, "memory": self.memory, "reformulator": self.reformulator}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resume. The seed of a batch depends only on the batch's iteration."""
        parts = {**self._stateful, "following": self.following}
        state = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return {"iteration": self.iteration, "ledger": dict(self.ledger), **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.iteration = state["iteration"]
        self.ledger = dict(state["ledger"])
        for name, part in self._stateful.items():
            if part is not None and name in state:
                part.load_state_dict(state[name])
        if self.ahead and "following" in state:
            self.following.load_state_dict(state["following"])


def check_reformulated(parts: object, reformulator: Reformulator) -> None:
    """Raise a TypeError if a reformulator has returned anything other than sampled and scored batches."""
    expected = f"Expected {name_of(reformulator)} (rollout.reformulator) to return a sequence of batches with rollouts"
    if not isinstance(parts, Sequence):
        raise TypeError(f"{expected}, but got {found(parts)}.")
    for part in parts:
        if getattr(part, "rollouts", None) is None:
            raise TypeError(f"{expected}, but got {found(part)} among them. Batches of `ask` have rollouts.")
