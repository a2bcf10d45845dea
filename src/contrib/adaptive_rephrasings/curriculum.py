"""More rephrasings of questions whose original is unlikely to give a gradient. This rule is ours."""

import math

from ...datamodules.memory import Curriculum, Record
from ...types import QuestionGroup


def running_rate(record: Record, decay: float) -> float | None:
    """Return the running success rate of the original question; None if the original was never sampled.

    The running rate starts at the success rate of the first visit. Each later visit changes the running rate
    to decay · (running rate) + (1 − decay) · (success rate of the visit). Visits in which the original was
    not sampled do not count.
    """
    running = None
    for asked, right in ((visit.samples[0], visit.correct[0]) for visit in record.visits if visit.samples[0]):
        running = decay * (right / asked if running is None else running) + (1 - decay) * (right / asked)
    return running


class AdaptiveRephrasings(Curriculum):
    """Curriculum with more rephrasings if the responses to the original are probably all right or all wrong.

    N = low + round((high − low) · (p^G + (1 − p)^G)), halves rounded up: N rises from `low` to `high` with
    the probability that all G verdicts on the original are equal. p is the `running_rate` of the original;
    responses to its rephrasings do not count. A question that was never seen gets `high`.

    With G = 8: p = 1 or 0 → `high`; p = 7/8 → a third of the way (0.344); p = 1/2 → `low`.

    Args:
        low: Fewest rephrasings.
        high: Most rephrasings; a question that has fewer uses all of them. None uses all rephrasings.
        samples: G, responses to the original in each batch.
        decay: Weight of the past in the running rate: 0 uses only the last batch, 1 only the first batch.
    """

    def __init__(self, low: int = 0, high: int | None = 3, samples: int = 8, decay: float = 0.5) -> None:
        if not 0 <= low <= (low if high is None else high) or samples < 1 or not 0 <= decay <= 1:
            raise ValueError(
                "Expected 0 ≤ low ≤ high, samples ≥ 1 and decay between 0 and 1 in data.curriculum, but got "
                f"low={low}, high={high}, samples={samples} and decay={decay}."
            )
        self.low, self.high, self.samples, self.decay = low, high, samples, decay

    def count(self, record: Record, available: int) -> int:
        """Return how many of the `available` rephrasings of a question to sample."""
        rate = running_rate(record, self.decay)
        chance = 1.0 if rate is None else rate**self.samples + (1 - rate) ** self.samples
        high = available if self.high is None else self.high
        return min(self.low + math.floor((high - self.low) * chance + 0.5), available)

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:
        """Return the question with the first `count` of its rephrasings."""
        return group.select_rephrasings(range(self.count(record, len(group.rephrasings))))
