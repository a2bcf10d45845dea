"""Hints from worked solutions, and the stages in which they are asked (QuestA)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...datamodules.memory import Curriculum, Record
from ...rephrasing.calls import ApiCall
from ...rephrasing.candidates import Candidate, Check, Reviewed
from ...types import QuestionGroup


@dataclass(frozen=True, kw_only=True)
class HintRephraser:
    """Appends the beginning of its solution to a question; asks no model. Reasoning up to `</think>` is dropped.

    Args:
        shares: Share of the solution's characters in each hint; a hint needs at least ten characters.
        field: Field of a question's row that has the solution.
        form: Text with `{question}` and `{hint}`.
        unchecked: Checks that a hint can't pass.
    """

    shares: Sequence[float]
    field: str
    form: str
    unchecked: Sequence[str] = ()

    @property
    def count(self) -> int:
        """Hints for each question."""
        return len(self.shares)

    def calls(self, *_: Sequence[QuestionGroup]) -> list[ApiCall]:
        """None."""
        return []

    async def propose(self, groups: Sequence[QuestionGroup], checks: Mapping[str, Check], *_: object) -> list[Reviewed]:
        """Return the questions with their hints as candidates; `shortfall` says why a question lacks a hint."""
        reviewed = [Reviewed(group) for group in groups]
        for item in reviewed:
            solution = str(item.group.metadata.get(self.field) or "").rpartition("</think>")[2].strip()
            for hint in [solution[: int(len(solution) * share)] for share in self.shares]:
                made = {"model": "none", "instruction": "hint", "kind": "hint", "unchecked": [*self.unchecked]}
                text = self.form.format(question=item.group.question, hint=hint)
                if len(hint) < 10 or not item.add(Candidate(text, made), checks):
                    item.shortfall = f"`{self.field}` has {len(solution)} characters, or a check refused a hint"
        return reviewed


@dataclass
class Stages(Curriculum):
    """Asks the first rephrasing in place of its question for `visits` visits, then the next, and stays at the last."""

    visits: int

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:
        """Return the question in the wording of its stage; at most 64 visits are counted."""
        stage = min(len(record.visits) // self.visits, len(group.rephrasings) - 1)
        return group._replace(question=[group.question, *group.rephrasings][stage + 1], rephrasings=(), kinds=())
