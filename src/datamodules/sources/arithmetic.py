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

from ...types import QuestionGroup
from .generated import SupervisedExample
from .phrasings import FAMILIES, phrase, solution
from .word_problems import Problem, sample_problem

LARGE_START_SHARE = 0.05
LARGEST_SIZE = 5000
"""Questions of one split; the smallest has about twice as many different problems."""

_TRAINED = ("narrative", "question_first", "list", "passive", "reversed", "symbol")
_RARE = ("question_first", "passive", "reversed")
_HARD = ("passive", "reversed", "start_last")
_COMMON = ("narrative", "question_first", "list", "symbol")

REPHRASINGS: Mapping[str, Sequence[str]] = {"mixed": _TRAINED, "hard": _COMMON}
"""regime → families that rephrasings are told in."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """What distinguishes the problems of one split, and the phrasing of their originals.

    Problems are hashed into ten buckets by their arithmetic (`Problem.bucket`), and splits own different
    buckets: whatever the seed and the size, no problem of one is found in another.
    """

    buckets: range
    originals: Mapping[str, Sequence[str]]
    """regime → families that original questions are told in."""
    num_operations: Sequence[int] = (3,)
    start: tuple[int, int] = (2, 30)
    """Inclusive range of the first number."""


_TEST_ORIGINALS = {"mixed": _RARE, "hard": _HARD}

SPLITS: Mapping[str, Split] = {
    "train": Split(buckets=range(6), originals={"mixed": _TRAINED, "hard": _HARD}, num_operations=(2, 3)),
    "validation": Split(buckets=range(6, 7), originals={"mixed": _TRAINED, "hard": _HARD}, num_operations=(2, 3)),
    "test_id": Split(buckets=range(7, 8), originals=_TEST_ORIGINALS),
    "test_phrasing": Split(buckets=range(8, 9), originals={"mixed": ("hybrid",), "hard": ("hybrid",)}),
    "test_size": Split(buckets=range(9, 10), originals=_TEST_ORIGINALS, start=(31, 60)),
}


class ArithmeticSource:
    """Generated word problems with rephrasings; a `Source`.

    `metadata` of a question holds `split`, `regime`, `family` (of the original), `rephrasing_families`,
    `num_operations` and `expression`, which evaluates to the answer. Families of originals take turns: each
    has an equal share. A smaller `size` gives the first questions of a larger one.

    Args:
        split: `train` and `validation` share one distribution. The tests are harder, so that Pass@k has room
            to rise up to k = 32. They have three operations in every problem: `test_id` in rare families of
            training, `test_phrasing` in a family that is never trained, `test_size` in the families of
            `test_id` with larger starting numbers than those of training (31..60 against 2..30).
        regime: `mixed` tells originals and rephrasings in the six trained families. `hard` tells originals in
            two rare families and one never trained, and rephrasings in the four others.
        size: number of questions, all of different arithmetic; at most 5000.
        num_rephrasings: N, each in a family of its own; None is as many as the regime has other families.
        seed: chooses the problems within the split's own part of all problems.

    Raises:
        ValueError: an unknown split or regime, more than 5000 questions, or more rephrasings than the regime
            has other families.

    >>> group = ArithmeticSource("train", num_rephrasings=1).load()[3]
    >>> group.metadata["family"], group.question
    ('passive', '11 coins are owned by Leo. 5 are given to him. 8 are given to him. Count?')
    >>> group.rephrasings, group.answer
    (('Leo has 11 coins. He buys 5. He buys 8. How many?',), ('24',))
    >>> group.metadata["expression"]
    '((11 + 5) + 8)'
    """

    def __init__(
        self,
        split: str = "train",
        regime: str = "mixed",
        size: int = 512,
        num_rephrasings: int | None = 3,
        seed: int = 0,
    ) -> None:
        for name, value, known in (("split", split, SPLITS), ("regime", regime, REPHRASINGS)):
            if value not in known:
                raise ValueError(f"Expected `{name}` to be one of {', '.join(known)} but got {value!r}.")
        if size > LARGEST_SIZE:
            raise ValueError(f"Expected `size` to be at most {LARGEST_SIZE} but got {size}.")
        self.split, self.regime, self.seed = split, regime, seed
        self.size = size
        self.originals = SPLITS[split].originals[regime]
        fewest = min(len(self._other_families(family)) for family in self.originals)
        self.num_rephrasings = fewest if num_rephrasings is None else num_rephrasings
        if self.num_rephrasings > fewest:
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
        return [family for family in REPHRASINGS[self.regime] if family != original]


def supervised_example(rng: random.Random) -> SupervisedExample:
    """Draw a question and a solution for supervised training, families by their `share`.

    One in twenty starts from one of the large numbers that are otherwise left to `test_size`: a policy that
    has never read such a number can't even copy it. All problems come from the buckets of the training split.
    """
    split = SPLITS["train"]
    start = SPLITS["test_size"].start if rng.random() < LARGE_START_SHARE else split.start
    name = rng.choices(list(FAMILIES), [family.share for family in FAMILIES.values()])[0]
    family = FAMILIES[name]
    while (problem := sample_problem(rng, split.num_operations, start)).bucket not in split.buckets:
        pass
    return SupervisedExample(phrase(problem, family, rng), solution(problem, family, rng), name)
