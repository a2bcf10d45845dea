"""What an update learns from: rollouts under their score prompts, with advantages, cut into mini-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..types import RewardGroups, Rollouts

Anchor = Literal["original", "own"]


@dataclass(kw_only=True)
class Experience:
    """R responses of one rank with the prompts under which log-probs, ratios and KL are computed."""

    prompts: Sequence[Tensor]
    """[S] of [L_s] long, the distinct score prompts."""
    prompt: Tensor
    """[R] long, row of each response's score prompt in `prompts`."""
    responses: Sequence[Tensor]
    """[R] of [T_r] long, response tokens."""
    lengths: Tensor
    """[R] long, tokens per response."""
    question: Tensor
    """[R] long, row of the question in the batch."""
    sampled_here: Tensor
    """[R] bool, whether the response was sampled from the score prompt, and not replayed."""
    stale: Tensor
    """[R] bool, responses that were sampled by weights which have been updated since."""
    engine_logprobs: Sequence[Tensor]
    """[R] of [T_r] float32, log-probs of the engine under the *sample* prompt, nats."""
    advantages: Tensor
    """[R] float32, zero until the strategy has run."""
    learn: Tensor
    """[R] bool, responses that can have a gradient; the others are left out of every forward."""
    counted: Tensor
    """[R] bool, responses that the loss is normalised by, with or without a gradient of their own."""
    replayed: Tensor
    """[R] bool, responses of an earlier policy: its log-probs are their old ones in every mini-batch."""
    old_logprobs: dict[int, Tensor] = field(default_factory=dict)
    """Response → [T_r] float32 log-probs before the batch's first update; absent: the current ones."""
    weights: dict[int, Tensor] = field(default_factory=dict)
    """Response → [T_r] float32 importance weights for the change of prompt; absent: ones."""
    drift: dict[int, Tensor] = field(default_factory=dict)
    """Stale response with another score prompt → [T_r] float32, by how much log-probs under the prompt that it was
    sampled from have changed since, nats, before the batch's first update."""

    @classmethod
    def from_rollouts(cls, rollouts: Rollouts, anchor: Anchor) -> Experience:
        """Choose the score prompts: `original` is q0 (TA-GRPO, Eq. 4), `own` the sampled prompt (GRPO, Eq. 2).

        Anchors that are the same question in the same template become one prompt, encoded once per update.
        """
        rows: dict[tuple[int, ...], int] = {}
        prompts: list[Tensor] = []
        row_of: list[int] = []
        for sampled, prompt in enumerate(rollouts.prompts):
            ids = prompt.anchor_ids if anchor == "original" else prompt.token_ids
            key = (prompt.question, *ids.tolist()) if anchor == "original" else (sampled,)
            if key not in rows:
                rows[key] = len(prompts)
                prompts.append(ids)
            row_of.append(rows[key])
        same = [anchor == "own" or torch.equal(p.anchor_ids, p.token_ids) for p in rollouts.prompts]
        everything = torch.ones_like(rollouts.truncated)
        return cls(
            prompts=prompts,
            prompt=torch.tensor(row_of, dtype=torch.long)[rollouts.prompt],
            responses=rollouts.token_ids,
            lengths=rollouts.lengths,
            question=rollouts.question,
            sampled_here=torch.tensor(same)[rollouts.prompt] & ~rollouts.replayed,
            stale=(rollouts.staleness > 0) & ~rollouts.replayed,
            engine_logprobs=rollouts.logprobs,
            advantages=torch.zeros(len(rollouts)),
            learn=everything,
            counted=everything,
            replayed=rollouts.replayed,
        )

    @classmethod
    def of(cls, prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> Experience:
        """Responses under a prompt each, to be scored and not learned from."""
        rows = torch.arange(len(responses))
        everything = torch.ones(len(responses), dtype=torch.bool)
        return cls(
            prompts=prompts,
            prompt=rows,
            responses=responses,
            lengths=torch.tensor([len(ids) for ids in responses], dtype=torch.long),
            question=rows,
            sampled_here=everything,
            stale=~everything,
            engine_logprobs=[torch.zeros(len(ids)) for ids in responses],
            advantages=torch.zeros(len(responses)),
            learn=everything,
            counted=everything,
            replayed=~everything,
        )

    @property
    def prompt_lengths(self) -> Tensor:
        """[S] long, tokens per score prompt."""
        return torch.tensor([len(ids) for ids in self.prompts], dtype=torch.long)


def cat_rows(values: Mapping[int, Tensor], rows: Tensor, default: Tensor, lengths: Sequence[int]) -> Tensor:
    """[T] the values of responses `rows` end to end; where a response has none, its part of `default` [T]."""
    parts = zip(rows.tolist(), default.split(list(lengths)), strict=True)
    return torch.cat([values.get(row, part) for row, part in parts])


def split_by_question(question: Tensor, num_questions: int, num_mini_batches: int) -> list[Tensor]:
    """Cut responses into mini-batches that never split a question.

    Args:
        question: [R] long, row of each response's question, in 0..num_questions-1.
        num_questions: Questions of this rank's batch.
        num_mini_batches: How many parts; their sizes in questions differ by one at most, larger ones first.

    Returns:
        `num_mini_batches` tensors of response rows, each ascending.

    >>> [rows.tolist() for rows in split_by_question(torch.tensor([0, 0, 1, 2, 2]), 3, 2)]
    [[0, 1, 2], [3, 4]]
    """
    parts = torch.arange(num_questions).tensor_split(num_mini_batches)
    return [torch.isin(question, part).nonzero()[:, 0] for part in parts]


def join_reward_groups(parts: Sequence[RewardGroups]) -> RewardGroups:
    """Concatenate the ranks' rewards into the groups of the global batch.

    Question and prompt ids are rows of their rank's batch; they are shifted so that no two ranks share one.
    """
    question, prompt, questions, prompts = [], [], 0, 0
    for part in parts:
        question.append(part.question + questions)
        prompt.append(part.prompt + prompts)
        questions += int(part.question.max()) + 1
        prompts += int(part.prompt.max()) + 1
    entropies = [part.entropy for part in parts if part.entropy is not None]
    return RewardGroups(
        rewards=torch.cat([part.rewards for part in parts]),
        correct=torch.cat([part.correct for part in parts]),
        question=torch.cat(question),
        prompt=torch.cat(prompt),
        entropy=torch.cat(entropies) if entropies else None,
        answers=[answer for part in parts for answer in part.answers or ()],
        progress=parts[0].progress,
    )
