"""Rollouts under their score prompts, with advantages, cut into mini-batches: the input of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..distributed import max_over_ranks
from ..packing.batch import PackedBatch
from ..types import History, RewardGroups, Rollouts
from .mismatch import MismatchCorrection
from .policy.logprobs import PromptedResponses, ResponseScores, Scorer

Anchor = Literal["original", "own"]


@dataclass(kw_only=True)
class Experience(PromptedResponses):
    """R responses of one rank under the prompts at which log-probs, ratios and KL are computed."""

    anchor: Anchor
    """Which score prompts were chosen."""
    question: Tensor
    """[R] long, row of the question in the batch."""
    on_score_prompt: Tensor
    """[R] bool, sampled from its score prompt, and not replayed."""
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
        prompts = [p.token_ids for p in rollouts.prompts]
        row_of = list(range(len(prompts)))
        if anchor == "original":
            keys = [(p.question, *p.anchor_ids.tolist()) for p in rollouts.prompts]
            distinct = {key: p.anchor_ids for key, p in zip(keys, rollouts.prompts, strict=True)}
            prompts, rows = list(distinct.values()), {key: row for row, key in enumerate(distinct)}
            row_of = [rows[key] for key in keys]
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

    def score(self, scorer: Scorer, rows: Tensor) -> ResponseScores:
        """Scores of the responses `rows`, all that can have a gradient, which give the old log-probs. Collective."""
        scores = scorer.score(self, rows)
        self.old_logprobs, self.scored = dict(scores.logprobs), True
        return scores

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

    def correct_prompts(self, rollouts: Rollouts, scorer: Scorer, cap: float | None) -> None:
        """Score responses to other prompts than their score prompt under both, where a correction needs it. Collective.

        `cap` is `UpdateOptions.prompt_correction`.
        """
        elsewhere = self.has_gradient & ~self.on_score_prompt & ~self.replayed
        if cap is None:
            if not max_over_ranks(bool(self.stale.any())):
                return
            elsewhere = elsewhere & self.stale
        rows = elsewhere.nonzero()[:, 0]
        sampled = scorer.score(Experience.from_rollouts(rollouts, "own"), rows).logprobs
        if cap is not None:
            anchored = scorer.score(self, rows).logprobs
            self.prompt_weights = truncated_weights(anchored, sampled, cap)
        for row in rows[self.stale[rows]].tolist():
            engine = self.engine_logprobs[row].to(scorer.device)
            self.log_ratio_since_sampling[row] = sampled[row] - engine

    def correct_mismatch(self, rollouts: Rollouts, scorer: Scorer, correction: MismatchCorrection) -> None:
        """Weigh responses by π/μ under the prompt that they were sampled from, whatever the score prompt. Collective.

        Stale responses are among them: their μ are the earlier weights in the engine, so that their weights for
        staleness are not applied again. Replayed responses have their ratio to μ in the loss.
        """
        rows = (self.has_gradient & ~self.replayed).nonzero()[:, 0]
        if self.anchor == "own":
            sampled = self.old_logprobs if self.scored else self.score(scorer, rows).logprobs
        else:
            sampled = scorer.score(Experience.from_rollouts(rollouts, "own"), rows).logprobs
        ratios = [sampled[row] - self.engine_logprobs[row].to(scorer.device) for row in rows.tolist()]
        lengths = self.lengths[rows]
        response = torch.arange(len(rows)).repeat_interleave(lengths).to(scorer.device)
        found = correction.of_tokens(torch.cat([torch.zeros(0, device=scorer.device), *ratios]), response)
        self.mismatch_weights = dict(zip(rows.tolist(), found.weights.split(lengths.tolist()), strict=True))
        self.mismatch = found.sums

    def columns(self, packed: PackedBatch, reference_logprobs: Tensor | None, device: torch.device) -> TokenColumns:
        """Fields of the tokens of a packed micro-batch before its forward, on `device`."""
        rows, response = packed.rows.tolist(), packed.response.to(device)
        lengths = list(zip(rows, packed.lengths.tolist(), strict=True))

        def column(values: Mapping[int, Tensor], default: float = 0.0) -> Tensor:
            return torch.cat([values.get(row, torch.full((n,), default)).to(device) for row, n in lengths])

        known = torch.tensor([row in self.old_logprobs for row in rows], device=device)
        return TokenColumns(
            response=response,
            old_logprobs=column(self.old_logprobs),
            old_known=known[response],
            reference_logprobs=reference_logprobs,
            engine_logprobs=torch.cat([self.engine_logprobs[row] for row in rows]).to(device),
            prompt_weights=column(self.prompt_weights, 1.0),
            log_ratio_since_sampling=column(self.log_ratio_since_sampling),
            on_score_prompt=self.on_score_prompt[packed.rows].to(device)[response],
            stale=self.stale[packed.rows].to(device)[response],
            advantages=column(self.token_advantages) if self.token_advantages else None,
            penalty=column(self.penalty) if self.penalty else None,
            mismatch_weights=column(self.mismatch_weights, 1.0) if self.mismatch_weights else None,
        )


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """[T] response tokens of a micro-batch; fields that are called as in `Experience` mean the same, per token."""

    response: Tensor
    """[T] long, number of the response within the micro-batch, non-decreasing."""
    old_logprobs: Tensor
    """[T] float32, zero where they are not known."""
    old_known: Tensor
    """[T] bool; where false, the policy has not been updated yet and its own log-probs are the old ones."""
    reference_logprobs: Tensor | None
    """[T] float32 under the reference policy, None without one."""
    engine_logprobs: Tensor
    prompt_weights: Tensor
    log_ratio_since_sampling: Tensor
    on_score_prompt: Tensor
    stale: Tensor
    advantages: Tensor | None
    """[T] float32, None without token credit."""
    penalty: Tensor | None
    mismatch_weights: Tensor | None

    def part(self, tokens: slice) -> TokenColumns:
        """Some of the tokens."""
        columns: dict[str, Any] = {n: x if x is None else x[tokens] for n, x in vars(self).items()}
        return TokenColumns(**columns)

    def old(self, logprobs: Tensor) -> Tensor:
        """[T] log-probs before the batch's first update, given the current ones."""
        return torch.where(self.old_known, self.old_logprobs, logprobs.detach())

    def log_ratio(self, old: Tensor) -> Tensor:
        """[T] log π − log μ, zero for tokens that the present weights have sampled."""
        here = self.on_score_prompt & self.stale
        return torch.where(here, old - self.engine_logprobs, self.log_ratio_since_sampling)

    def weights(self, old: Tensor, staleness_log_cap: float) -> Tensor:
        """[T] weights of the policy terms: for the change of prompt, and for the engine or for staleness."""
        if self.mismatch_weights is not None:
            return self.prompt_weights * self.mismatch_weights
        return self.prompt_weights * self.log_ratio(old).clamp(max=staleness_log_cap).exp()


def truncated_weights(target: Mapping[int, Tensor], sampled: Mapping[int, Tensor], cap: float) -> dict[int, Tensor]:
    """Response → [T_r] importance weights per token, min(π_target / π_sampled, cap), from log-probs in nats."""
    return {row: (target[row] - sampled[row]).clamp(max=math.log(cap)).exp() for row in target}


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
        history=rollouts.history,
        progress=progress,
    )


def join_reward_groups(parts: Sequence[RewardGroups]) -> RewardGroups:
    """Concatenate the ranks' rewards into the groups of the global batch.

    Question and prompt ids are rows of their rank's batch; they are shifted so that no two ranks share one.
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
    return replace(parts[0], **joined, history=History.joined(part.history for part in parts))
