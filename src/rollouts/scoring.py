"""Sampled responses → `Rollouts`: decode, judge, add reward terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..rewards.early import EarlyVerdicts
from ..types import Completion, Deliver, QuestionBatch, QuestionGroup, Rollouts, Score
from .store import RolloutStore, digest

Verifier = Callable[[str, Sequence[str]], Score]
RewardTerm = Callable[[Rollouts, Sequence[QuestionGroup]], Tensor]


class Scoring:
    """The scoring of one batch. Made before it is sampled, so that verdicts can be reached meanwhile.

    Args:
        verifier: (response, references) → `Score`; its `judge_batch` is used where it has one, and its `judge_async`
            to judge while the engine still samples.
        batch: Questions and prompts.
        tokenizer: Decodes responses.
        store: Keeps verdicts on disk, at `position`; None keeps none.
        position: Iteration and draw, of which the store has verdicts at most once.
    """

    def __init__(
        self,
        verifier: Verifier,
        batch: QuestionBatch,
        tokenizer: Any,
        store: RolloutStore | None = None,
        position: Sequence[int] = (),
    ) -> None:
        self.verifier = verifier
        self.batch = batch
        self.decode = partial(tokenizer.batch_decode, skip_special_tokens=True)
        self.store = store
        self.position = position
        references = [batch.groups[prompt.question].answer for prompt in batch.prompts]
        judge_async = getattr(verifier, "judge_async", None)
        self.early = EarlyVerdicts(judge_async, self.decode, references) if judge_async is not None else None
        self.failures: Counter[str] = Counter()
        """Why verdicts were not reached → how often."""

    @property
    def deliver(self) -> tuple[Deliver, ...]:
        """What an engine is to be given so that responses are judged as they come; empty when the verifier can't."""
        return () if self.early is None else (self.early.deliver,)

    def rollouts(
        self,
        sampled: Sequence[Sequence[Completion]],
        replayed: Mapping[int, Completion],
        terms: Mapping[str, RewardTerm],
        seconds: Mapping[str, float],
        staleness: int = 0,
    ) -> Rollouts:
        """The scored responses.

        Args:
            sampled: [P][G] by prompt.
            replayed: Row of a prompt → a past success that joins its samples.
            terms: name → what is added to the verdict.
            seconds: Kept as they are.
            staleness: Optimizer steps since the weights that sampled.
        """
        batch = self.batch
        joined = [[*samples, *([replayed[row]] if row in replayed else [])] for row, samples in enumerate(sampled)]
        completions = list(chain.from_iterable(joined))
        prompt = torch.repeat_interleave(torch.tensor([len(samples) for samples in joined], dtype=torch.long))
        question = torch.tensor([p.question for p in batch.prompts], dtype=torch.long)[prompt]
        ids = [c.token_ids for c in completions]
        references = [batch.groups[row].answer for row in question.tolist()]
        decoded: list[str | None] = []
        known: list[Score | None] = []
        for row, samples in enumerate(joined):
            texts, judged = self.early.verdicts(row) if self.early else ([], [])
            decoded += [*texts, *[None] * (len(samples) - len(texts))]
            known += [*judged, *[None] * (len(samples) - len(judged))]
        rest = [ids[row] for row, found in enumerate(decoded) if found is None]
        # Tokenizers would make one text of nothing: a rank may have no question in the last evaluation batch.
        late = iter(self.decode(rest) if rest else [])
        text = [next(late) if found is None else found for found in decoded]
        scores = self.judged(text, references, known)
        self.failures.update(score.failure for score in scores if score.failure)
        correct = torch.tensor([score.correct for score in scores], dtype=torch.bool)
        fields: dict[str, Any] = {
            "prompts": batch.prompts,
            "prompt": prompt,
            "question": question,
            "variant": torch.tensor([p.variant for p in batch.prompts], dtype=torch.long)[prompt],
            "token_ids": ids,
            "logprobs": [c.logprobs for c in completions],
            "truncated": torch.tensor([c.truncated for c in completions], dtype=torch.bool),
            "text": text,
            "correct": correct,
            "answers": [score.answer for score in scores],
            "seconds": seconds,
            "staleness": torch.full((len(ids),), staleness),
            "replayed": torch.tensor(
                [sample is replayed.get(row) for row, samples in enumerate(joined) for sample in samples],
                dtype=torch.bool,
            ),
        }
        plain = Rollouts(**fields, rewards=correct.float())
        added = {name: term(plain, batch.groups).float() for name, term in terms.items()}
        return Rollouts(**fields, rewards=sum(added.values(), start=plain.rewards), reward_terms=added)

    def judged(
        self, text: Sequence[str], references: Sequence[Sequence[str]], known: Sequence[Score | None]
    ) -> list[Score]:
        """[R] verdicts, of which some may be `known`; from the store where it has them, and kept there."""
        made_from = digest(text, references, self.verifier) if self.store is not None else ""
        scores = self.store.scores(self.position, made_from) if self.store is not None else None
        if scores is not None:
            return scores
        rest = [row for row, score in enumerate(known) if score is None]
        pairs = [(text[row], references[row]) for row in rest]
        if hasattr(self.verifier, "judge_batch"):
            late = list(self.verifier.judge_batch(*map(list, zip(*pairs, strict=True)))) if pairs else []
        else:
            late = [self.verifier(*pair) for pair in pairs]
        of_row = dict(zip(rest, late, strict=True))
        scores = [of_row[row] if score is None else score for row, score in enumerate(known)]
        if self.store is not None:
            self.store.keep_scores(self.position, made_from, scores)
        return scores
