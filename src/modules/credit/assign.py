"""Assignment of credit per token, mini-batch by mini-batch, and helpers that several credits share."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...distributed import gather_objects
from ...types import Credit, CreditInputs, History, RewardGroups, TokenCredit
from ...types.checks import check_choice, check_column, found, name_of, own_code
from ..experience import Experience, reward_groups
from ..losses import TOKEN_TERMS


def assign_credit(credit: TokenCredit, experience: Experience, progress: float) -> None:
    """Set the advantages and loss terms of tokens, as the credit assigns them. Collective.

    `experience.advantages` is set to the mean over each response's tokens. `experience.scores` must have the
    responses that count in the loss.

    Raises:
        TypeError: if the credit returns no `Credit` of tensors.
        ValueError: if the credit returns a tensor of a wrong shape or device, or a term that is not in
            `TOKEN_TERMS`.
        FloatingPointError: if the credit returns a number that is not finite.
        RuntimeError: if the credit calls `sys.exit`.
    """
    columns = experience.columns
    groups = reward_groups(experience.rollouts, None, progress)
    columns.advantages = torch.zeros(int(experience.lengths.sum()))
    for rows in experience.mini_batches:
        learned = rows[experience.in_loss[rows]]
        inputs = _inputs(experience, groups, rows)
        tokens = experience.tokens(learned)
        with own_code(credit, "credit"):
            returned = credit(inputs)
        given = check_credit(returned, len(inputs.response), credit)
        columns.advantages[tokens] = given.advantages
        parts = columns.advantages[tokens].split(experience.lengths[learned].tolist())
        experience.advantages[learned] = torch.tensor([float(values.mean()) for values in parts])
        for name, coefficients in given.terms.items():
            columns.terms.setdefault(name, torch.zeros_like(columns.advantages))[tokens] = coefficients


def _inputs(experience: Experience, groups: RewardGroups, rows: Tensor) -> CreditInputs:
    assert experience.scores is not None
    rollouts = experience.rollouts
    in_loss = experience.in_loss[rows]
    learned = rows[in_loss]
    tokens = experience.tokens(learned)
    columns = {
        name: getattr(groups, name)[rows] for name in ("rewards", "correct", "question", "prompt", "lengths")
    }
    answers = None
    if groups.answers is not None:
        answers = [groups.answers[row] for row in rows.tolist()]
    history = None
    if groups.history is not None:
        history = History(*(column[rows] for column in groups.history))
    return CreditInputs(
        groups=replace(groups, **columns, answers=answers, history=history),
        advantages=experience.advantages[rows],
        prompts=[experience.prompts[row] for row in experience.prompt[rows].tolist()],
        responses=[experience.responses[row] for row in rows.tolist()],
        response=in_loss.nonzero()[:, 0].repeat_interleave(experience.lengths[learned]),
        logprobs=experience.scores.logprobs[tokens],
        entropy=experience.scores.entropies[tokens],
        texts=[rollouts.text[row] for row in rows.tolist()],
        reward_terms={name: term[rows] for name, term in rollouts.reward_terms.items()},
    )


def check_credit(returned: object, size: int, credit: TokenCredit) -> Credit:
    """Check that a credit has returned finite advantages and terms of `size` tokens; return a float32 copy.

    Raises:
        TypeError: if `returned` is not a `Credit` of tensors.
        ValueError: if a tensor has a wrong shape or device, or the name of a term is not in `TOKEN_TERMS`.
        FloatingPointError: if a number is not finite.
    """
    if not isinstance(returned, Credit) or not isinstance(returned.terms, Mapping):
        raise TypeError(f"Expected {name_of(credit)} (credit) to return a Credit, but got {found(returned)}.")
    terms = {}
    for name, values in returned.terms.items():
        check_choice("terms", name, tuple(TOKEN_TERMS), "credit")
        terms[name] = check_column(values, size, credit, "credit", f"{name} of tokens")
    return Credit(check_column(returned.advantages, size, credit, "credit", "advantages of tokens"), terms)


def largest_over_ranks(values: Tensor, count: int) -> float:
    """Return the `count`-th largest of the `values` of all ranks, [t] on this rank. Collective.

    If there are fewer than `count` values, return the smallest, or ∞ if there are no values. Compare with ≥,
    so that ties are treated alike.
    """
    own = values.double().topk(min(count, len(values))).values
    found = torch.cat(gather_objects(own))
    return float(found.topk(min(count, len(found))).values[-1]) if len(found) else torch.inf


def check_share(share: float) -> None:
    """Raise a ValueError if a share is not above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"Expected credit.share to be above 0 and at most 1, but got {share}.")
