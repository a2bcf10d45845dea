"""The word problems of the embedded task, apart from their wording.

A problem starts from a number and applies operations (+ b, − b, double) from left to right. Every intermediate value
lies in 0..99.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

MAX_VALUE = 99
LARGEST_DOUBLED = 30
DOUBLING_SHARE = 0.4
"""Share of drawn problems in which one operation is replaced by a doubling; fewer of these are valid."""

PEOPLE = (
    ("Tom", "he", "him"), ("Ann", "she", "her"), ("Ben", "he", "him"), ("Mia", "she", "her"),
    ("Sam", "he", "him"), ("Eva", "she", "her"), ("Leo", "he", "him"), ("Zoe", "she", "her"),
)  # fmt: skip
THINGS = ("apples", "pens", "books", "coins", "cards", "eggs", "shells", "stamps")


class Operation(NamedTuple):
    """One step of a problem."""

    symbol: str
    """`+`, `-` or `*`."""
    operand: int
    """2..9; always 2 for `*`."""

    def __call__(self, value: int) -> int:
        """Apply the operation."""
        return int({"+": operator.add, "-": operator.sub, "*": operator.mul}[self.symbol](value, self.operand))

    def valid_for(self, value: int) -> bool:
        """Whether the result lies in 0..99, and what is doubled is no more than 30."""
        return 0 <= self(value) <= MAX_VALUE and (self.symbol != "*" or value <= LARGEST_DOUBLED)


@dataclass(frozen=True)
class Problem:
    """A problem, apart from its wording.

    >>> problem = Problem(23, (Operation("+", 4), Operation("*", 2)), person=0, thing=0)
    >>> problem.values, problem.answer, problem.expression
    ((23, 27, 54), 54, '((23 + 4) * 2)')
    """

    start: int
    operations: tuple[Operation, ...]
    person: int
    """Row of `PEOPLE`."""
    thing: int
    """Row of `THINGS`."""

    @property
    def values(self) -> tuple[int, ...]:
        """Start, intermediate values, answer."""
        return tuple(accumulate(self.operations, lambda value, apply: apply(value), initial=self.start))

    @property
    def answer(self) -> int:
        """The last value."""
        return self.values[-1]

    @property
    def expression(self) -> str:
        """The problem as a fully parenthesised arithmetic expression."""
        text = str(self.start)
        for symbol, operand in self.operations:
            text = f"({text} {symbol} {operand})"
        return text

    @property
    def valid(self) -> bool:
        """Whether every operation is valid for the value that it is applied to."""
        return all(apply.valid_for(value) for value, apply in zip(self.values, self.operations, strict=False))

    @property
    def key(self) -> str:
        """The arithmetic alone."""
        return self.expression

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer as text."""
        return (str(self.answer),)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The number of operations, and the expression."""
        return {"num_operations": len(self.operations), "expression": self.expression}


def sample_problem(rng: random.Random, num_operations: Sequence[int], start: tuple[int, int]) -> Problem:
    """Draw a valid problem; `start` is the inclusive range of its first number."""
    while True:
        operations = [Operation(rng.choice("+-"), rng.randint(2, 9)) for _ in range(rng.choice(num_operations))]
        if rng.random() < DOUBLING_SHARE:
            operations[rng.randrange(len(operations))] = Operation("*", 2)
        person, thing = rng.randrange(len(PEOPLE)), rng.randrange(len(THINGS))
        problem = Problem(rng.randint(*start), tuple(operations), person, thing)
        if problem.valid:
            return problem
