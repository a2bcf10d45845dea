"""Curricula: which training questions to serve, with which rephrasings, given how often the run has solved them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..types import QuestionGroup
from .memory import Record, Visit


@runtime_checkable
class Curriculum(Protocol):
    """Chooses among the training questions and their rephrasings; by default all are served."""

    def chance(self, record: Record) -> float:  # noqa: ARG002
        """Probability that a question with this record is served when its turn comes."""
        return 1.0

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:  # noqa: ARG002
        """The question with the rephrasings that are sampled; by default all."""
        return group

    def observe(self, visits: Sequence[Visit]) -> None:
        """Learn from the visits of a sampled batch; called for batches that dynamic sampling drops, too."""

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run, besides the memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
