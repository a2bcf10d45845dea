"""Dynamic sampling (DAPO, arXiv 2503.14476, §3.2): replace questions without gradient by other questions.

DAPO draws batches until the batch is full. Here the number of draws is limited. If the limit is reached,
questions without gradient fill up the batch, so that its size and the budget in optimizer steps do not
change. The log shows that the limit was reached.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..distributed import max_over_ranks, rank
from ..metrics.functional import uniform_groups
from ..types import History, QuestionBatch, Rollouts, Seconds

_OTHERS = ("prompts", "prompt", "question", "reward_terms", "reward_parts", "history", "seconds")
COLUMNS = [field.name for field in fields(Rollouts) if field.name not in _OTHERS]
"""Per-response fields of `Rollouts` whose entries do not change when responses move to another batch."""


def no_draw(*_: Any) -> QuestionBatch:
    """Raise a ValueError, since an option of the pipeline needs an argument that `roll_out` did not get.

    This function is the default of the arguments `draw` and `reformulated`.
    """
    needed = "roll_out(…, draw=…) with rollout.dynamic_sampling, and reformulated=… with rollout.reformulator"
    raise ValueError(f"Expected {needed}, but got none. Give a way to draw.")


class Filled(NamedTuple):
    """Batch that `DynamicSampling` returns, and its cost."""

    batch: QuestionBatch  # as many questions as before
    draws: int  # batches drawn on top of the first, the same on every rank
    discarded: int  # questions of this rank that were sampled and thrown away
    # whether draws ran out on any rank, so that questions without gradient fill its batch up
    limit_reached: bool


class DynamicSampling:
    """Replacement of a batch's questions without gradient.

    Args:
        pool: Pool in which values must differ for a question to have a gradient: the whole pool of the
            question (`question`: TA-GRPO), or the responses to at least one of its prompts (`prompt`: GRPO;
            TA-GRPO*, the ablation without pooling and anchoring).
        max_draws: Largest number of batches drawn in addition to the first. If 93 % of questions have no
            gradient, the most in TA-GRPO's Fig. 3, a batch takes about 15 draws; with 64, even a batch of one
            question fails in less than 1 % of cases.
        values: Values that must differ: the `rewards`, which decide whether there is a gradient, or the
            verdicts (`correct`, DAPO's constraint). The two rules differ if reward terms give different
            rewards to responses of the same verdict.

    Raises:
        ValueError: if an option is out of its range.
    """

    def __init__(
        self,
        pool: Literal["question", "prompt"] = "question",
        max_draws: int = 64,
        values: Literal["rewards", "correct"] = "rewards",
    ) -> None:
        if pool not in ("question", "prompt"):
            raise ValueError(
                f"Expected dynamic_sampling.pool to be question or prompt, but got {pool!r}. It follows "
                "advantage.group_by; set rollout.dynamic_sampling.pool to another."
            )
        if max_draws < 1:
            raise ValueError(f"Expected dynamic_sampling.max_draws to be at least 1, but got {max_draws}.")
        if values not in ("rewards", "correct"):
            raise ValueError(
                f"Expected dynamic_sampling.values to be rewards or correct, but got {values!r}."
            )
        self.pool = pool
        self.max_draws = max_draws
        self.values = values
        self._warned = False

    def informative(self, rollouts: Rollouts) -> Tensor:
        """Return the rows of the questions that have a gradient, [≤ B] long, ascending."""
        values = rollouts.rewards if self.values == "rewards" else rollouts.correct.float()
        pools = rollouts.question if self.pool == "question" else rollouts.prompt
        mixed = torch.unique(pools)[~uniform_groups(values, pools)]
        questions: Tensor = torch.unique(rollouts.question[torch.isin(pools, mixed)])
        return questions

    def reduced(self, batch: QuestionBatch) -> QuestionBatch:
        """Return the rolled-out `batch` without the questions that have no gradient."""
        return take_questions(batch, self.informative(_rollouts(batch)))

    def fill_up(self, batch: QuestionBatch, draw: Callable[[], QuestionBatch]) -> Filled:
        """Replace questions without gradient by questions from at most `max_draws` draws. Collective.

        Every rank draws as often as the rank that lacks most questions, so that loaders and engines stay in
        step. `batch` and the batches that `draw` returns must have rollouts.
        """
        own = self.informative(_rollouts(batch))
        lacking, draws, discarded = len(batch.groups) - len(own), 0, 0
        kept: list[QuestionBatch] = []
        while (limit_reached := max_over_ranks(lacking) > 0) and draws < self.max_draws:
            draws += 1
            drawn = draw()
            kept.append(take_questions(drawn, self.informative(_rollouts(drawn))[:lacking]))
            lacking -= len(kept[-1].groups)
            discarded += len(drawn.groups)
            del drawn  # free the rest of it before the next draw
        if limit_reached and rank() == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f"Expected a batch of questions with gradient after at most {self.max_draws} further ones "
                "(rollout.dynamic_sampling.max_draws), but some are lacking: questions without gradient "
                "fill it up. Raise the limit, or accept it: dynamic_sampling/limit_reached logs where it "
                "happens.",
                stacklevel=2,
            )
        others = [row for row in range(len(batch.groups)) if row not in own.tolist()]
        rows = torch.cat([own, torch.tensor(others[:lacking], dtype=torch.long)]).sort().values
        return Filled(join_batches([take_questions(batch, rows), *kept]), draws, discarded, limit_reached)


def _rollouts(batch: QuestionBatch) -> Rollouts:
    assert batch.rollouts is not None
    return batch.rollouts


def take_questions(batch: QuestionBatch, rows: Tensor) -> QuestionBatch:
    """Return the rolled-out `batch` reduced to the questions `rows` ([n] long, ascending)."""
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
        reward_parts={name: part[kept] for name, part in rollouts.reward_parts.items()},
        history=rollouts.history and History(*(column[kept] for column in rollouts.history)),
        **values,
    )
    return QuestionBatch([batch.groups[row] for row in rows.tolist()], prompts, batch.split, taken)


def join_batches(parts: Sequence[QuestionBatch]) -> QuestionBatch:
    """Concatenate rolled-out batches, and add up their seconds."""
    every = [_rollouts(part) for part in parts]
    groups = list(accumulate((len(part.groups) for part in parts), initial=0))
    rows = list(accumulate((len(part.prompts) for part in parts), initial=0))
    prompts = [
        p._replace(question=p.question + g)
        for part, g in zip(parts, groups, strict=False)
        for p in part.prompts
    ]
    phases = chain(*(r.seconds for r in every))
    seconds = Seconds({phase: sum(r.seconds.get(phase, 0.0) for r in every) for phase in phases})
    values: dict[str, Any] = {}
    for name in COLUMNS:
        columns = [getattr(rollouts, name) for rollouts in every]
        values[name] = torch.cat(columns) if isinstance(columns[0], Tensor) else list(chain(*columns))
    joined = Rollouts(
        prompts=prompts,
        prompt=torch.cat([r.prompt + row for r, row in zip(every, rows, strict=False)]),
        question=torch.cat([r.question + g for r, g in zip(every, groups, strict=False)]),
        reward_terms={
            name: torch.cat([r.reward_terms[name] for r in every]) for name in every[0].reward_terms
        },
        reward_parts=_joined_parts(every),
        history=History.joined(r.history for r in every),
        seconds=seconds,
        **values,
    )
    return QuestionBatch(list(chain(*(part.groups for part in parts))), prompts, parts[0].split, joined)


def _joined_parts(every: Sequence[Rollouts]) -> dict[str, Tensor]:
    """Concatenate the reward parts of several batches; a part that a batch lacks is NaN."""
    names = sorted({name for rollouts in every for name in rollouts.reward_parts})
    joined: dict[str, Tensor] = {}
    for name in names:
        columns = []
        for rollouts in every:
            missing = torch.full((len(rollouts),), torch.nan)
            columns.append(rollouts.reward_parts.get(name, missing))
        joined[name] = torch.cat(columns)
    return joined
