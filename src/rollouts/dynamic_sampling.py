"""Dynamic sampling (DAPO, arXiv 2503.14476, §3.2): questions without gradient are replaced by others.

DAPO draws until the batch is full. Here the number of draws is limited: when it is reached, questions without gradient
fill the batch up, so that its size, and with it the budget in optimizer steps, stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from ..distributed import max_over_ranks
from ..metrics.functional import uniform_groups
from ..types import Prompt, QuestionBatch, QuestionGroup, Rollouts, Seconds

_OTHERS = ("prompts", "prompt", "question", "reward_terms", "seconds")
COLUMNS = [field.name for field in fields(Rollouts) if field.name not in _OTHERS]
"""Fields of `Rollouts` with one entry per response that stays as it is when responses move to another batch."""


def no_draw() -> QuestionBatch:
    """Stands for the `draw` that a caller has not given."""
    raise ValueError("Expected roll_out(…, draw=…) with rollout.dynamic_sampling, but got none. Give a way to draw.")


class DynamicSampling:
    """Replaces the questions of a batch that have no gradient.

    Args:
        pool: A question has one when the rewards differ in its whole pool (`question`: TA-GRPO) or within the
            responses to at least one of its prompts (`prompt`: GRPO, TA-GRPO*).
        max_draws: Batches drawn on top of the first.
        values: What must differ: the `rewards`, which decide whether there is a gradient, or the verdicts (`correct`,
            DAPO's constraint). It matters where reward terms tell responses of the same verdict apart.

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

    def fill_up(self, batch: QuestionBatch, draw: Callable[[int], QuestionBatch]) -> tuple[QuestionBatch, int]:
        """A batch of as many questions, and how many of this rank's questions were thrown away. Collective.

        Questions without gradient are replaced by ones with, while draws last. Every rank draws as often as the one
        that lacks most, so that loaders and engines stay in step. `batch` and what `draw` returns, given the number of
        the draw from 1, are rolled out.
        """
        wanted = len(batch.groups)
        batches, informative = [batch], [self.informative(_rollouts(batch))]
        for number in range(1, self.max_draws + 1):
            if max_over_ranks(wanted - sum(len(rows) for rows in informative)) <= 0:
                break
            batches.append(draw(number))
            informative.append(self.informative(_rollouts(batches[-1])))
        chosen, lacking = [], wanted
        for rows in informative:
            chosen.append(rows[:lacking])
            lacking -= len(chosen[-1])
        # Out of draws: the first batch's other questions fill the rest.
        others = torch.tensor([row for row in range(wanted) if row not in informative[0].tolist()], dtype=torch.long)
        chosen[0] = torch.cat([chosen[0], others[:lacking]]).sort().values
        # Batches of which nothing is kept take part too: their seconds were spent.
        filled = join_batches([take_questions(b, rows) for b, rows in zip(batches, chosen, strict=True)])
        return filled, sum(len(b.groups) for b in batches) - wanted


def _rollouts(batch: QuestionBatch) -> Rollouts:
    assert batch.rollouts is not None
    return batch.rollouts


def take_questions(batch: QuestionBatch, rows: Tensor) -> QuestionBatch:
    """The rolled-out `batch` with the questions `rows` ([n] long, ascending) alone."""
    rollouts = _rollouts(batch)
    group_of = {row: new for new, row in enumerate(rows.tolist())}
    kept_prompts = [p for p, prompt in enumerate(batch.prompts) if prompt.question in group_of]
    prompts = [batch.prompts[p]._replace(question=group_of[batch.prompts[p].question]) for p in kept_prompts]
    kept = torch.isin(rollouts.question, rows).nonzero()[:, 0]
    values: dict[str, Any] = {"prompts": prompts}
    for name in COLUMNS:
        column = getattr(rollouts, name)
        values[name] = column[kept] if isinstance(column, Tensor) else [column[row] for row in kept.tolist()]
    taken = replace(
        rollouts,
        prompt=torch.searchsorted(torch.tensor(kept_prompts, dtype=torch.long), rollouts.prompt[kept]),
        question=torch.searchsorted(rows, rollouts.question[kept]),
        reward_terms={name: term[kept] for name, term in rollouts.reward_terms.items()},
        **values,
    )
    return QuestionBatch([batch.groups[row] for row in rows.tolist()], prompts, batch.split, taken)


def join_batches(parts: Sequence[QuestionBatch]) -> QuestionBatch:
    """Rolled-out batches end to end as one; seconds add up."""
    groups: list[QuestionGroup] = []
    prompts: list[Prompt] = []
    question, prompt, seconds = [], [], Seconds()
    every = [_rollouts(part) for part in parts]
    for part, rollouts in zip(parts, every, strict=True):
        question.append(rollouts.question + len(groups))
        prompt.append(rollouts.prompt + len(prompts))
        prompts += [p._replace(question=p.question + len(groups)) for p in part.prompts]
        groups += part.groups
        for phase, spent in rollouts.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    values: dict[str, Any] = {}
    for name in COLUMNS:
        columns = [getattr(rollouts, name) for rollouts in every]
        values[name] = torch.cat(columns) if isinstance(columns[0], Tensor) else list(chain.from_iterable(columns))
    joined = Rollouts(
        prompts=prompts,
        prompt=torch.cat(prompt),
        question=torch.cat(question),
        reward_terms={name: torch.cat([r.reward_terms[name] for r in every]) for name in every[0].reward_terms},
        seconds=seconds,
        **values,
    )
    return QuestionBatch(groups, prompts, parts[0].split, joined)
