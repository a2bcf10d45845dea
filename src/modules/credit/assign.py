"""Assigns credit per token to an experience, mini-batch by mini-batch; with helpers that several credits use."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...distributed import gather_objects
from ...types import AdvantageStrategy, CreditInputs, History, RewardGroups, TokenCredit
from ..experience import Experience, reward_groups


def assign_credit(credit: TokenCredit, experience: Experience, progress: float, mini_batches: Sequence[Tensor]) -> None:
    """Set advantages and terms of tokens, and `experience.advantages` to their means per response. Collective.

    `mini_batches` are the rows of each mini-batch; `experience.scores` has the responses that count in the loss. A
    credit with `whole_batch` gets all mini-batches at once. One that is not finite is a FloatingPointError.
    """
    columns, groups = experience.columns, reward_groups(experience.rollouts, None, progress)
    columns.advantages = torch.zeros(int(experience.lengths.sum()))
    for rows in [torch.arange(len(experience.rollouts))] if credit.whole_batch else mini_batches:
        learned = rows[experience.in_loss[rows]]
        given, tokens = credit(_inputs(experience, groups, rows)), experience.tokens(learned)
        for name, values in {"advantages": given.advantages, **given.terms}.items():
            check_finite(f"{name} of tokens", values, credit)
        columns.advantages[tokens] = given.advantages.float()
        parts = columns.advantages[tokens].split(experience.lengths[learned].tolist())
        experience.advantages[learned] = torch.tensor([float(values.mean()) for values in parts])
        for name, coefficients in given.terms.items():
            columns.terms.setdefault(name, torch.zeros_like(columns.advantages))[tokens] = coefficients.float()


def _inputs(experience: Experience, groups: RewardGroups, rows: Tensor) -> CreditInputs:
    assert experience.scores is not None
    rollouts, in_loss = experience.rollouts, experience.in_loss[rows]
    learned = rows[in_loss]
    tokens = experience.tokens(learned)
    columns = {name: getattr(groups, name)[rows] for name in ("rewards", "correct", "question", "prompt", "lengths")}
    return CreditInputs(
        groups=replace(groups, **columns, history=groups.history and History(*(c[rows] for c in groups.history))),
        advantages=experience.advantages[rows],
        prompts=[experience.prompts[row] for row in experience.prompt[rows].tolist()],
        responses=[experience.responses[row] for row in rows.tolist()],
        response=in_loss.nonzero()[:, 0].repeat_interleave(experience.lengths[learned]),
        logprobs=experience.scores.logprobs[tokens],
        entropy=experience.scores.entropies[tokens],
        texts=[rollouts.text[row] for row in rows.tolist()],
        steps=[() if rollouts.steps is None else rollouts.steps[row] for row in rows.tolist()],
        reward_terms={name: term[rows] for name, term in rollouts.reward_terms.items()},
    )


def check_finite(name: str, values: Tensor, part: AdvantageStrategy | TokenCredit) -> None:
    """Refuse values of a strategy or a credit that are not finite."""
    if others := int((~torch.isfinite(values)).sum()):
        raise FloatingPointError(
            f"Expected finite {name}, but {type(part).__name__} returned {others} others. "
            "Check the rewards of this batch."
        )


def largest_over_ranks(values: Tensor, count: int) -> float:
    """The `count`-th largest of the numbers of all ranks, `values` [t] being this rank's. Collective.

    Returns the smallest where there are fewer, ∞ where there are none. Compare with ≥, so that ties are treated alike.
    """
    own = values.double().topk(min(count, len(values))).values
    found = torch.cat(gather_objects(own))
    return float(found.topk(min(count, len(found))).values[-1]) if len(found) else torch.inf


def check_share(share: float) -> None:
    """Refuse a share that is not above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"Expected credit.share to be above 0 and at most 1, but got {share}.")
