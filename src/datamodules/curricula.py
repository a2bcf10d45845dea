"""Which training questions are served, by how often the policy has solved them in the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from .memory import Record, Visit


@runtime_checkable
class Curriculum(Protocol):
    """Chooses among the training questions; by default all are served."""

    def chance(self, record: Record) -> float:  # noqa: ARG002
        """Probability that a question of which this is known is served when its turn comes."""
        return 1.0

    def observe(self, visits: Sequence[Visit]) -> None:
        """Called with what each rolled-out batch has shown, those that dynamic sampling throws away included."""

    def state_dict(self) -> dict[str, Any]:
        """State of a curriculum for a resumed run, besides the memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


class WithinBounds(Curriculum):
    """Serves the questions whose running success rate lies within bounds, and those that were never sampled.

    A question that has left the bounds is not sampled again in the run.

    Args:
        low: Smallest rate, of which 0 keeps the questions that were never solved.
        high: Largest rate; below 1 it leaves out what is solved.
        decay: Weight of the past in the running rate; see `Record.running_rate`.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0, decay: float = 0.5) -> None:
        if not 0 <= low <= high <= 1 or not 0 <= decay <= 1:
            raise ValueError(
                "Expected 0 ≤ low ≤ high ≤ 1 and decay between 0 and 1 in data.curriculum, but got "
                f"low={low}, high={high} and decay={decay}."
            )
        self.low, self.high, self.decay = low, high, decay

    def chance(self, record: Record) -> float:
        """1 within the bounds, else 0."""
        rate = record.running_rate(self.decay)
        return float(rate is None or self.low <= rate <= self.high)
