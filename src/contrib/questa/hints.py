"""Hints from worked solutions, and the stages in which questions have hints (QuestA)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...datamodules.memory import Curriculum, Record
from ...rephrasing.calls import ApiCall
from ...rephrasing.candidates import Candidate, Check, Reviewed
from ...types import QuestionGroup


@dataclass(frozen=True, kw_only=True)
class HintRephraser:
    """Rephraser without a model, which appends the beginning of a question's solution to the question.

    Reasoning up to `</think>` is dropped.

    Args:
        shares: For each hint, the share of the solution's characters; a hint needs at least ten characters.
        field: Field of a question's row that has the solution.
        form: Text of the new question, with `{question}` and `{hint}`.
        unchecked: Names of checks that a hint can't pass.
    """

    shares: Sequence[float]
    field: str
    form: str
    unchecked: Sequence[str] = ()

    @property
    def count(self) -> int:
        """Number of hints for each question."""
        return len(self.shares)

    def calls(self, *_: Sequence[QuestionGroup]) -> list[ApiCall]:
        """Return no calls: no model is needed."""
        return []

    async def propose(
        self, groups: Sequence[QuestionGroup], checks: Mapping[str, Check], *_: object
    ) -> list[Reviewed]:
        """Return the questions with hints as candidates; `shortfall` explains why a hint is missing."""
        reviewed = [Reviewed(group) for group in groups]
        for item in reviewed:
            solution = str(item.group.metadata.get(self.field) or "").rpartition("</think>")[2].strip()
            for hint in [solution[: int(len(solution) * share)] for share in self.shares]:
                made = {
                    "model": "none",
                    "instruction": "hint",
                    "kind": "hint",
                    "unchecked": [*self.unchecked],
                }
                text = self.form.format(question=item.group.question, hint=hint)
                if len(hint) < 10 or not item.add(Candidate(text, made), checks):
                    item.shortfall = (
                        f"`{self.field}` has {len(solution)} characters, or a check refused a hint"
                    )
        return reviewed


@dataclass
class Stages(Curriculum):
    """Stages of a question: its rephrasings replace it in their order, each for `visits` visits.

    The last rephrasing stays.
    """

    visits: int

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:
        """Return the question in the wording of its current stage.

        The stage follows from the number of visits in `record`, which has at most the 64 newest visits.
        """
        stage = min(len(record.visits) // self.visits, len(group.rephrasings) - 1)
        return group._replace(
            question=[group.question, *group.rephrasings][stage + 1], rephrasings=(), kinds=()
        )
