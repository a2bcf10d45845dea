"""The methods' formulas, written anew in plain torch and float64, and what each convention changes in them.

They are compared with the outcomes of trainers, ours among them, to name the convention by which an outcome
leaves its formula. They share no code with the update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from transformers import PreTrainedModel

from ..types.checks import found
from .batch import Batch
from .models import Models, logprobs_of


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A method: how rewards become advantages, and these a loss."""

    pool: str = "prompt"
    """Responses that a reward is compared with: of the `prompt`, the `question` or the `batch`."""
    baseline: str = "mean"
    """`mean` of the pool, `leave_one_out` or `none`."""
    scale: str = "std"
    """`std` of the pool, of the whole `batch`, of the other responses (`std_of_others`), or `none`."""
    unbiased: bool = True
    """Bessel's correction in the standard deviation."""
    epsilon: float = 1e-6
    """Added to the standard deviation."""
    unscored: str = "mean"
    """A response without a reward has the `mean` of its pool, or is `left_out` of the pool."""
    single: str = "zero"
    """Advantage of a response that is alone in its pool: `zero`, or its `reward`."""
    ratio: str = "token"
    """`token`, `sequence`, `product` or `geometric`; see `PolicyLoss`."""
    objective: str = "clip"
    """`clip` or `cispo`."""
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    dual_clip: float | None = None
    aggregation: str = "sequence_mean"
    """`sequence_mean`, `token_mean` or `constant`."""
    max_length: int | None = None
    """Length that `constant` divides by."""
    micro_batch_rows: int | None = None
    """Rows of the micro-batches whose means are averaged; None takes one mean over the batch."""
    kl_coef: float = 0.0
    kl_aggregation: str | None = None
    """Aggregation of the divergence; None is `aggregation`."""
    kl_score: bool = False
    """Whether the divergence is multiplied by π_θ / sg[π_θ], which is 1 and has a gradient."""
    kl_ratio: bool = False
    """Whether the divergence is multiplied by the ratio."""
    old: str = "recorded"
    """Log-probs that the ratio is to: `recorded`, `current` (the ratio is 1), or those of the `next` response."""
    scored_under: str = "own"
    """Prompt of the log-probs: `own`, the `original` question, or that of the `next` prompt."""
    inverse: bool = False
    """Whether the ratio is upside down."""
    credit: str = "none"
    """`none`, `clip_cov` or `kl_cov`, with every candidate of Clip-Cov drawn."""
    low: float = 1.0
    high: float = 5.0
    share: float = 0.0
    coefficient: float = 0.0

    @classmethod
    def of(cls, cfg: DictConfig) -> Formula | None:
        """Return the formula of composed settings, or None if it is not written here."""
        advantage, loss, credit = cfg.advantage, cfg.loss, cfg.get("credit")
        kinds = {"ClipCovCredit": "clip_cov", "KLCovCredit": "kl_cov"}
        kind = "none" if not credit else kinds.get(str(credit._target_).rpartition(".")[2])
        known = str(advantage._target_).endswith(".GroupAdvantage") and advantage.scale != "mean"
        if not known or kind is None or loss.kl_estimator != "k3" or cfg.get("mismatch"):
            return None
        names = ("ratio", "objective", "clip_low", "clip_high", "dual_clip", "aggregation", "max_length")
        given: dict[str, Any] = {name: loss[name] for name in (*names, "kl_coef", "kl_ratio")}
        for name in ("low", "high", "share"):
            if credit and name in credit:
                given[name] = credit[name]
        return cls(
            pool=advantage.group_by,
            baseline=advantage.baseline,
            scale=advantage.scale,
            unbiased=advantage.unbiased,
            epsilon=advantage.get("epsilon", 1e-6),
            credit=kind,
            coefficient=credit.get("coef", 0.0) if credit else 0.0,
            scored_under=cfg.policy.anchor,
            **given,
        )

    def divisor(self, deviation: Tensor) -> Tensor:
        """Return what centred rewards are divided by, given their standard deviation."""
        return deviation + self.epsilon


@dataclass(frozen=True)
class Reference:
    """A batch with its log-probs, to which formulas are applied."""

    batch: Batch
    models: Models
    temperature: float = 1.0

    @cached_property
    def logprobs(self) -> dict[str, list[Tensor]]:
        """Prompt of the score → [R] of [T_r] float64 log-probs under the policy, nats."""
        return self._scored(self.models.policy)

    @cached_property
    def reference_logprobs(self) -> dict[str, list[Tensor]]:
        """Prompt of the score → [R] of [T_r] float64 log-probs under the reference policy, nats."""
        return self._scored(self.models.reference)

    def _scored(self, model: PreTrainedModel) -> dict[str, list[Tensor]]:
        rows = self.batch.rows
        prompts = {(row.question, row.wording): row.prompt_ids for row in rows}
        groups = self.batch.groups
        following = dict(zip(groups, [*groups[1:], groups[0]], strict=True))
        chosen = {
            "own": [row.prompt_ids for row in rows],
            "original": [prompts.get((row.question, 0), row.prompt_ids) for row in rows],
            "next": [prompts[following[row.question, row.wording]] for row in rows],
        }
        responses = [row.response_ids for row in rows]
        scored = {}
        for name, each in chosen.items():
            found_ = logprobs_of(model, each, responses, self.temperature)
            scored[name] = [values.double() for values in found_]
        return scored

    def advantages(self, formula: Formula) -> Tensor:
        """Return [R] float64 advantages of the responses."""
        rows = self.batch.rows
        pools: dict[object, list[int]] = {}
        for number, row in enumerate(rows):
            key = {"prompt": (row.question, row.wording), "question": row.question, "batch": 0}[formula.pool]
            pools.setdefault(key, []).append(number)
        rewards = torch.tensor(
            [math.nan if row.reward is None else row.reward for row in rows], dtype=torch.float64
        )
        advantages = torch.zeros(len(rows), dtype=torch.float64)
        for members in pools.values():
            advantages[members] = self._pool(formula, rewards[members], self._mean_of_question(members))
        if formula.scale == "batch":
            scored = rewards[~rewards.isnan()]
            advantages = advantages / formula.divisor(scored.std(correction=int(formula.unbiased)))
        return advantages

    def _mean_of_question(self, members: Sequence[int]) -> float:
        """Return the mean reward of the responses to the question of a pool's first response."""
        question = self.batch.rows[members[0]].question
        rewards = [
            row.reward for row in self.batch.rows if row.question == question and row.reward is not None
        ]
        return sum(rewards) / len(rewards) if rewards else 0.0

    @staticmethod
    def _pool(formula: Formula, rewards: Tensor, mean_of_question: float) -> Tensor:
        """Return the advantages of one pool, before a division by the standard deviation of the batch."""
        scored = ~rewards.isnan()
        if formula.unscored == "mean":
            rewards = torch.where(scored, rewards, mean_of_question)
            scored = torch.ones_like(scored)
        values = rewards[scored]
        advantages = torch.zeros_like(rewards)
        count = len(values)
        if count < 2:
            if formula.single == "reward" or formula.baseline == "none":
                advantages[scored] = values
            return advantages
        baseline: Tensor | float = 0.0
        if formula.baseline == "mean":
            baseline = values.mean()
        elif formula.baseline == "leave_one_out":
            baseline = (values.sum() - values) / (count - 1)
        centred = values - baseline
        if bool((values == values[0]).all()) and formula.baseline != "none":
            return advantages
        if formula.scale == "std":
            centred = centred / formula.divisor(values.std(correction=int(formula.unbiased)))
        elif formula.scale == "std_of_others" and count > 2:
            others = [torch.cat([values[:place], values[place + 1 :]]) for place in range(count)]
            deviations = torch.stack([each.std(correction=int(formula.unbiased)) for each in others])
            # Where the others have equal rewards, NeMo RL leaves the difference as it is.
            centred = torch.where(deviations > 0, centred / formula.divisor(deviations), centred)
        advantages[scored] = centred
        return advantages

    def token_weights(self, formula: Formula, advantages: Sequence[Tensor]) -> list[Tensor]:
        """Return [R] of [T_r] derivatives of the loss by the log-probs, given advantages of tokens."""
        leaves = [values.clone().requires_grad_() for values in self.logprobs[formula.scored_under]]
        given = [values.double() for values in advantages]
        loss = self.loss(formula, leaves, given)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, gradients, strict=True)
        ]

    def loss(self, formula: Formula, logprobs: Sequence[Tensor], advantages: Sequence[Tensor]) -> Tensor:
        """Return the loss of the batch, given [R] of [T_r] log-probs and advantages."""
        advantages, penalised = self._credited(formula, logprobs, advantages)
        terms: list[Tensor] = []
        divergences: list[Tensor] = []
        for row in range(len(logprobs)):
            ratio = self._log_ratio(formula, row, logprobs[row])
            own = self._policy_terms(formula, ratio, logprobs[row], advantages[row])
            old = torch.tensor(self.batch.rows[row].sampled_logprobs, dtype=torch.float64)
            terms.append(own + formula.coefficient * penalised[row] * (logprobs[row] - old).abs())
            if formula.kl_coef:
                divergences.append(self._divergence(formula, row, logprobs[row], ratio))
        loss = self._batch_mean(formula, terms)
        if divergences:
            other = replace(formula, aggregation=formula.kl_aggregation or formula.aggregation)
            loss = loss + formula.kl_coef * self._batch_mean(other, divergences)
        return loss

    def _batch_mean(self, formula: Formula, terms: Sequence[Tensor]) -> Tensor:
        """Return the aggregate of [R] of [T_r] terms, over the batch or over its micro-batches."""
        size = formula.micro_batch_rows or len(terms)
        parts = [terms[start : start + size] for start in range(0, len(terms), size)]
        return torch.stack([self._aggregate(formula, part) for part in parts]).mean()

    @staticmethod
    def _aggregate(formula: Formula, rows: Sequence[Tensor]) -> Tensor:
        if formula.aggregation == "sequence_mean":
            return torch.stack([terms.mean() for terms in rows]).mean()
        total = torch.stack([terms.sum() for terms in rows]).sum()
        if formula.aggregation == "token_mean":
            return total / sum(len(terms) for terms in rows)
        return total / ((formula.max_length or 1) * len(rows))

    def _log_ratio(self, formula: Formula, row: int, logprobs: Tensor) -> Tensor:
        """Return [T] log-ratios of a response's tokens."""
        rows = self.batch.rows
        old = torch.tensor(rows[row].sampled_logprobs, dtype=torch.float64)
        if formula.old == "current":
            old = logprobs.detach()
        elif formula.old == "next":
            other = rows[(row + 1) % len(rows)].sampled_logprobs
            padded = [*other, *[0.0] * len(old)][: len(old)]
            old = torch.tensor(padded, dtype=torch.float64)
        return old - logprobs if formula.inverse else logprobs - old

    @staticmethod
    def _level(formula: Formula, log_ratio: Tensor) -> Tensor:
        if formula.ratio == "sequence":
            return log_ratio.mean().expand(len(log_ratio))
        return log_ratio.sum().expand(len(log_ratio)) if formula.ratio == "product" else log_ratio

    def _policy_terms(
        self, formula: Formula, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor
    ) -> Tensor:
        """Return [T] terms of the loss of a response."""
        low = math.inf if formula.clip_low is None else formula.clip_low
        high = math.inf if formula.clip_high is None else formula.clip_high
        if formula.ratio == "geometric":
            up, down = log_ratio.clamp(max=high), log_ratio.clamp(min=-low)
            bounded = torch.where(advantages > 0, up, torch.where(advantages < 0, down, log_ratio))
            return -advantages * bounded.mean().exp()
        ratio = self._level(formula, log_ratio).exp()
        if formula.objective == "cispo":
            return -ratio.detach().clamp(1 - low, 1 + high) * advantages * logprobs
        value = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
        if formula.dual_clip is not None:
            value = torch.where(advantages < 0, torch.maximum(value, formula.dual_clip * advantages), value)
        return -value

    def _divergence(self, formula: Formula, row: int, logprobs: Tensor, log_ratio: Tensor) -> Tensor:
        """Return [T] estimates k3 of the divergence from the reference."""
        gap = self.reference_logprobs[formula.scored_under][row] - logprobs
        estimate = gap.exp() - 1 - gap
        if formula.kl_score:
            estimate = estimate * (logprobs - logprobs.detach()).exp()
        if not formula.kl_ratio:
            return estimate
        ratio = self._level(formula, log_ratio).exp()
        return estimate * ratio

    def _credited(
        self, formula: Formula, logprobs: Sequence[Tensor], advantages: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return [R] of [T_r] advantages after Clip-Cov, and flags of the tokens that KL-Cov penalises."""
        penalised = [torch.zeros_like(values) for values in advantages]
        if formula.credit == "none":
            return list(advantages), penalised
        lengths = [len(values) for values in advantages]
        advantage = torch.cat(list(advantages))
        logprob = torch.cat(list(logprobs)).detach()
        covariance = (advantage - advantage.mean()) * (logprob - logprob.mean())
        if formula.credit == "clip_cov":
            drawn = (covariance > formula.low) & (covariance < formula.high)
            return list(advantage.masked_fill(drawn, 0.0).split(lengths)), penalised
        largest = covariance.topk(max(int(len(covariance) * formula.share), 1)).indices
        flags = torch.zeros_like(covariance).index_fill(0, largest, 1.0)
        return list(advantages), list(flags.split(lengths))


@dataclass(frozen=True)
class Change:
    """A convention: fields of the formula that it sets, and its name."""

    name: str
    fields: dict[str, Any]

    def apply(self, formula: Formula) -> Formula:
        """Return the formula with the convention."""
        return replace(formula, **self.fields)


def advantage_changes(formula: Formula) -> list[Change]:
    """Return the conventions of advantages that a formula may be mistaken in, the likeliest first."""
    changes = []
    if formula.scale in ("std", "batch"):
        if formula.unbiased:
            changes.append(Change("standard deviation without Bessel's correction", {"unbiased": False}))
        else:
            changes.append(Change("standard deviation with Bessel's correction", {"unbiased": True}))
        for epsilon in (1e-4, 1e-6, 1e-8, 0.0):
            if epsilon != formula.epsilon:
                text = f"epsilon {epsilon:g} beside the standard deviation, instead of {formula.epsilon:g}"
                changes.append(Change(text, {"epsilon": epsilon}))
    scales = {
        "none": "no division by the standard deviation",
        "std": "division by the standard deviation of the pool",
        "batch": "division by the standard deviation of the whole batch",
        "std_of_others": "division by the standard deviation of the other responses",
    }
    pools = {
        "prompt": "pools of the responses to one prompt",
        "question": "pools of all responses to a question",
        "batch": "one pool of the whole batch",
    }
    baselines = {
        "mean": "the mean of all responses of the pool as the baseline",
        "leave_one_out": "the mean of the other responses as the baseline",
        "none": "no baseline",
    }
    for field, texts in (("scale", scales), ("pool", pools), ("baseline", baselines)):
        changes += [
            Change(text, {field: value}) for value, text in texts.items() if value != getattr(formula, field)
        ]
    left_out = "responses without a reward left out of their pool"
    changes.append(Change(left_out, {"unscored": "left_out"}))
    changes.append(Change("the raw reward where a response is alone in its pool", {"single": "reward"}))
    return changes


def loss_changes(formula: Formula, micro_batch_rows: Sequence[int]) -> list[Change]:
    """Return the conventions of the loss that a formula may be mistaken in, the likeliest first."""
    changes = []
    means = {
        "sequence_mean": "a mean per response, then over responses",
        "token_mean": "one mean over all tokens",
    }
    if formula.ratio != "geometric":
        changes += [
            Change(text, {"aggregation": value, "max_length": None})
            for value, text in means.items()
            if value != formula.aggregation
        ]
    for rows in micro_batch_rows:
        changes.append(
            Change(f"a normaliser per micro-batch of {rows} responses", {"micro_batch_rows": rows})
        )
    prompts = {
        "own": "ratios under the sampled prompt",
        "original": "ratios under the wrong prompt: the original question in place of the sampled wording",
        "next": "ratios under the wrong prompt: that of the next group",
    }
    changes += [
        Change(text, {"scored_under": value})
        for value, text in prompts.items()
        if value != formula.scored_under
    ]
    changes.append(Change("ratios to the wrong response's old log-probs (the next one's)", {"old": "next"}))
    changes.append(Change("ratios of exactly 1 (old log-probs are the current ones)", {"old": "current"}))
    changes.append(Change("ratios upside down: π_old / π_θ", {"inverse": True}))
    ratios = {
        "token": "a ratio per token",
        "sequence": "one length-normalised ratio per response",
        "product": "one ratio per response without a length norm",
        "geometric": "the geometric mean of clipped ratios",
    }
    if formula.objective == "clip":
        changes += [
            Change(text, {"ratio": value}) for value, text in ratios.items() if value != formula.ratio
        ]
    if formula.dual_clip is None and formula.objective == "clip":
        changes.append(Change("a dual clip of 3", {"dual_clip": 3.0}))
    if formula.dual_clip is not None:
        changes.append(Change("no dual clip", {"dual_clip": None}))
    if (formula.clip_low, formula.clip_high) != (None, None):
        changes.append(Change("no clip", {"clip_low": None, "clip_high": None}))
    if formula.clip_high != formula.clip_low:
        changes.append(Change("a symmetric clip", {"clip_high": formula.clip_low}))
    if formula.kl_coef:
        changes.append(Change("no divergence from the reference", {"kl_coef": 0.0}))
        change = {"kl_ratio": not formula.kl_ratio}
        text = "the divergence without the ratio" if formula.kl_ratio else "the divergence times the ratio"
        changes.append(Change(text, change))
        changes.append(
            Change("a divergence whose gradient has the score-function term too", {"kl_score": True})
        )
        if formula.aggregation != "sequence_mean":
            text = "a divergence that is a mean per response, then over responses"
            changes.append(Change(text, {"kl_aggregation": "sequence_mean"}))
    return changes


@dataclass(frozen=True)
class Finding:
    """Place where an outcome leaves a formula, and the convention that explains it."""

    what: str
    """`advantages` or `token weights`."""
    row: int
    """First response that differs, from 0."""
    token: int
    """First token of the response that differs, from 0."""
    expected: float
    found: float
    causes: tuple[str, ...]
    """Names of the conventions that explain the outcome together; empty if none does."""

    def __str__(self) -> str:
        """Say where, by how much and why, in one sentence."""
        why = " and ".join(self.causes) or "no known convention explains it"
        return (
            f"{self.what} leave the formula at response {self.row}, token {self.token}: expected "
            f"{self.expected:.6g}, but found {self.found:.6g}. Likely cause: {why}."
        )


CLOSE = 1e-5
"""Largest difference, as a share of the largest value, that counts as none: float32 log-probs differ by as much."""


def first_difference(expected: Sequence[Tensor], found_: Sequence[Tensor]) -> tuple[int, int] | None:
    """Return the first response and token that differ, or None if all agree."""
    bound = CLOSE * max(float(torch.cat(list(expected)).abs().max()), 1e-12)
    for row, (one, other) in enumerate(zip(expected, found_, strict=True)):
        differing = ((one - other).abs() > bound).nonzero()
        if len(differing):
            return row, int(differing[0])
    return None


def explain(
    reference: Reference,
    formula: Formula,
    *,
    advantages: Sequence[Tensor] | None = None,
    token_weights: Sequence[Tensor] | None = None,
    micro_batch_rows: Sequence[int] = (),
) -> list[Finding]:
    """Compare an outcome with a formula, and name the conventions by which it leaves the formula.

    The weights are compared given the outcome's own advantages, so that each part has causes of its own.

    Args:
        reference: Batch and log-probs.
        formula: What the outcome should be.
        advantages: [R] of [T_r] advantages of tokens; None if they are not known.
        token_weights: [R] of [T_r] derivatives of the loss by the log-probs; None if they are not known.
        micro_batch_rows: Sizes of micro-batches that a loss may have been normalised by.

    Raises:
        ValueError: if a part has other shapes than the responses.
    """
    findings = []
    lengths = reference.batch.lengths
    expected = _repeated(reference.advantages(formula), lengths)
    given = expected
    if advantages is not None:
        given = checked_rows(advantages, lengths, "advantages")
        if first_difference(expected, given):
            tried = advantage_changes(formula)
            causes = _causes(
                formula, tried, expected, given, lambda f: _repeated(reference.advantages(f), lengths)
            )
            findings.append(_finding("advantages", expected, given, causes))
    if token_weights is not None:
        weights = checked_rows(token_weights, lengths, "token weights")
        wanted = reference.token_weights(formula, given)
        if first_difference(wanted, weights):
            tried = loss_changes(formula, micro_batch_rows)
            causes = _causes(formula, tried, wanted, weights, lambda f: reference.token_weights(f, given))
            findings.append(_finding("token weights", wanted, weights, causes))
    return findings


def _finding(
    what: str, expected: Sequence[Tensor], found_: Sequence[Tensor], causes: tuple[str, ...]
) -> Finding:
    place = first_difference(expected, found_) or (0, 0)
    row, token = place
    return Finding(what, row, token, float(expected[row][token]), float(found_[row][token]), causes)


def _causes(
    formula: Formula,
    changes: Sequence[Change],
    expected: Sequence[Tensor],
    target: Sequence[Tensor],
    compute: Any,
) -> tuple[str, ...]:
    """Return the names of the one or two changes that lead from the formula to the target."""
    scale = max(float(torch.cat(list(target)).abs().max()), 1e-12)
    wanted = torch.cat(list(target))

    def residual(changed: Formula) -> float:
        try:
            return float((torch.cat(list(compute(changed))) - wanted).abs().max()) / scale
        except RuntimeError:
            return math.inf

    before = float((torch.cat(list(expected)) - wanted).abs().max()) / scale
    bound = min(CLOSE, 0.1 * before)
    best: tuple[float, tuple[str, ...]] = (math.inf, ())
    for change in changes:
        best = min(best, (residual(change.apply(formula)), (change.name,)), key=lambda pair: pair[0])
    if best[0] <= bound:
        return best[1]
    for place, first in enumerate(changes):
        for second in changes[place + 1 :]:
            if first.fields.keys() & second.fields.keys():
                continue
            left = residual(second.apply(first.apply(formula)))
            best = min(best, (left, (first.name, second.name)), key=lambda pair: pair[0])
    return best[1] if best[0] <= bound else ()


def _repeated(values: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    return [value.expand(length) for value, length in zip(values, lengths, strict=True)]


def checked_rows(rows: object, lengths: Sequence[int], what: str) -> list[Tensor]:
    """Return a number per token of each response, as float64; a number per response is repeated.

    Raises:
        ValueError: if the numbers are not finite, or not as many as responses and tokens.
    """
    expected = f"Expected {what} to be a list of {len(lengths)} responses"
    if not isinstance(rows, Sequence | Tensor) or len(rows) != len(lengths):
        raise ValueError(f"{expected}, but got {found(rows)}.")
    checked = []
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        values = torch.as_tensor(row, dtype=torch.float64).detach()
        values = values.expand(length) if values.ndim == 0 else values
        if list(values.shape) != [length] or not bool(values.isfinite().all()):
            raise ValueError(
                f"{expected} with a finite number for each token, but response {number} has {length} tokens and "
                f"got {found(values)}."
            )
        checked.append(values)
    return checked
