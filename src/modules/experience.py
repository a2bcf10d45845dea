"""Experience: rollouts under their score prompts, with advantages, in mini-batches and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..distributed import gather_objects, max_over_ranks, rank
from ..packing.batch import PackedBatch
from ..packing.head import TokenScores
from ..types import AdvantageStrategy, Loss, LossInputs, LossOutputs, RewardGroups, Rollouts
from ..types.checks import check_column, own_code
from .losses import check_outputs
from .mismatch import Corrected, MismatchCorrection, check_corrected
from .policy.logprobs import PromptedResponses, ResponseScores, Scorer

Anchor = Literal["original", "own"]


@dataclass(kw_only=True)
class TokenColumns:
    """Columns of T tokens, the tokens of concatenated responses.

    Columns of all responses are on the CPU, columns of a micro-batch on the device of the policy.
    """

    engine_logprobs: Tensor
    """[T] float32, log-probs of the engine under the *sample* prompt, nats."""
    old_logprobs: Tensor
    """[T] float32, log-probs under the score prompt before the batch's first update, nats.

    Valid only where `old_known` is true."""
    old_known: Tensor
    """[T] bool; if false, the policy has not been updated yet, and its current log-probs are the old ones."""
    on_score_prompt: Tensor
    """[T] bool, true in responses that were sampled from their score prompt and are not replayed."""
    stale: Tensor
    """[T] bool, true if the policy has been updated since the response was sampled; false if replayed."""
    log_ratio_since_sampling: Tensor
    """[T] float32, log π − log μ under the sampled prompt, nats.

    Zero except in stale responses that were sampled from another prompt than the score prompt. π is the
    policy before the batch's first update, μ the policy that sampled the response."""
    prompt_weights: Tensor
    """[T] float32, truncated importance weights for the change of prompt; ones without correction."""
    mismatch_weights: Tensor | None = None
    """[T] float32 importance weights between engine and trainer, including those for staleness.

    None without a `MismatchCorrection`."""
    advantages: Tensor | None = None
    """[T] float32; None without token credit."""
    terms: dict[str, Tensor] = field(default_factory=dict)
    """name → [T] float32, see `LossInputs.token_terms`."""
    reference_logprobs: Tensor | None = None
    """[T] float32, log-probs under the reference policy, nats; None without a reference.

    Also None for tokens that are in no micro-batch yet."""

    def map(self, change: Callable[[Tensor], Tensor]) -> TokenColumns:
        """Return columns with `change` applied to every tensor."""
        columns = {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return TokenColumns(**columns, terms={name: change(x) for name, x in self.terms.items()})

    def old(self, logprobs: Tensor) -> Tensor:
        """Return the log-probs before the batch's first update, [T], given the current log-probs."""
        return torch.where(self.old_known, self.old_logprobs, logprobs.detach())

    def log_ratio(self, old: Tensor) -> Tensor:
        """Return log π − log μ of each token, [T]; zero for tokens that the current weights have sampled."""
        here = self.on_score_prompt & self.stale
        return torch.where(here, old - self.engine_logprobs, self.log_ratio_since_sampling)

    def weights(self, old: Tensor, staleness_log_cap: float) -> Tensor:
        """Return the weights of the policy terms, [T].

        The weights correct for the change of prompt, and for the engine mismatch or staleness.
        """
        if self.mismatch_weights is not None:
            return self.prompt_weights * self.mismatch_weights
        return self.prompt_weights * self.log_ratio(old).clamp(max=staleness_log_cap).exp()


class Experience(PromptedResponses):
    """R responses of one rank with their score prompts, under which log-probs, ratios and KL are computed.

    All tensors are on the CPU. Anchors that are the same question in the same template become one prompt,
    which is encoded once per update.

    Args:
        rollouts: The sampled responses. The `logprobs` of replayed responses are their old log-probs in every
            mini-batch.
        anchor: The score prompts: `original` is q0 (TA-GRPO, Eq. 4), `own` the sampled prompt (GRPO, Eq. 2).
    """

    scores: ResponseScores | None = None
    """Scores by the policy before the batch's first update; None if no response needs scores.

    Only the responses that need scores are scored."""
    mismatch: Corrected | None = None
    """Result of the engine-mismatch correction; None without a `MismatchCorrection`."""
    advantages: Tensor
    """[R] float32, zero until the strategy has run; with token credit, means over each response's tokens."""
    in_loss: Tensor
    """[R] bool, true for responses that count in the normaliser of the loss, with or without a gradient."""
    has_gradient: Tensor
    """[R] bool, true for responses that can have a gradient; others are left out of every forward."""
    columns: TokenColumns
    """Columns of all tokens of the R responses."""
    mini_batches: list[Tensor]
    """Rows of each mini-batch's responses, which share no question; the default is one mini-batch."""

    def __init__(self, rollouts: Rollouts, anchor: Anchor) -> None:
        own = anchor == "own"
        keys = [
            row if own else (p.question, *p.anchor_ids.tolist()) for row, p in enumerate(rollouts.prompts)
        ]
        distinct = {
            key: p.token_ids if own else p.anchor_ids for key, p in zip(keys, rollouts.prompts, strict=True)
        }
        rows = {key: row for row, key in enumerate(distinct)}
        prompt = torch.tensor([rows[key] for key in keys], dtype=torch.long)[rollouts.prompt]
        super().__init__(prompts=list(distinct.values()), prompt=prompt, responses=rollouts.token_ids)
        self.rollouts, self.anchor, self.advantages = rollouts, anchor, torch.zeros(len(rollouts))
        self.in_loss = self.has_gradient = torch.ones_like(rollouts.truncated)
        self.mini_batches = [torch.arange(len(rollouts))]
        same = torch.tensor([own or torch.equal(p.anchor_ids, p.token_ids) for p in rollouts.prompts])
        engine = torch.cat([torch.zeros(0), *rollouts.logprobs])
        self.columns = TokenColumns(
            engine_logprobs=engine,
            old_logprobs=torch.zeros_like(engine),
            old_known=torch.zeros_like(engine, dtype=torch.bool),
            on_score_prompt=(same[rollouts.prompt] & ~rollouts.replayed)[self.response],
            stale=((rollouts.staleness > 0) & ~rollouts.replayed)[self.response],
            log_ratio_since_sampling=torch.zeros_like(engine),
            prompt_weights=torch.ones_like(engine),
        )

    @property
    def as_sampled(self) -> PromptedResponses:
        """Responses under the prompts that they were sampled from."""
        prompts = [prompt.token_ids for prompt in self.rollouts.prompts]
        return PromptedResponses(prompts=prompts, prompt=self.rollouts.prompt, responses=self.responses)

    def take_advantages(self, strategy: AdvantageStrategy, progress: float) -> None:
        """Set `advantages` to what `strategy` computes from the rewards of all ranks. Collective.

        Raises:
            TypeError: if the strategy returns no tensor.
            ValueError: if the strategy returns a tensor of a wrong shape or device.
            FloatingPointError: if an advantage is not finite.
        """
        parts = gather_objects(reward_groups(self.rollouts, self.scores, progress))
        groups = RewardGroups.joined(parts)
        with own_code(strategy, "advantage"):
            returned = strategy(groups)
        advantages = check_column(returned, len(groups.rewards), strategy, "advantage")
        start = sum(len(part.rewards) for part in parts[: rank()])
        self.advantages = advantages[start : start + len(self.rollouts)]

    def any_token(self, *flags: Tensor) -> Tensor:
        """Return whether any of `flags` ([T] bool each) is true at any token of each response, [R] bool."""
        flagged = torch.stack(flags).any(0)
        return torch.zeros(len(self.lengths)).index_add(0, self.response, flagged.float()) > 0

    def learns(self) -> Tensor:
        """Return whether a response or any of its tokens has a nonzero advantage or coefficient, [R] bool."""
        columns = [
            column for column in (self.columns.advantages, *self.columns.terms.values()) if column is not None
        ]
        return self.any_token((self.advantages != 0)[self.response], *(column != 0 for column in columns))

    def take_old_logprobs(self, scorer: Scorer) -> None:
        """Store the old log-probs that all mini-batches but the first need. Collective.

        Call this before the first optimizer step.
        """
        first, *others = self.mini_batches
        if others and self.scores is None:
            later = torch.cat(others)
            self.scores = scorer.score(self, later[(self.has_gradient & ~self.rollouts.replayed)[later]])
        columns, replayed = self.columns, self.rollouts.replayed[self.response]
        if self.scores is not None:
            columns.old_logprobs = self.scores.logprobs
            known = torch.ones_like(self.in_loss).index_fill(0, first, False)
            columns.old_known = known[self.response]
        columns.old_logprobs = torch.where(replayed, columns.engine_logprobs, columns.old_logprobs)
        columns.old_known = columns.old_known | replayed

    def correct_prompts(self, scorer: Scorer, cap: float | None) -> None:
        """Set importance weights of responses that were not sampled from their score prompt. Collective.

        `cap` is `UpdateOptions.prompt_correction`. If `cap` is None, only the log-ratios of stale responses
        are computed.
        """
        columns = self.columns
        elsewhere = (self.has_gradient & ~self.rollouts.replayed)[self.response] & ~columns.on_score_prompt
        if cap is None:
            if not max_over_ranks(bool(columns.stale.any())):
                return
            elsewhere = elsewhere & columns.stale
        rows = self.any_token(elsewhere).nonzero()[:, 0]
        sampled = scorer.score(self.as_sampled, rows).logprobs
        if cap is not None:
            weights = truncated_weights(scorer.score(self, rows).logprobs, sampled, cap)
            columns.prompt_weights = torch.where(elsewhere, weights, 1.0)
        log_ratio = sampled - columns.engine_logprobs
        columns.log_ratio_since_sampling = torch.where(elsewhere & columns.stale, log_ratio, 0.0)

    def correct_mismatch(self, scorer: Scorer, correction: MismatchCorrection) -> Tensor:
        """Set importance weights π/μ under the sampled prompt, whatever the score prompt is. Collective.

        For stale responses, μ is the earlier policy in the engine, so that staleness is not corrected again.
        Replayed responses are left out, since the loss computes their ratio to μ.

        Return whether each response has a token that is kept or has a loss term, [R] bool. The weights do not
        affect loss terms.
        """
        rows = (self.has_gradient & ~self.rollouts.replayed).nonzero()[:, 0]
        if self.anchor == "own":
            self.scores = self.scores or scorer.score(self, rows)
            sampled = self.scores.logprobs
        else:
            sampled = scorer.score(self.as_sampled, rows).logprobs
        tokens = self.tokens(rows)
        with own_code(correction, "mismatch"):
            corrected = correction.of_tokens(
                (sampled - self.columns.engine_logprobs)[tokens], self.response[tokens]
            )
        self.mismatch = check_corrected(corrected, len(tokens), correction)
        weights = torch.ones_like(sampled).index_copy(0, tokens, self.mismatch.weights)
        self.columns.mismatch_weights = weights
        return self.any_token(weights > 0, *(column != 0 for column in self.columns.terms.values()))


@dataclass
class MicroBatch:
    """Micro-batch of r responses in one forward. A call returns the loss of given tokens."""

    experience: Experience
    """Experience that contains the responses."""
    packed: PackedBatch
    """The responses, on the device of the policy."""
    loss: Loss
    totals: Mapping[str, float]
    """Numbers of `responses` and `tokens` in the mini-batch, over all ranks."""
    reference_logprobs: Tensor | None
    """[t] float32, log-probs under the reference policy; None without a reference."""
    staleness_log_cap: float
    """Logarithm of `UpdateOptions.staleness_cap`."""
    columns: TokenColumns = field(init=False)
    """Columns of the tokens, on the device of the policy."""
    outputs: list[LossOutputs] = field(default_factory=list)
    """Outputs of the loss, one per call."""
    old_logprobs: Tensor = field(init=False)
    """[t] log-probs before the batch's first update, nats; empty before `loss_of`."""
    log_ratio: Tensor = field(init=False)
    """[t] `TokenColumns.log_ratio` of `old_logprobs`; empty before `loss_of`."""

    def __post_init__(self) -> None:
        rows, device = self.packed.rows, self.packed.response.device
        tokens = self.experience.tokens(rows)
        self.columns = self.experience.columns.map(lambda column: column[tokens].to(device))
        self.columns.reference_logprobs = self.reference_logprobs
        self.advantages = self.experience.advantages[rows].to(device)
        self.replayed = self.experience.rollouts.replayed[rows].to(device)
        self.lengths = self.packed.lengths.to(device)
        # FSDP2 reads all fields of what the forward gets.
        self.old_logprobs = self.log_ratio = self.columns.engine_logprobs[:0]

    def loss_of(self, scores: TokenScores) -> Tensor:
        """Return the loss of the whole micro-batch, [], given the scores of its forward.

        If the forward has computed the loss part by part, that loss is returned.
        """
        self.old_logprobs = self.columns.old(scores.logprobs)
        self.log_ratio = self.columns.log_ratio(self.old_logprobs)
        if scores.loss is not None:
            return scores.loss
        return self(slice(None), scores.logprobs, scores.entropy)

    def __call__(self, part: slice | Tensor, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        """Return the loss of the tokens `part`, [], given their log-probs and entropies."""
        tokens = self.columns.map(lambda column: column[part])
        old = tokens.old(logprobs)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=old,
            reference_logprobs=tokens.reference_logprobs,
            entropy=entropy,
            advantages=self.advantages,
            response=self.packed.response[part],
            lengths=self.lengths,
            num_responses=self.totals["responses"],
            num_tokens=self.totals["tokens"],
            weights=tokens.weights(old, self.staleness_log_cap),
            replayed=self.replayed,
            token_advantages=tokens.advantages,
            token_terms=tokens.terms,
        )
        with own_code(self.loss, "loss"):
            outputs = self.loss(inputs)
        self.outputs.append(check_outputs(outputs, inputs, self.loss))
        return self.outputs[-1].loss


def truncated_weights(target: Tensor, sampled: Tensor, cap: float) -> Tensor:
    """Return the importance weights min(π_target / π_sampled, cap) of T tokens, from log-probs in nats."""
    return (target - sampled).clamp(max=math.log(cap)).exp()


def split_by_question(question: Tensor, num_questions: int, num_mini_batches: int) -> list[Tensor]:
    """Return the ascending rows of each mini-batch's responses; questions are never split.

    `question` is [R] long, in 0..num_questions-1. The numbers of questions in a rank's mini-batches differ by
    at most one. If all ranks have equally many questions, the same is true of the mini-batches over all
    ranks: the larger mini-batches of a rank begin where those of the previous rank end.

    >>> [rows.tolist() for rows in split_by_question(torch.tensor([0, 0, 1, 2, 2]), 3, 2)]
    [[0, 1, 2], [3, 4]]
    """
    parts = torch.arange(num_questions).tensor_split(num_mini_batches)
    first = -rank() * num_questions % num_mini_batches
    return [torch.isin(question, part).nonzero()[:, 0] for part in (*parts[first:], *parts[:first])]


def reward_groups(rollouts: Rollouts, scores: ResponseScores | None, progress: float) -> RewardGroups:
    """Return a strategy's input for all responses of one rank, with their `scores` if given."""
    names = ("rewards", "correct", "question", "prompt", "lengths", "answers", "history")
    columns = {name: getattr(rollouts, name) for name in names}
    if scores is not None:
        sums = [part.sum() for part in scores.logprobs.split(rollouts.lengths.tolist())]
        columns |= {"entropy": scores.entropy, "logprob": torch.stack(sums)}
    return RewardGroups(**columns, progress=progress)
