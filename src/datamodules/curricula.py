"""Which training questions are served, and with which rephrasings, by how often the run has solved them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..types import QuestionGroup
from .memory import Record, Visit


@runtime_checkable
class Curriculum(Protocol):
    """Chooses among the training questions and their rephrasings; by default all are served."""

    def chance(self, record: Record) -> float:  # noqa: ARG002
        """Probability that a question of which this is known is served when its turn comes."""
        return 1.0

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:  # noqa: ARG002
        """The question as it is sampled, of which this is known: with all of its rephrasings, or with some."""
        return group

    def observe(self, visits: Sequence[Visit]) -> None:
        """Called with what each rolled-out batch has shown, those that dynamic sampling throws away included."""

    def state_dict(self) -> dict[str, Any]:
        """State of a curriculum for a resumed run, besides the memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
