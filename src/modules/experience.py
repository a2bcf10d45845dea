"""Rollouts under their score prompts, with advantages, cut into mini-batches: the input of an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..packing.batch import PackedBatch
from ..types import History, RewardGroups, Rollouts
from .policy.logprobs import PromptedResponses, ResponseScores

Anchor = Literal["original", "own"]


@dataclass(kw_only=True)
class Experience(PromptedResponses):
    """R responses of one rank under the prompts at which log-probs, ratios and KL are computed."""

    anchor: Anchor
    """Which score prompts were chosen."""
    question: Tensor
    """[R] long, row of the question in the batch."""
    on_score_prompt: Tensor
    """[R] bool, whether the response was sampled from its score prompt, and not replayed."""
    stale: Tensor
    """[R] bool, responses that were sampled by weights which have been updated since."""
    replayed: Tensor
    """[R] bool, responses of an earlier policy: its log-probs are their old ones in every mini-batch."""
    engine_logprobs: Sequence[Tensor]
    """[R] of [T_r] float32, log-probs of the engine under the *sample* prompt, nats."""
    advantages: Tensor
    """[R] float32, zero until the strategy has run; with token credit the means over a response's tokens."""
    in_loss: Tensor
    """[R] bool, responses that the loss is normalised by, with or without a gradient of their own."""
    has_gradient: Tensor
    """[R] bool, responses that can have a gradient; the others are left out of every forward."""
    old_logprobs: dict[int, Tensor] = field(default_factory=dict)
    """Response → [T_r] float32 log-probs before the batch's first update; absent: the current ones."""
    scored: bool = False
    """Whether `old_logprobs` have all responses that can have a gradient."""
    token_advantages: dict[int, Tensor] = field(default_factory=dict)
    """Response → [T_r] float32 advantages of its tokens; empty without token credit."""
    penalty: dict[int, Tensor] = field(default_factory=dict)
    """Response → [T_r] float32, see `LossInputs.penalty`; empty where there is none."""
    prompt_weights: dict[int, Tensor] = field(default_factory=dict)
    """Response → [T_r] float32 truncated importance weights for the change of prompt; absent: ones."""
    mismatch_weights: dict[int, Tensor] | None = None
    """Response → [T_r] float32 importance weights between engine and trainer, those for staleness included; absent:
    ones. None without `policy.mismatch`."""
    mismatch: Mapping[str, float] = field(default_factory=dict)
    """Sums over their tokens, see `mismatch.Corrected`."""
    log_ratio_since_sampling: dict[int, Tensor] = field(default_factory=dict)
    """Stale response with another score prompt → [T_r] float32, log π − log μ under the prompt that it was sampled
    from: π is the policy before the batch's first update, μ the policy that sampled the response. Nats."""

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
            anchor=anchor,
            prompts=prompts,
            prompt=torch.tensor(row_of, dtype=torch.long)[rollouts.prompt],
            responses=rollouts.token_ids,
            question=rollouts.question,
            on_score_prompt=torch.tensor(same)[rollouts.prompt] & ~rollouts.replayed,
            stale=(rollouts.staleness > 0) & ~rollouts.replayed,
            replayed=rollouts.replayed,
            engine_logprobs=rollouts.logprobs,
            advantages=torch.zeros(len(rollouts)),
            in_loss=everything,
            has_gradient=everything,
        )

    def learns(self) -> Tensor:
        """[R] bool, responses of which a token has an advantage or a penalty."""
        learns = self.advantages != 0
        for column in (self.token_advantages, self.penalty):
            for row, values in column.items():
                learns[row] |= bool((values != 0).any())
        return learns

    def not_rejected(self) -> Tensor:
        """[R] bool, responses of which a token is kept by the correction for the engine."""
        kept = torch.ones_like(self.in_loss)
        for row, weights in (self.mismatch_weights or {}).items():
            kept[row] = bool((weights > 0).any())
        return kept

    def columns(self, packed: PackedBatch, device: torch.device) -> TokenColumns:
        """Fields of the tokens of a packed micro-batch before its forward, on `device`."""
        rows, sizes, response = packed.rows, packed.lengths.tolist(), packed.response.to(device)
        zeros = torch.zeros(len(response), device=device)

        def column(values: Mapping[int, Tensor] | None, default: float = 0.0) -> Tensor | None:
            if not values:
                return None
            return torch.cat([values.get(row, torch.full((n,), default)).to(device) for row, n in lengths])

        lengths = list(zip(rows.tolist(), sizes, strict=True))
        known = torch.tensor([row in self.old_logprobs for row in rows.tolist()], device=device)
        return TokenColumns(
            response=response,
            old_logprobs=cat_rows(self.old_logprobs, rows, zeros, sizes),
            old_known=known[response],
            engine_logprobs=torch.cat([self.engine_logprobs[row] for row in rows.tolist()]).to(device),
            prompt_weights=cat_rows(self.prompt_weights, rows, torch.ones_like(zeros), sizes),
            log_ratio_since_sampling=cat_rows(self.log_ratio_since_sampling, rows, zeros, sizes),
            on_score_prompt=self.on_score_prompt[rows].to(device)[response],
            stale=self.stale[rows].to(device)[response],
            advantages=column(self.token_advantages),
            penalty=column(self.penalty),
            mismatch_weights=column(self.mismatch_weights, 1.0),
        )


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """T response tokens of a micro-batch; the fields that are called as in `Experience` mean the same, per token."""

    response: Tensor
    """[T] long, number of the response within the micro-batch, non-decreasing."""
    old_logprobs: Tensor
    """[T] float32, zero where they are not known."""
    old_known: Tensor
    """[T] bool; where false, the policy has not been updated yet and its own log-probs are the old ones."""
    engine_logprobs: Tensor
    """[T] float32."""
    prompt_weights: Tensor
    """[T] float32."""
    log_ratio_since_sampling: Tensor
    """[T] float32, given only for stale responses with another score prompt, zero elsewhere."""
    on_score_prompt: Tensor
    """[T] bool."""
    stale: Tensor
    """[T] bool."""
    advantages: Tensor | None
    """[T] float32, None without token credit."""
    penalty: Tensor | None
    """[T] float32, None where there is none."""
    mismatch_weights: Tensor | None
    """[T] float32, None where nothing is corrected."""

    def old(self, logprobs: Tensor, part: slice) -> Tensor:
        """[t] log-probs of the tokens `part` before the batch's first update, given their current ones."""
        return torch.where(self.old_known[part], self.old_logprobs[part], logprobs.detach())

    def log_ratio(self, old: Tensor, part: slice) -> Tensor:
        """[t] log π − log μ of the tokens `part`, zero for those that the present weights have sampled."""
        here = (self.on_score_prompt & self.stale)[part]
        return torch.where(here, old - self.engine_logprobs[part], self.log_ratio_since_sampling[part])

    def weights(self, old: Tensor, part: slice, staleness_log_cap: float) -> Tensor:
        """[t] weights of the policy terms of `part`: for the change of prompt, and for the engine or for staleness."""
        if self.mismatch_weights is not None:
            return self.prompt_weights[part] * self.mismatch_weights[part]
        return self.prompt_weights[part] * self.log_ratio(old, part).clamp(max=staleness_log_cap).exp()


def truncated_weights(target: Mapping[int, Tensor], sampled: Mapping[int, Tensor], cap: float) -> dict[int, Tensor]:
    """Response → [T_r] importance weights per token, min(π_target / π_sampled, cap), from log-probs in nats."""
    return {row: (target[row] - sampled[row]).clamp(max=math.log(cap)).exp() for row in target}


def cat_rows(values: Mapping[int, Tensor], rows: Tensor, default: Tensor, lengths: Sequence[int]) -> Tensor:
    """[T] the values of responses `rows` end to end; where a response has none, its part of `default` [T]."""
    parts = zip(rows.tolist(), default.split(list(lengths)), strict=True)
    return torch.cat([values.get(row, part) for row, part in parts])


def split_by_question(question: Tensor, num_questions: int, num_mini_batches: int) -> list[Tensor]:
    """Ascending rows of responses for each of `num_mini_batches` mini-batches, which never split a question.

    `question` is [R] long, in 0..num_questions-1. Sizes in questions differ by one at most, larger ones first.

    >>> [rows.tolist() for rows in split_by_question(torch.tensor([0, 0, 1, 2, 2]), 3, 2)]
    [[0, 1, 2], [3, 4]]
    """
    parts = torch.arange(num_questions).tensor_split(num_mini_batches)
    return [torch.isin(question, part).nonzero()[:, 0] for part in parts]


def reward_groups(rollouts: Rollouts, scores: ResponseScores | None, progress: float) -> RewardGroups:
    """The responses of one rank as a strategy sees them; `scores` are those of all of them, if any."""
    return RewardGroups(
        rewards=rollouts.rewards,
        correct=rollouts.correct,
        question=rollouts.question,
        prompt=rollouts.prompt,
        entropy=scores and scores.entropy,
        logprob=scores and torch.stack([scores.logprobs[row].sum() for row in range(len(rollouts))]).cpu(),
        lengths=rollouts.lengths,
        answers=rollouts.answers,
        history=rollouts.history,
        progress=progress,
    )


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

    def joined(column: Callable[[RewardGroups], Tensor | None]) -> Tensor | None:
        found = [values for part in parts if (values := column(part)) is not None]
        return torch.cat(found) if found else None

    return RewardGroups(
        rewards=torch.cat([part.rewards for part in parts]),
        correct=torch.cat([part.correct for part in parts]),
        question=torch.cat(question),
        prompt=torch.cat(prompt),
        entropy=joined(lambda part: part.entropy),
        logprob=joined(lambda part: part.logprob),
        lengths=joined(lambda part: part.lengths),
        answers=[answer for part in parts for answer in part.answers or ()],
        history=History.joined(part.history for part in parts),
        progress=parts[0].progress,
    )
