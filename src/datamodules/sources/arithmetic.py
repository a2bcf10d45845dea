"""The embedded task: word problems whose difficulty depends on how they are phrased.

Supervised training sees the families of phrasing with very unequal frequency, so that a starter policy often fails in
the rare ones; a rephrasing into a common family turns a hopeless question into one that it can solve.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .generated import GeneratedSource, Split
from .phrasings import FAMILIES, phrase
from .word_problems import Problem, sample_problem

_TRAINED = ("narrative", "question_first", "list", "passive", "reversed", "symbol")
_RARE = ("question_first", "passive", "reversed")
_HARD = ("passive", "reversed", "start_last")
_COMMON = ("narrative", "question_first", "list", "symbol")

REPHRASINGS: Mapping[str, Sequence[str]] = {"mixed": _TRAINED, "hard": _COMMON}
"""regime → families that rephrasings are told in."""


@dataclass(frozen=True, kw_only=True)
class ArithmeticSplit(Split):
    """A split whose problems have sizes of their own."""

    num_operations: Sequence[int] = (3,)
    start: tuple[int, int] = (2, 30)
    """Inclusive range of the first number."""


_TRAIN_ORIGINALS = {"mixed": _TRAINED, "hard": _HARD}
_TEST_ORIGINALS = {"mixed": _RARE, "hard": _HARD}

SPLITS: Mapping[str, ArithmeticSplit] = {
    "train": ArithmeticSplit(buckets=range(6), originals=_TRAIN_ORIGINALS, num_operations=(2, 3)),
    "validation": ArithmeticSplit(buckets=range(6, 7), originals=_TRAIN_ORIGINALS, num_operations=(2, 3)),
    "test_id": ArithmeticSplit(buckets=range(7, 8), originals=_TEST_ORIGINALS),
    "test_phrasing": ArithmeticSplit(buckets=range(8, 9), originals={"mixed": ("hybrid",), "hard": ("hybrid",)}),
    "test_size": ArithmeticSplit(buckets=range(9, 10), originals=_TEST_ORIGINALS, start=(31, 60)),
}


class ArithmeticSource(GeneratedSource[Problem]):
    """Generated word problems with rephrasings.

    Facts of a problem are `num_operations` and `expression`, which evaluates to the answer.

    `train` and `validation` share one distribution. The tests are harder, so that Pass@k has room to rise up to k = 32:
    their problems all have three operations. `test_id` is told in rare families of training, `test_phrasing` in a
    family that is never trained, and `test_size` in the families of `test_id`, with larger starting numbers than in
    training (31..60 instead of 2..30). The regime `mixed` tells originals and rephrasings in the six trained families.
    `hard` tells originals in two rare families and one that is never trained, and rephrasings in the four others.

    >>> group = ArithmeticSource("train", num_rephrasings=1).load()[3]
    >>> group.metadata["family"], group.question
    ('passive', '11 coins are owned by Leo. 5 are given to him. 8 are given to him. Count?')
    >>> group.rephrasings, group.answer
    (('Leo has 11 coins. He buys 5. He buys 8. How many?',), ('24',))
    >>> group.metadata["expression"]
    '((11 + 5) + 8)'
    """

    splits = SPLITS
    rephrasings = REPHRASINGS

    def sample(self, rng: random.Random) -> Problem:
        """Draw a problem of the split's sizes."""
        return sample_problem(rng, SPLITS[self.split].num_operations, SPLITS[self.split].start)

    def phrase(self, problem: Problem, family: str, rng: random.Random) -> str:
        """Tell a problem; `rng` picks among the family's synonyms."""
        return phrase(problem, FAMILIES[family], rng)
