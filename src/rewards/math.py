"""Mathematical equality of the final answer, in worker processes with bounded time and memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..types import Score
from .extraction import Reference, exact_value, extract_answer, normalize_answer, references_of
from .workers import Outcome, WorkerPool, combined

_JUDGE = Path(__file__).with_name("equivalence.py")
_REMEMBERED = 1 << 16
"""Verdicts kept, for answers that come back in later batches and epochs."""

_Comparison = tuple[tuple[str, ...], str]
"""(references, normalised answer): what a verdict depends on."""


class MathReward:
    r"""Correct when the final answer equals a reference answer mathematically.

    The final answer is the last `\boxed{…}`, else what follows `####` or "answer is" (`extract_answer`).
    Answers that are spelled alike (`normalize_answer`) are equal; integers and fractions are compared by
    value (`exact_value`); every other pair goes to math-verify in a pool of processes (`equivalence.judge`),
    once for each distinct answer of a question, however many responses give it. An expression that hangs or
    explodes costs its own limit and nothing else: its responses score 0 under the name of the failure, and
    `failures` counts them.

    | failure | meaning |
    |---|---|
    | `timeout` | comparing took more than `cpu_seconds` |
    | `memory` | comparing took more than `memory_bytes` |
    | `crash` | comparing killed its process |
    | `length` | the final answer is longer than `max_answer_length` characters; it is not looked at |
    | an exception's name | comparing raised it |

    Workers start with the first comparison that needs them, each in 1 to 2 s, and end with `close`, with the
    object or with the interpreter. Pickling carries the settings only, so every rank has workers of its own.

    Args:
        workers: number of judging processes.
        cpu_seconds: CPU time per comparison. The answers of MATH take 0.1 s at most.
        memory_bytes: memory that one worker may reach.
        max_answer_length: longest answer, in characters, that is compared. The longest references of MATH,
            Minerva and OlympiadBench have 159, 87 and 224.

    Attributes:
        failures: Counter, name → responses without a verdict, over the lifetime of this object.

    >>> with MathReward(workers=1) as reward:
    ...     reward(r"Half of it: $\boxed{\frac{1}{2}}$.", "0.5")
    ...     reward.judge_batch([r"\boxed{x+1}", r"\boxed{x}"], [("1+x", "2"), "1+x"])
    Score(correct=True, answer='\\frac{1}{2}', failure=None)
    [Score(correct=True, answer='x+1', failure=None), Score(correct=False, answer='x', failure=None)]
    """

    def __init__(
        self,
        workers: int = 2,
        cpu_seconds: float = 1.0,
        memory_bytes: int = 1 << 30,
        max_answer_length: int = 1000,
    ) -> None:
        self.failures: Counter[str] = Counter()
        self._settings: dict[str, Any] = {
            "workers": workers,
            "cpu_seconds": cpu_seconds,
            "memory_bytes": memory_bytes,
            "max_answer_length": max_answer_length,
        }
        self._max_answer_length = max_answer_length
        self._pool = WorkerPool(_JUDGE, workers, cpu_seconds, memory_bytes)
        self._verdicts: dict[_Comparison, Outcome] = {}
        self._lock = threading.Lock()  # guards failures and _verdicts, which the pool's threads update

    def __call__(self, response: str, reference: Reference) -> Score:
        """Judge one response against its reference answers."""
        return self.judge_batch([response], [reference])[0]

    def judge_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Judge each response against the references in the same place."""
        return self.judge_async(responses, references).result()

    def judge_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Future[list[Score]]:
        """`judge_batch` that returns at once, so that workers judge while the engine still samples."""
        judged: list[Score | _Comparison] = []
        written: dict[_Comparison, str] = {}
        for response, reference in zip(responses, references, strict=True):
            answer = extract_answer(response)
            judgement = self._without_workers(answer, references_of(reference))
            if not isinstance(judgement, Score):
                assert answer is not None
                written.setdefault(judgement, answer)
            judged.append(judgement)
        comparisons = self._pool.submit([(references, answer) for (references, _), answer in written.items()])
        return combined(
            [comparisons], lambda results: self._scores(judged, dict(zip(written, results[0], strict=True)))
        )

    def _without_workers(self, answer: str | None, references: tuple[str, ...]) -> Score | _Comparison:
        """The score where spelling, value or an earlier verdict settle it, else the comparison to make."""
        if answer is None:
            return Score(False, None)
        if len(answer) > self._max_answer_length:
            return Score(False, None, "length")
        normal = normalize_answer(answer)
        spellings, values = _normalized(references)
        if normal in spellings:
            return Score(True, normal)
        value = exact_value(normal)
        if value is not None and None not in values:
            return Score(value in values, normal)
        comparison = (references, normal)
        known = self._verdicts.get(comparison)
        return comparison if known is None else _score(normal, known)

    def _scores(self, judged: Sequence[Score | _Comparison], outcomes: dict[_Comparison, Outcome]) -> list[Score]:
        scores = [j if isinstance(j, Score) else _score(j[1], outcomes[j]) for j in judged]
        with self._lock:
            self.failures.update(score.failure for score in scores if score.failure)
            self._verdicts.update((c, o) for c, o in outcomes.items() if o.failure != "crash")
            while len(self._verdicts) > _REMEMBERED:
                del self._verdicts[next(iter(self._verdicts))]
        return scores

    def close(self) -> None:
        """End the workers; judgements under way are cancelled. The next comparison starts new ones."""
        self._pool.close()

    def __enter__(self) -> MathReward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_settings, (self._settings,)


def _from_settings(settings: dict[str, Any]) -> MathReward:
    return MathReward(**settings)


def _score(answer: str, outcome: Outcome) -> Score:
    return Score(bool(outcome.value), answer, outcome.failure)


@lru_cache(maxsize=4096)
def _normalized(references: tuple[str, ...]) -> tuple[frozenset[str], frozenset[Fraction | None]]:
    """The references' spellings and exact values."""
    spellings = frozenset(map(normalize_answer, references))
    return spellings, frozenset(map(exact_value, spellings))
