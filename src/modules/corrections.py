"""Importance weights of an experience that are known before its update: for the change of prompt and for the engine."""

from __future__ import annotations

import torch

from ..distributed import max_over_ranks
from ..types import Rollouts
from .experience import Experience, truncated_weights
from .mismatch import MismatchCorrection
from .policy.logprobs import Scorer


def correct_prompts(experience: Experience, rollouts: Rollouts, scorer: Scorer, cap: float | None) -> None:
    """Score responses to other prompts than their score prompt under both, where a correction needs it. Collective.

    `cap` is `UpdateOptions.prompt_correction`.
    """
    elsewhere = experience.has_gradient & ~experience.on_score_prompt & ~experience.replayed
    if cap is None:
        if not max_over_ranks(bool(experience.stale.any())):
            return
        elsewhere = elsewhere & experience.stale
    rows = elsewhere.nonzero()[:, 0]
    sampled = scorer.score(Experience.from_rollouts(rollouts, "own"), rows).logprobs
    if cap is not None:
        anchored = scorer.score(experience, rows).logprobs
        experience.prompt_weights = truncated_weights(anchored, sampled, cap)
    for row in rows[experience.stale[rows]].tolist():
        engine = experience.engine_logprobs[row].to(scorer.device)
        experience.log_ratio_since_sampling[row] = sampled[row] - engine


def correct_mismatch(
    experience: Experience, rollouts: Rollouts, scorer: Scorer, correction: MismatchCorrection
) -> None:
    """Weigh responses by π/μ under the prompt that they were sampled from, whatever the score prompt. Collective.

    Stale responses are among them: their μ are the earlier weights in the engine, so that their weights for staleness
    are in these and are not applied again. Replayed responses have their ratio to μ in the loss.
    """
    rows = (experience.has_gradient & ~experience.replayed).nonzero()[:, 0]
    if experience.anchor == "own":
        if not experience.scored:
            experience.old_logprobs, experience.scored = dict(scorer.score(experience, rows).logprobs), True
        sampled = experience.old_logprobs
    else:
        sampled = scorer.score(Experience.from_rollouts(rollouts, "own"), rows).logprobs
    learned = rows.tolist()
    ratios = [sampled[row] - experience.engine_logprobs[row].to(scorer.device) for row in learned]
    lengths = experience.lengths[rows]
    response = torch.arange(len(rows)).repeat_interleave(lengths).to(scorer.device)
    found = correction.of_tokens(torch.cat([torch.zeros(0, device=scorer.device), *ratios]), response)
    experience.mismatch_weights = dict(zip(learned, found.weights.split(lengths.tolist()), strict=True))
    experience.mismatch = found.sums
