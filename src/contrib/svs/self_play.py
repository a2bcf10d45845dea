"""Variations of questions, which the policy writes from its correct responses (SvS)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...types import Ask, QuestionBatch, QuestionGroup, Reformulator


@dataclass(eq=False)
class SelfPlay(Reformulator):
    """Reformulator whose variations the policy writes from correct responses (arXiv 2508.14029, Eq. 4).

    If the share of correct responses to a question is in `seldom`, each correct response gives a prompt for a
    variation. These prompts join the batch as questions of the kind `synthesis`. A response to such a prompt
    contains a variation: a question of the kind `variation` with the answer of the original question. The
    response earns 1 if the share of correct responses to the variation is in `useful`, and otherwise 0. It
    also earns 0 if it contains no variation, or one that can't be sampled. The verdict on the response equals
    this reward.

    Args:
        instruction: Prompt for a variation, with `{response}` for the correct response.
        form: Regular expression whose first group is the variation in a response.
        seldom, useful: Smallest and largest share of correct responses: `seldom` for a question that is
            varied, `useful` for a useful variation.
    """

    instruction: str
    form: str
    seldom: tuple[float, float] = (0.125, 0.5)
    useful: tuple[float, float] = (0.125, 0.625)
    batches: int = field(default=0, init=False)
    """Number of batches extended so far; part of the ids of questions, so that ids stay unique."""

    def extend(self, batch: QuestionBatch, ask: Ask) -> list[QuestionBatch]:
        """Return two batches: prompts that ask for variations, with rewards, and the variations."""
        assert batch.rollouts is not None
        few = within(batch, self.seldom)[batch.rollouts.question] & batch.rollouts.correct
        solved = [(row, text) for row, text in enumerate(batch.rollouts.text) if few[row]]
        self.batches += 1
        syntheses = []
        for row, text in solved:
            group = made(batch, row, "synthesis", self.instruction.replace("{response}", text))
            syntheses.append(group._replace(id=f"{group.id}@{self.batches}"))
        prompts = ask(syntheses)
        assert prompts.rollouts is not None
        found = [re.search(self.form, text, re.DOTALL) for text in prompts.rollouts.text]
        variations = [made(prompts, row, "variation", at[1] if at else "") for row, at in enumerate(found)]
        asked = ask(variations)
        useful = {
            group.id for group, good in zip(asked.groups, within(asked, self.useful), strict=True) if good
        }
        right = torch.tensor([group.id in useful for group in variations], dtype=torch.bool)
        earned = prompts.rollouts.rewards - prompts.rollouts.correct.float() + right.float()
        prompts.rollouts = replace(prompts.rollouts, correct=right, rewards=earned)
        return [prompts, asked]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of extended batches."""
        return {"batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of extended batches."""
        self.batches = state["batches"]


def within(batch: QuestionBatch, share: tuple[float, float]) -> Tensor:
    """Return whether each question's share of correct responses is within `share`, [B] bool."""
    assert batch.rollouts is not None
    correct, question = batch.rollouts.correct.double(), batch.rollouts.question
    found = torch.bincount(question, correct, len(batch.groups)) / torch.bincount(question)
    return (found >= share[0]) & (found <= share[1])


def made(batch: QuestionBatch, row: int, kind: str, text: str) -> QuestionGroup:
    """Return the question of response `row`, with `text` as its only rephrasing, of the kind `kind`."""
    assert batch.rollouts is not None
    group = batch.groups[int(batch.rollouts.question[row])]
    return group._replace(id=f"{group.id}/{row}", rephrasings=(text.strip(),), kinds=(kind,))
