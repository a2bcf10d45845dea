"""Dynamic sampling (DAPO, arXiv 2503.14476, §3.2): questions without gradient are replaced by others.

DAPO draws until the batch is full. Here the number of draws is limited: when it is reached, the batch is filled up with
questions without gradient, so that its size, and with it the budget in optimizer steps, stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from ..distributed import max_over_ranks
from ..metrics.functional import uniform_groups
from ..types import Prompt, QuestionBatch, QuestionGroup, Rollouts


class DynamicSampling:
    """Says which questions of a batch have a gradient, and when to stop drawing.

    Args:
        pool: A question has one when the rewards differ in its whole pool (`question`: TA-GRPO) or within the
            responses to at least one of its prompts (`prompt`: GRPO, TA-GRPO*).
        max_draws: Batches drawn on top of the first.
        values: What must differ: the `rewards`, which decide whether there is a gradient, or the verdicts (`correct`,
            DAPO's constraint). They differ in effect where reward terms tell responses of the same verdict apart.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        pool: Literal["question", "prompt"] = "question",
        max_draws: int = 4,
        values: Literal["rewards", "correct"] = "rewards",
    ) -> None:
        if pool not in ("question", "prompt"):
            raise ValueError(f"Expected dynamic_sampling.pool to be question or prompt, but got {pool!r}.")
        if max_draws < 1:
            raise ValueError(f"Expected dynamic_sampling.max_draws to be at least 1, but got {max_draws}.")
        if values not in ("rewards", "correct"):
            raise ValueError(f"Expected dynamic_sampling.values to be rewards or correct, but got {values!r}.")
        self.pool = pool
        self.max_draws = max_draws
        self.values = values

    def informative(self, rollouts: Rollouts) -> Tensor:
        """Rows of the questions that have a gradient, ascending, [≤ B] long."""
        values = rollouts.rewards if self.values == "rewards" else rollouts.correct.float()
        if self.pool == "question":
            return torch.unique(rollouts.question)[~uniform_groups(values, rollouts.question)]
        mixed = torch.unique(rollouts.prompt)[~uniform_groups(values, rollouts.prompt)]
        return torch.unique(torch.tensor([p.question for p in rollouts.prompts], dtype=torch.long)[mixed])


def fill_up(
    batch: QuestionBatch, dynamic: DynamicSampling, draw: Callable[[int], QuestionBatch]
) -> tuple[QuestionBatch, int]:
    """A batch of as many questions, those without gradient replaced by ones with, while draws last. Collective.

    Every rank draws as often as the one that lacks most, so that loaders and engines stay in step.

    Args:
        batch: Rolled out.
        dynamic: Says what has a gradient.
        draw: Number of the draw, from 1 → a further batch, rolled out.

    Returns:
        The batch, and how many of this rank's questions were thrown away.
    """
    wanted = len(batch.groups)
    batches, informative = [batch], [dynamic.informative(_rollouts(batch))]
    for number in range(1, dynamic.max_draws + 1):
        if not max_over_ranks(wanted - sum(len(rows) for rows in informative)) > 0:
            break
        batches.append(draw(number))
        informative.append(dynamic.informative(_rollouts(batches[-1])))
    chosen, lacking = [], wanted
    for rows in informative:
        chosen.append(rows[:lacking])
        lacking -= len(chosen[-1])
    # Out of draws: the first batch's other questions fill the rest.
    others = torch.tensor([row for row in range(wanted) if row not in informative[0].tolist()], dtype=torch.long)
    chosen[0] = torch.cat([chosen[0], others[:lacking]]).sort().values
    # Also those of which nothing is kept: their seconds were spent.
    filled = join_batches([take_questions(b, rows) for b, rows in zip(batches, chosen, strict=True)])
    return filled, sum(len(b.groups) for b in batches) - wanted


def _rollouts(batch: QuestionBatch) -> Rollouts:
    assert batch.rollouts is not None
    return batch.rollouts


def take_questions(batch: QuestionBatch, rows: Tensor) -> QuestionBatch:
    """The rolled-out `batch` with the questions `rows` ([n] long, ascending) alone."""
    rollouts = batch.rollouts
    assert rollouts is not None
    group_of = {row: new for new, row in enumerate(rows.tolist())}
    kept_prompts = [p for p, prompt in enumerate(batch.prompts) if prompt.question in group_of]
    prompts = [batch.prompts[p]._replace(question=group_of[batch.prompts[p].question]) for p in kept_prompts]
    kept = torch.isin(rollouts.question, rows).nonzero()[:, 0]
    renumber = {"prompt": torch.tensor(kept_prompts, dtype=torch.long), "question": rows}
    values: dict[str, Any] = {
        name: torch.searchsorted(old, getattr(rollouts, name)[kept]) for name, old in renumber.items()
    }
    values |= {"prompts": prompts, "seconds": rollouts.seconds}
    values["reward_terms"] = {name: term[kept] for name, term in rollouts.reward_terms.items()}
    for name in _columns(values):
        column = getattr(rollouts, name)
        values[name] = column[kept] if isinstance(column, Tensor) else [column[row] for row in kept.tolist()]
    groups = [batch.groups[row] for row in rows.tolist()]
    return QuestionBatch(groups=groups, prompts=prompts, split=batch.split, rollouts=Rollouts(**values))


def join_batches(parts: Sequence[QuestionBatch]) -> QuestionBatch:
    """Rolled-out batches end to end as one; seconds add up."""
    groups: list[QuestionGroup] = []
    prompts: list[Prompt] = []
    question, prompt = [], []
    all_rollouts = [part.rollouts for part in parts if part.rollouts is not None]
    for part, rollouts in zip(parts, all_rollouts, strict=True):
        question.append(rollouts.question + len(groups))
        prompt.append(rollouts.prompt + len(prompts))
        prompts += [p._replace(question=p.question + len(groups)) for p in part.prompts]
        groups += part.groups
    first = all_rollouts[0]
    values: dict[str, Any] = {"question": torch.cat(question), "prompt": torch.cat(prompt), "prompts": prompts}
    values["reward_terms"] = {n: torch.cat([r.reward_terms[n] for r in all_rollouts]) for n in first.reward_terms}
    phases = dict.fromkeys(chain.from_iterable(r.seconds for r in all_rollouts))
    values["seconds"] = {phase: sum(r.seconds.get(phase, 0.0) for r in all_rollouts) for phase in phases}
    for name in _columns(values):
        columns = [getattr(rollouts, name) for rollouts in all_rollouts]
        values[name] = torch.cat(columns) if isinstance(columns[0], Tensor) else list(chain.from_iterable(columns))
    return QuestionBatch(groups=groups, prompts=prompts, split=parts[0].split, rollouts=Rollouts(**values))


def _columns(without: dict[str, Any]) -> list[str]:
    """Fields of `Rollouts` with one entry per response that `without` does not hold yet."""
    return [field.name for field in fields(Rollouts) if field.name not in without]
