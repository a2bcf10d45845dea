"""An embedded task: make a target from all of the given numbers. Many expressions are correct.

Modelled on `countdown` of reasoning-gym, without its dependencies and without its verdict, which evaluates what a model
wrote. Questions are asked in a few words instead of eighty, in several phrasings, and no two splits share a problem.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..generated import Family, GeneratedSource, bucket, splits_of
from .reward import OPERATORS, operate, solutions

LARGEST_TARGET, SMALLEST = 99, 2
LARGEST = {"usual": 15, "test_size": 20}
"""Numbers are 2..15; in the split `test_size` at least one is 16..20."""
COUNTS = {"easy": 3, "medium": 4, "hard": 4}
"""regime → numbers of a problem."""
FEW_ANSWERS = 16
"""A problem of `hard` has at most so many; those of four numbers have thirty on average."""

FAMILIES: Mapping[str, Family] = {
    "make": Family(layout="Make {target} from {numbers}.", share=0.40),
    "symbol": Family(layout="{numbers} = {target}", link=" and ", share=0.25),
    "list": Family(layout="numbers: {numbers}; total: {target}", link="; ", share=0.215),
    "question": Family(layout="How does one get {target} with the numbers {numbers}?", link=" and ", share=0.12),
    # The target stands among the numbers.
    "cards": Family(layout="Ann holds {first}, needs {target}, and also holds {others}.", link=" and ", share=0.01),
    "result": Family(layout="{others} are cards, {target} is the result, {first} is a card.", share=0.005),
    "hybrid": Family(layout="{numbers}; Ann needs the result {target}.", link=" and "),
}
COMMON = ("make", "symbol", "list", "question")
RARE = ("cards", "result")
TRAINED = COMMON + RARE
REPHRASINGS = {"easy": TRAINED, "medium": TRAINED, "hard": COMMON}
"""regime → families that rephrasings are told in."""


@dataclass(frozen=True)
class Problem:
    """A problem, apart from its wording.

    >>> problem = Problem((3, 4, 9), 24, "( 9 - 3 ) * 4")
    >>> problem.key, problem.answers
    ('3 4 9 = 24', ('( 9 - 3 ) * 4',))
    """

    numbers: tuple[int, ...]
    """Ascending."""
    target: int
    expression: str
    """One of the answers."""

    @property
    def key(self) -> str:
        """The numbers and the target."""
        return f"{' '.join(map(str, self.numbers))} = {self.target}"

    @property
    def answers(self) -> tuple[str, ...]:
        """One expression; `CountdownReward` reads the numbers and the target from it."""
        return (self.expression,)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The numbers and the target."""
        return {"numbers": self.numbers, "target": self.target}


def own_problem(rng: random.Random, count: int, largest: int) -> Problem | None:
    """Draw numbers, and combine them two at a time by random operations until one value is left: the target.

    None where an operation has no result by the rules, or the target is too large.
    """
    numbers = [rng.randint(SMALLEST, largest) for _ in range(count)]
    made = [(number, str(number)) for number in numbers]
    while len(made) > 1:
        rng.shuffle(made)
        (left, one), (right, other) = made.pop(), made.pop()
        operator = rng.choice(OPERATORS)
        value = operate(left, operator, right)
        if value is None:
            return None
        made.append((value, f"( {one} {operator} {other} )"))
    target, expression = made[0]
    return Problem(tuple(sorted(numbers)), target, expression[2:-2]) if target <= LARGEST_TARGET else None


class CountdownSource(GeneratedSource[Problem]):
    """Generated countdown problems: three or four numbers 2..15, all to be used, and a target of at most 99.

    Regimes differ in how much the policy of `tagrpo.lab.warmstart` can solve, see docs/tasks.md: `easy` has three
    numbers and `medium` four, told in the trained families. `hard` has four that can be combined in few ways, and tells
    originals in two families that were rarely trained, and rephrasings in common ones. The tests are `test_id`, of the
    same kind as training; `test_phrasing`, in a family never trained; and `test_size`, where at least one number is
    16..20.

    >>> group = CountdownSource("train", "easy", num_rephrasings=1).load()[0]
    >>> group.question, group.rephrasings, group.answer
    ('Make 68 from 11, 6, 4.', ('numbers: 4; 11; 6; total: 68',), ('4 * ( 11 + 6 )',))
    """

    splits = splits_of(easy=TRAINED, medium=TRAINED, hard=RARE, unseen=("hybrid",))
    rephrasings = REPHRASINGS
    largest_size = 600

    def sample(self, rng: random.Random) -> Problem:
        """Draw a problem with as many numbers, and in `hard` as few answers, as the regime has."""
        while True:
            problem = sample_problem(rng, COUNTS[self.regime], large=self.split == "test_size")
            # Answers are counted only where the problem is of use: that takes a millisecond.
            kept = self.regime == "hard" and bucket(problem) in self.splits[self.split].buckets
            if not kept or len(solutions(problem.numbers, problem.target)) <= FEW_ANSWERS:
                return problem

    def phrase(self, problem: Problem, family: str, rng: random.Random) -> str:
        """Tell a problem, its numbers in any order."""
        return phrase(problem, family, rng)


def sample_problem(rng: random.Random, count: int, *, large: bool = False) -> Problem:
    """Draw a problem of `count` numbers, with at least one of 16..20 where it is to be `large`."""
    while True:
        problem = own_problem(rng, count, LARGEST["test_size" if large else "usual"])
        if problem is not None and (not large or problem.numbers[-1] > LARGEST["usual"]):
            return problem


def phrase(problem: Problem, family: str, rng: random.Random) -> str:
    """Tell a problem, its numbers in any order.

    >>> phrase(Problem((3, 4, 9), 24, "( 9 - 3 ) * 4"), "make", random.Random(0))
    'Make 24 from 4, 9, 3.'
    """
    numbers = list(map(str, rng.sample(problem.numbers, len(problem.numbers))))
    return FAMILIES[family].tell(numbers=numbers, first=numbers[0], others=numbers[1:], target=str(problem.target))
