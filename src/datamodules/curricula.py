"""Which training questions are served, and when, by how often the policy has solved them.

A curriculum gives each question a chance to be served when its turn comes, and a place in the order of an epoch. Both
follow from the run's `QuestionMemory`; a question that was never sampled is always served. Questions that are left out
make an epoch shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from .memory import Record, Visit


@runtime_checkable
class Curriculum(Protocol):
    """Chooses among the training questions. Who derives from it inherits that all are served, in the usual order."""

    def chance(self, record: Record) -> float:  # noqa: ARG002
        """Probability, from 0 to 1, that a question of which this is known is served when its turn comes."""
        return 1.0

    def place(self, record: Record) -> float:  # noqa: ARG002
        """Questions are served in ascending order of it, equal ones as shuffled; asked at the start of an epoch."""
        return 0.0

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

    Raises:
        ValueError: an option is out of its range.

    >>> curriculum = WithinBounds(low=0.25, high=0.75)
    >>> [curriculum.chance(Record(visits=[Visit((4,), (right,))])) for right in range(5)], curriculum.chance(Record())
    ([0.0, 1.0, 1.0, 1.0, 0.0], 1.0)
    """

    def __init__(self, low: float = 0.0, high: float = 1.0, decay: float = 0.5) -> None:
        if not 0 <= low <= high <= 1 or not 0 <= decay <= 1:
            raise ValueError(
                "Expected 0 ≤ low ≤ high ≤ 1 and decay between 0 and 1 in data.curriculum, but got "
                f"low={low}, high={high} and decay={decay}."
            )
        self.low = low
        self.high = high
        self.decay = decay

    def chance(self, record: Record) -> float:
        """1 within the bounds, else 0."""
        rate = record.running_rate(self.decay)
        return float(rate is None or self.low <= rate <= self.high)


class NearRate(Curriculum):
    """Serves questions the more often, the nearer their running success rate p is to a target.

    The chance is max(floor, exp(−(p − target)² / 2 spread²)): 1 at the target, and never less than `floor`, so that
    every question is met again and its rate stays up to date.

    Args:
        target: The rate that is served most.
        spread: Standard deviation of the weight.
        floor: Least chance.
        decay: Weight of the past in the running rate; see `Record.running_rate`.

    Raises:
        ValueError: an option is out of its range.

    >>> curriculum = NearRate(target=0.5, spread=0.25, floor=0.2)
    >>> [round(curriculum.chance(Record(visits=[Visit((4,), (right,))])), 3) for right in range(5)]  # e^−2, e^−½, 1, …
    [0.2, 0.607, 1.0, 0.607, 0.2]
    """

    def __init__(self, target: float = 0.5, spread: float = 0.25, floor: float = 0.05, decay: float = 0.5) -> None:
        if not 0 <= target <= 1 or spread <= 0 or not 0 < floor <= 1 or not 0 <= decay <= 1:
            raise ValueError(
                "Expected 0 ≤ target ≤ 1, spread > 0, 0 < floor ≤ 1 and 0 ≤ decay ≤ 1 in data.curriculum, but got "
                f"target={target}, spread={spread}, floor={floor} and decay={decay}."
            )
        self.target = target
        self.spread = spread
        self.floor = floor
        self.decay = decay

    def chance(self, record: Record) -> float:
        """A normal weight of the distance to the target, at least `floor`."""
        rate = record.running_rate(self.decay)
        return 1.0 if rate is None else max(self.floor, math.exp(-(((rate - self.target) / self.spread) ** 2) / 2))


class ByDifficulty(Curriculum):
    """Serves the questions of an epoch from easy to hard, or from hard to easy, by their running success rates.

    Those that were never sampled count as a rate of one half; in the first epoch all do, so that it is shuffled.

    Args:
        hardest_first: From hard to easy.
        decay: Weight of the past in the running rate; see `Record.running_rate`.

    Raises:
        ValueError: an option is out of its range.

    >>> curriculum = ByDifficulty()
    >>> sorted([4, 0, 2], key=lambda right: curriculum.place(Record(visits=[Visit((4,), (right,))])))
    [4, 2, 0]
    """

    def __init__(self, hardest_first: bool = False, decay: float = 0.5) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"Expected decay between 0 and 1 in data.curriculum, but got {decay}.")
        self.hardest_first = hardest_first
        self.decay = decay

    def place(self, record: Record) -> float:
        """The success rate, with its sign turned around for easy ones first."""
        rate = record.running_rate(self.decay)
        rate = 0.5 if rate is None else rate
        return rate if self.hardest_first else -rate
