"""Replay of past successes (ExGRPO, arXiv 2510.02245).

A share of each batch's questions is replaced by recorded questions that had both correct and wrong responses
before. Recorded questions are drawn by their latest success rate, most often near one half. For each of them,
one response is not sampled: the past success with the lowest entropy under the current policy is replayed.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...datamodules.memory import QuestionMemory, Visit
from ...distributed import gather_objects, rank, world_size
from ...types import Completion, Prompt, QuestionBatch, QuestionGroup, SampledPolicy


class Success(NamedTuple):
    """Correct response, with the prompts that its question had when it was sampled."""

    prompts: list[Prompt]
    row: int
    """Index of the response's prompt."""
    token_ids: Tensor
    """[T] long."""
    logprobs: Tensor
    """[T] float32, engine log-probs at the time of sampling, nats."""


@dataclass
class SolvedQuestion:
    """Question with its past successes, which can be replayed."""

    group: QuestionGroup
    successes: list[Success] = field(default_factory=list)
    """Distinct successes, oldest first."""


def latest_partial_rate(visits: Sequence[Visit]) -> float:
    """Return the success rate of the latest visit with both correct and wrong responses.

    Return 0 if there is no such visit.
    """
    return next((visit.rate for visit in reversed(visits) if 0 < visit.rate < 1), 0.0)


class SuccessReplay:
    """ExGRPO's buffer of past successes.

    Questions that were solved in full are retired: they leave the buffer permanently, and
    `QuestionLoader.serve_by` keeps them out of later batches.

    Departures from the authors' code: successes before replay begins are recorded too; the success rate is
    that of new responses alone; a question keeps only its `per_question` newest successes.

    Args:
        ratio: Share of each batch's questions that are replaced by recorded questions, 0 … 1 (0.5 in the
            paper).
        start: Replay begins after the first batch with a share of correct responses above `start` (0.35 in
            the authors' code).
        spread: σ of the weights by which success rates are drawn.
        per_question: Number of successes kept per question.
        seed: Seed for drawing questions.

    Attributes:
        memory: Results on each question. The pipeline shares this memory and keeps it up to date.
    """

    def __init__(
        self,
        ratio: float = 0.5,
        start: float = 0.35,
        spread: float = 0.125,
        per_question: int = 8,
        seed: int = 0,
    ) -> None:
        if not 0 < ratio <= 1 or not 0 <= start <= 1 or spread <= 0 or per_question < 1:
            raise ValueError(
                "Expected 0 < replay.ratio ≤ 1, 0 ≤ replay.start ≤ 1, replay.spread > 0 and "
                f"replay.per_question ≥ 1, but got {ratio}, {start}, {spread} and {per_question}."
            )
        self.ratio, self.start, self.spread = ratio, start, spread
        self.per_question, self.seed = per_question, seed
        self.started = False
        self.records: dict[str, SolvedQuestion] = {}
        self.memory = QuestionMemory()

    def draw(self, count: int, iteration: int, without: set[str]) -> list[str]:
        """Return the ids, equal on every rank, of up to `count` distinct recorded questions not in `without`.

        The rate of a question is its success rate at the latest visit that had both correct and wrong
        responses, or 0 if there is no such visit. Each draw first chooses a rate, with weight exp(−(rate −
        ½)² / 2σ²), and then a question with this rate, uniformly and without replacement. Questions that were
        solved in full are left out. σ is `spread`; with eight responses, the authors' code uses 1/8.
        """
        by_rate: dict[float, list[str]] = {}
        for id in self.records:
            if id not in without and not self.memory[id].solved_in_full:
                by_rate.setdefault(latest_partial_rate(self.memory[id].visits), []).append(id)
        generator = random.Random(f"{self.seed}/{iteration}")
        drawn: list[str] = []
        while by_rate and len(drawn) < count:
            rates = sorted(by_rate)
            far = [((rate - 0.5) / self.spread) ** 2 / 2 for rate in rates]
            weights = [math.exp(min(far) - value) for value in far]  # one is 1, however small the spread
            ids = by_rate[rate := generator.choices(rates, weights)[0]]
            drawn.append(ids.pop(generator.randrange(len(ids))))
            if not ids:
                del by_rate[rate]
        return drawn

    def substitute(self, batch: QuestionBatch, iteration: int, policy: SampledPolicy) -> QuestionBatch:
        """Return `batch` with recorded questions in place of its last ⌊ratio · B⌋ questions. Collective.

        If there are fewer recorded questions, fewer are replaced. The prompt of a replayed success has this
        success as `past`, and requests one sample less. The choice depends on `iteration`, the number of the
        batch.
        """
        if not (self.started and self.records):  # alike on every rank
            return batch
        served = gather_objects([group.id for group in batch.groups])
        wanted = int(self.ratio * len(batch.groups))
        drawn = self.draw(wanted * world_size(), iteration, {id for ids in served for id in ids})
        mine = [self.records[id] for id in drawn[rank() :: world_size()]]
        kept = len(batch.groups) - len(mine)
        prompts = [prompt for prompt in batch.prompts if prompt.question < kept]
        for question, success in enumerate(_lowest_entropy(mine, policy), start=kept):
            past = Completion(token_ids=success.token_ids, logprobs=success.logprobs, truncated=False)
            asked = [prompt._replace(question=question) for prompt in success.prompts]
            answered = asked[success.row]
            asked[success.row] = answered._replace(num_samples=answered.num_samples - 1, past=past)
            prompts += asked
        return replace(
            batch, groups=[*batch.groups[:kept], *(record.group for record in mine)], prompts=prompts
        )

    def observe(self, batch: QuestionBatch) -> dict[str, float]:
        """Record the new successes of all ranks, after `memory` has observed the training batch. Collective.

        Returns the values to log:

        - `replay/questions`: number of questions with past successes; `replay/successes`: number of past
          successes.
        - `replay/retired`: number of questions that are left out because all responses of some visit were
          correct.
        """
        for new in (record for part in gather_objects(_found(batch)) for record in part):
            if self.memory[new.group.id].solved_in_full:
                self.records.pop(new.group.id, None)
            elif new.successes:
                self._add(new)
        rollouts = batch.rollouts
        assert rollouts is not None
        verdicts = torch.cat(gather_objects(rollouts.correct[~rollouts.replayed]))
        self.started = self.started or int(verdicts.sum()) > self.start * len(verdicts)
        return {
            "replay/questions": float(len(self.records)),
            "replay/successes": float(sum(len(record.successes) for record in self.records.values())),
            "replay/retired": float(sum(record.solved_in_full for record in self.memory.records.values())),
        }

    def _add(self, new: SolvedQuestion) -> None:
        known = self.records.setdefault(new.group.id, SolvedQuestion(new.group))
        known.group = new.group
        for success in new.successes:
            if not any(_same_response(success, old) for old in known.successes):
                known.successes.append(success)
        known.successes = known.successes[-self.per_question :]

    def state_dict(self) -> dict[str, Any]:
        """Return the whole buffer, in plain containers and tensors."""
        records = []
        for record in self.records.values():
            group = tuple(record.group._replace(metadata=dict(record.group.metadata)))
            successes = [([tuple(prompt) for prompt in s.prompts], *s[1:]) for s in record.successes]
            records.append((group, successes))
        return {"started": self.started, "records": records}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.started = state["started"]
        self.records = {}
        for group, successes in state["records"]:
            loaded = [Success([Prompt(*prompt) for prompt in prompts], *rest) for prompts, *rest in successes]
            self.records[group[0]] = SolvedQuestion(QuestionGroup(*group), loaded)


def _lowest_entropy(records: Sequence[SolvedQuestion], policy: SampledPolicy) -> list[Success]:
    """Return, for each record, the success with the lowest entropy under the policy."""
    candidates = [success for record in records for success in record.successes]
    values = policy.response_entropy(
        [s.prompts[s.row] for s in candidates], [s.token_ids for s in candidates]
    )
    parts = values.split([len(record.successes) for record in records])
    return [record.successes[int(part.argmin())] for record, part in zip(records, parts, strict=True)]


def _found(batch: QuestionBatch) -> list[SolvedQuestion]:
    """Return the questions of this rank's batch, with the successes among their new responses."""
    rollouts = batch.rollouts
    assert rollouts is not None
    # Each prompt with the number of all its responses, replayed ones included.
    responses = torch.bincount(rollouts.prompt, minlength=len(batch.prompts)).tolist()
    prompts: list[list[Prompt]] = [[] for _ in batch.groups]
    place = []
    for prompt, count in zip(batch.prompts, responses, strict=True):
        place.append(len(prompts[prompt.question]))
        prompts[prompt.question].append(prompt._replace(num_samples=count, past=None))
    records = [SolvedQuestion(group) for group in batch.groups]
    for row in (rollouts.correct & ~rollouts.replayed).nonzero()[:, 0].tolist():
        asked, question = int(rollouts.prompt[row]), int(rollouts.question[row])
        # In a replay at least one new response must be sampled to the same prompt.
        if responses[asked] > 1:
            success = Success(
                prompts[question], place[asked], rollouts.token_ids[row], rollouts.logprobs[row]
            )
            records[question].successes.append(success)
    return records


def _same_response(a: Success, b: Success) -> bool:
    return torch.equal(a.token_ids, b.token_ids) and torch.equal(
        a.prompts[a.row].token_ids, b.prompts[b.row].token_ids
    )
