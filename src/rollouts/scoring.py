"""Sampled responses → `Rollouts`: decode, score, add reward terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

import torch
from torch import Tensor

from ..types import Completion, Prompt, QuestionBatch, RewardTerm, Rollouts, Score, Seconds, Verifier

Decode = Callable[[list[Tensor]], list[str]]
"""[n] of [T] long → [n] texts without special tokens."""


class Scoring:
    """The scoring of one batch. Made before it is sampled, so that workers can score while the engine samples."""

    def __init__(self, batch: QuestionBatch, verifier: Verifier, decode: Decode) -> None:
        self.references = [batch.groups[prompt.question].answer for prompt in batch.prompts]
        self.verifier = verifier
        self.decode = decode
        self._early: dict[int, tuple[list[str], Callable[[], list[Score]]]] = {}

    def deliver(self, prompt: int, completions: list[Completion]) -> None:
        """Hand the responses to one prompt to the verifier's workers, if it has any; returns at once."""
        if self.verifier.in_background:
            text = self.decode([completion.token_ids for completion in completions])
            self._early[prompt] = text, self.verifier.score_async(text, [self.references[prompt]] * len(text))

    def scored(self, completions: Sequence[Sequence[Completion]]) -> tuple[list[str], list[Score]]:
        """Texts [R] and scores [R] of all responses, given as [P][G] by prompt.

        Workers have those that were delivered early; the others are scored now.
        """
        early = [self._early.get(prompt, ([], list)) for prompt in range(len(completions))]
        late = [
            (p, c) for p, samples in enumerate(completions) for c in samples[len(early[p][0]) :]
        ]  # replayed ones too
        # Tokenizers make one text of nothing, and a rank may have no question in the last evaluation batch.
        texts = self.decode([completion.token_ids for _, completion in late]) if late else []
        scores = self.verifier.score_batch(texts, [self.references[prompt] for prompt, _ in late]) if late else []
        others = iter(list(zip(texts, scores, strict=True)))
        pairs: list[tuple[str, Score]] = []
        for samples, (delivered, wait) in zip(completions, early, strict=True):
            pairs += [*zip(delivered, wait(), strict=True), *islice(others, len(samples) - len(delivered))]
        return [text for text, _ in pairs], [score for _, score in pairs]


def with_past(prompts: Sequence[Prompt], sampled: Sequence[Sequence[Completion]]) -> list[list[Completion]]:
    """[P][G] responses: the samples of each prompt, then its past success if it has one."""
    pairs = zip(prompts, sampled, strict=True)
    return [[*samples, *([] if prompt.past is None else [prompt.past])] for prompt, samples in pairs]


def assemble(
    batch: QuestionBatch,
    completions: Sequence[Sequence[Completion]],
    texts: Sequence[str],
    scores: Sequence[Score],
    staleness: int,
    seconds: Seconds,
) -> Rollouts:
    """The rollouts of `batch`, rewarded by their verdicts alone: [P][G] `completions`, [R] `texts` and `scores`.

    `staleness` is the optimizer steps since the weights that sampled. `seconds` is shared, not copied: later phases of
    the iteration add theirs.
    """
    flat = list(chain.from_iterable(completions))
    rows = torch.repeat_interleave(torch.tensor([len(samples) for samples in completions], dtype=torch.long))
    pairs = zip(batch.prompts, completions, strict=True)
    past = [sample is prompt.past for prompt, samples in pairs for sample in samples]
    correct = torch.tensor([score.correct for score in scores], dtype=torch.bool)
    return Rollouts(
        prompts=batch.prompts,
        prompt=rows,
        question=torch.tensor([p.question for p in batch.prompts], dtype=torch.long)[rows],
        rephrasing=torch.tensor([p.rephrasing for p in batch.prompts], dtype=torch.long)[rows],
        token_ids=[completion.token_ids for completion in flat],
        logprobs=[completion.logprobs for completion in flat],
        truncated=torch.tensor([completion.truncated for completion in flat], dtype=torch.bool),
        text=texts,
        correct=correct,
        answers=[score.answer for score in scores],
        rewards=correct.float(),
        replayed=torch.tensor(past, dtype=torch.bool),
        staleness=torch.full((len(flat),), staleness),
        seconds=seconds,
    )


def with_terms(rollouts: Rollouts, batch: QuestionBatch, terms: Mapping[str, RewardTerm]) -> Rollouts:
    """The same rollouts, their rewards increased by every one of `terms`; FloatingPointError if one is not finite."""
    added = {name: term(rollouts, batch.groups).float() for name, term in terms.items()}
    for name, term in added.items():
        if others := int((~torch.isfinite(term)).sum()):
            raise FloatingPointError(
                f"Expected finite rewards, but rollout.reward_terms.{name} returned {others} others for {len(term)} "
                "responses. Correct its settings, or what it divides by."
            )
    return replace(rollouts, rewards=sum(added.values(), start=rollouts.rewards), reward_terms=added)
