"""The embedded task: word problems whose difficulty depends on how they are phrased.

Small enough that a policy of half a million parameters learns it on one CPU core in minutes, and built so
that what TA-GRPO studies shows up. Supervised training (`supervised_example`) sees the families of phrasing
with very unequal frequency, so that a starter policy often fails in the rare ones; a rephrasing into a common
family turns a hopeless question into one that it can solve.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...types import QuestionGroup
from .word_problems import FAMILIES, Problem, phrase, sample_problem, solution


class Regime(NamedTuple):
    """Which families tell the original questions, and which the rephrasings."""

    originals: tuple[str, ...]
    rephrasings: tuple[str, ...]


_TRAINED = tuple(name for name, family in FAMILIES.items() if family.share > 0)

REGIMES: Mapping[str, Regime] = {
    "mixed": Regime(originals=_TRAINED, rephrasings=_TRAINED),
    "hard": Regime(
        originals=("passive", "reversed", "start_last"),
        rephrasings=("narrative", "question_first", "list", "symbol"),
    ),
}


@dataclass(frozen=True)
class Split:
    """What distinguishes the problems of one split.

    Problems are hashed into ten buckets by their arithmetic (`Problem.bucket`), and splits own different
    buckets: whatever the seed and the size, no problem of one is found in another.
    """

    buckets: range
    num_operations: tuple[int, ...] = (2, 3)
    start: tuple[int, int] = (2, 30)
    originals: tuple[str, ...] | None = None
    """Families of the original questions; None leaves them to the regime."""


SPLITS: Mapping[str, Split] = {
    "train": Split(buckets=range(6)),
    "validation": Split(buckets=range(6, 7)),
    "test_id": Split(buckets=range(7, 8), num_operations=(3,)),
    "test_phrasing": Split(buckets=range(8, 9), num_operations=(3,), originals=("hybrid",)),
    "test_size": Split(buckets=range(9, 10), num_operations=(3,), start=(31, 60)),
}


class ArithmeticSource:
    """Generated word problems with rephrasings; a `Source`.

    `metadata` of a question holds `split`, `regime`, `family` (of the original), `rephrasing_families`,
    `num_operations` and `expression`, which evaluates to the answer. Families of originals take turns: each
    has an equal share. A smaller `size` gives the first questions of a larger one.

    Args:
        split: `train` and `validation` share one distribution. The tests have three operations in every
            problem: `test_id` in the regime's phrasings, `test_phrasing` in a family that is never trained,
            `test_size` with starting numbers beyond those of training (31..60 against 2..30).
        regime: `mixed` tells originals and rephrasings in the six trained families. `hard` tells originals in
            two rare families and one never trained, and rephrasings in the four others.
        size: number of questions, all of different arithmetic.
        num_rephrasings: N, each in a family of its own.
        seed: chooses the problems within the split's own part of all problems.

    Raises:
        ValueError: an unknown split or regime, or more rephrasings than the regime has families for.

    >>> group = ArithmeticSource(split="train", size=1, num_rephrasings=1).load()[0]
    >>> group.question
    >>> group.rephrasings
    >>> group.answer, group.metadata["expression"]
    """

    def __init__(
        self,
        split: str = "train",
        regime: str = "mixed",
        size: int = 512,
        num_rephrasings: int = 3,
        seed: int = 0,
    ) -> None:
        for name, value, known in (("split", split, SPLITS), ("regime", regime, REGIMES)):
            if value not in known:
                raise ValueError(f"Expected `{name}` to be one of {', '.join(known)} but got {value!r}.")
        self.split, self.regime, self.size, self.num_rephrasings, self.seed = (
            split,
            regime,
            size,
            num_rephrasings,
            seed,
        )
        self.originals = SPLITS[split].originals or REGIMES[regime].originals
        fewest = min(len(self._other_families(family)) for family in self.originals)
        if num_rephrasings > fewest:
            raise ValueError(
                f"Expected `num_rephrasings` to be at most {fewest}, the number of other families in "
                f"the {regime} regime, but got {num_rephrasings}."
            )

    def load(self) -> list[QuestionGroup]:
        """Generate the questions."""
        problems = self._problems()
        return [self._group(index, next(problems)) for index in range(self.size)]

    def _problems(self) -> Iterator[Problem]:
        """Yield problems of the split without end, no two with the same arithmetic."""
        split, rng, seen = SPLITS[self.split], random.Random(f"{self.split}/{self.seed}"), set()
        while True:
            problem = sample_problem(rng, split.num_operations, split.start)
            if problem.bucket in split.buckets and problem.expression not in seen:
                seen.add(problem.expression)
                yield problem

    def _group(self, index: int, problem: Problem) -> QuestionGroup:
        rng = random.Random(f"{self.split}/{self.regime}/{self.seed}/{index}")
        original = self.originals[index % len(self.originals)]
        families = [original, *rng.sample(self._other_families(original), self.num_rephrasings)]
        question, *rephrasings = [phrase(problem, FAMILIES[family], rng) for family in families]
        return QuestionGroup(
            id=f"{self.split}-{self.regime}-{self.seed}-{index:05d}",
            question=question,
            rephrasings=tuple(rephrasings),
            answer=(str(problem.answer),),
            metadata={
                "split": self.split,
                "regime": self.regime,
                "family": original,
                "rephrasing_families": tuple(families[1:]),
                "num_operations": len(problem.operations),
                "expression": problem.expression,
            },
        )

    def _other_families(self, original: str) -> Sequence[str]:
        return [family for family in REGIMES[self.regime].rephrasings if family != original]


class SupervisedExample(NamedTuple):
    """A question with a written solution."""

    question: str
    response: str
    family: str


def supervised_example(rng: random.Random) -> SupervisedExample:
    """Draw a question and a solution for supervised training, families by their `share`.

    Its problems come from the buckets of the training split: none is in another split.
    """
    split = SPLITS["train"]
    family = rng.choices(list(FAMILIES), [family.share for family in FAMILIES.values()])[0]
    while (problem := sample_problem(rng, split.num_operations, split.start)).bucket not in split.buckets:
        pass
    return SupervisedExample(
        phrase(problem, FAMILIES[family], rng), solution(problem, FAMILIES[family], rng), family
    )
