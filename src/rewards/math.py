"""Mathematical equality of the final answer, in worker processes with bounded time and memory."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..types import Score
from .canonical import Reference, exact_value, normalize_answer, references_of
from .extraction import extract_answer
from .workers import BackgroundVerifier, Outcome, WorkerPool

_COMPARE = Path(__file__).with_name("equivalence.py")
_REMEMBERED = 1 << 16
"""Outcomes that are kept, since answers repeat under other prompts, in later batches and epochs."""
_Comparison = tuple[tuple[str, ...], str]
"""(references, normalised answer), which decide the outcome."""


class MathReward(BackgroundVerifier):
    r"""Correct when the final answer (`extract_answer`) equals a reference answer mathematically.

    Answers that are spelled alike (`normalize_answer`) are equal; integers and fractions are compared by value
    (`exact_value`); every other pair goes to math-verify in a pool of processes (`equivalence.compare`), once for each
    distinct answer of a question. An expression that exceeds a limit scores 0, and `Score.failure` says why: `timeout`,
    `memory`, `crash`, `length` (not compared), or the name of the exception that comparing raised.

    Workers start with the first comparison, each in 1 to 2 s. Pickling carries the settings only.

    Args:
        workers: Processes that compare.
        cpu_seconds: CPU time per comparison. The answers of MATH take 0.1 s at most.
        memory_bytes: Memory that one worker may reach.
        max_answer_length: Longest answer, in characters, that is compared. The longest references of MATH,
            Minerva and OlympiadBench have 159, 87 and 224.

    >>> with MathReward(workers=1) as reward:
    ...     reward.score_batch([r"\boxed{x+1}", r"so $\boxed{\frac{1}{2}}$"], [("1+x", "2"), "0.2"])
    [Score(correct=True, answer='x+1', failure=None, steps=()),
     Score(correct=False, answer='\\frac{1}{2}', failure=None, steps=())]
    """

    def __init__(
        self, workers: int = 2, cpu_seconds: float = 1.0, memory_bytes: int = 1 << 30, max_answer_length: int = 1000
    ) -> None:
        self.max_answer_length = max_answer_length
        self._limits = workers, cpu_seconds, memory_bytes
        self._pool = WorkerPool(_COMPARE, *self._limits)
        self._known: dict[_Comparison, Outcome] = {}

    def score_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Callable[[], list[Score]]:
        """Start comparing; returns a function that waits for the scores."""
        found: list[Score | _Comparison] = []
        written: dict[_Comparison, str] = {}
        for response, reference in zip(responses, references, strict=True):
            answer = extract_answer(response)
            score = self._without_workers(answer, references_of(reference))
            if answer is not None and not isinstance(score, Score):
                written.setdefault(score, answer)
            found.append(score)
        wait = self._pool.submit([(references, answer) for (references, _), answer in written.items()])

        def scores() -> list[Score]:
            outcomes = dict(zip(written, wait(), strict=True))
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known |= {made: outcome for made, outcome in outcomes.items() if outcome.failure != "crash"}
            return [s if isinstance(s, Score) else _score(s[1], outcomes[s]) for s in found]

        return scores

    def _without_workers(self, answer: str | None, references: tuple[str, ...]) -> Score | _Comparison:
        """The score, if spelling, value or an earlier comparison decides it; else the comparison to make."""
        if answer is None:
            return Score(False, None)
        if len(answer) > self.max_answer_length:
            return Score(False, None, "length")
        normal = normalize_answer(answer)
        spellings, values = _normalized(references)
        if normal in spellings:
            return Score(True, normal)
        value = None if "," in answer else exact_value(normal)  # `100, 200` may be a list
        if value is not None and None not in values:
            return Score(value in values, normal)
        comparison = (references, normal)
        known = self._known.get(comparison)
        return comparison if known is None else _score(normal, known)

    def close(self) -> None:
        """End the workers; comparisons under way are cancelled. The next one starts new workers."""
        self._pool.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return MathReward, (*self._limits, self.max_answer_length)


def _score(answer: str, outcome: Outcome) -> Score:
    return Score(bool(outcome.value), answer, outcome.failure)


@lru_cache(maxsize=4096)
def _normalized(references: tuple[str, ...]) -> tuple[frozenset[str], frozenset[Fraction | None]]:
    """The references' spellings and exact values."""
    spellings = frozenset(map(normalize_answer, references))
    return spellings, frozenset(map(exact_value, spellings))
