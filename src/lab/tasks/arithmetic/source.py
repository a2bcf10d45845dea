"""Embedded task: word problems whose difficulty depends on their phrasing.

Families of phrasing have very unequal frequencies in supervised training, so that a starter policy often
fails in rare families. A rephrasing into a common family makes a hopeless question solvable. A problem starts
from a number and applies operations (+ b, − b, double) from left to right. Every value lies in 0..99.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, permutations
from typing import NamedTuple

from ..generated import REFORMULATIONS, Asked, GeneratedSource, Split, choices

MAX_VALUE, LARGEST_DOUBLED = 99, 30
DOUBLING_SHARE = 0.4
"""Share of drawn problems in which a doubling replaces an operation; such problems are valid less often."""
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

PEOPLE = (
    ("Tom", "he", "him"), ("Ann", "she", "her"), ("Ben", "he", "him"), ("Mia", "she", "her"),
    ("Sam", "he", "him"), ("Eva", "she", "her"), ("Leo", "he", "him"), ("Zoe", "she", "her"),
)  # fmt: skip
THINGS = ("apples", "pens", "books", "coins", "cards", "eggs", "shells", "stamps")


class Operation(NamedTuple):
    """Arithmetic operation: one step of a problem."""

    symbol: str  # +, - or *
    operand: int  # 2..9; always 2 for *

    def __call__(self, value: int) -> int:
        """Return the result of the operation on `value`."""
        return int(OPERATORS[self.symbol](value, self.operand))

    def valid_for(self, value: int) -> bool:
        """Return whether the result is in 0..99 and, for a doubling, `value` is at most 30."""
        return 0 <= self(value) <= MAX_VALUE and (self.symbol != "*" or value <= LARGEST_DOUBLED)


@dataclass(frozen=True)
class Problem:
    """Problem without its wording.

    >>> problem = Problem(23, (Operation("+", 4), Operation("*", 2)), person=0, thing=0)
    >>> problem.values, problem.answer, problem.expression
    ((23, 27, 54), 54, '((23 + 4) * 2)')
    """

    start: int
    operations: tuple[Operation, ...]
    person: int  # row of `PEOPLE`
    thing: int  # row of `THINGS`

    @property
    def values(self) -> tuple[int, ...]:
        """Starting number, intermediate values and answer."""
        return tuple(accumulate(self.operations, lambda value, apply: apply(value), initial=self.start))

    @property
    def answer(self) -> int:
        """Answer: the last of `values`."""
        return self.values[-1]

    @property
    def expression(self) -> str:
        """Problem as a fully parenthesised arithmetic expression."""
        text = str(self.start)
        for symbol, operand in self.operations:
            text = f"({text} {symbol} {operand})"
        return text

    @property
    def valid(self) -> bool:
        """Whether every operation is valid for its operand."""
        return all(apply.valid_for(value) for value, apply in zip(self.values, self.operations, strict=False))

    @property
    def chains(self) -> tuple[str, ...]:
        """All solutions; each lists the values after the operations, such as `27 54`.

        In a solution, the operations may be in any valid order that gives the same answer.
        """
        orders = (replace(self, operations=order) for order in permutations(self.operations))
        right = {order.values[1:] for order in orders if order.valid and order.answer == self.answer}
        return tuple(sorted(" ".join(map(str, values)) for values in right))

    @property
    def asked(self) -> Asked:
        """Content of the question; its facts are the number of operations and the expression."""
        facts = {"num_operations": len(self.operations), "expression": self.expression}
        return Asked(self.expression, (str(self.answer),), facts, self)


def sample_problem(rng: random.Random, num_operations: Sequence[int], start: tuple[int, int]) -> Problem:
    """Draw a valid problem; `start` is the range of its first number, both ends included."""
    while True:
        operations = [
            Operation(rng.choice("+-"), rng.randint(2, 9)) for _ in range(rng.choice(num_operations))
        ]
        if rng.random() < DOUBLING_SHARE:
            operations[rng.randrange(len(operations))] = Operation("*", 2)
        person, thing = rng.randrange(len(PEOPLE)), rng.randrange(len(THINGS))
        problem = Problem(rng.randint(*start), tuple(operations), person, thing)
        if problem.valid:
            return problem


@dataclass(frozen=True)
class Family:
    """Family of wordings: templates that phrase a problem, and their share in supervised training.

    `layout` has the fields {name} {he} {him} {start} {things} {events}; the clauses have {he} {him} {n}. If
    there are several clauses for an operation, each event uses one of them. The first letters of sentences
    are capitalised afterwards.
    """

    layout: str
    link: str  # joins the events
    add: Sequence[str]
    subtract: Sequence[str]
    double: Sequence[str]
    backward: bool = False  # whether the text has the events from the last to the first
    share: float = 0.0  # of the supervised examples; 0 for a family that is never trained
    strategies: tuple[float, float, float] = (1.0, 0.0, 0.0)
    """Shares of three kinds of solutions: from left to right, additions first, and the answer alone."""


_BUYS, _SELLS = ("{he} buys {n}", "{he} finds {n}"), ("{he} sells {n}", "{he} loses {n}")
# A family that is never trained, made of clauses of several trained families.
_mixed = partial(
    Family,
    add=("{he} buys {n}", "plus {n}", "{n} are given to {him}"),
    subtract=("{he} loses {n}", "minus {n}", "{n} are taken from {him}"),
    double=("{he} doubles them", "twice"),
)

FAMILIES: Mapping[str, Family] = {
    "narrative": Family(
        layout="{name} has {start} {things}. {events}. How many?",
        link=". ",
        add=_BUYS, subtract=_SELLS, double=("{he} doubles them",),
        share=0.44, strategies=(0.75, 0.10, 0.15),
    ),
    "question_first": Family(
        layout="How many {things} does {name} have if {he} starts with {start} then {events}?",
        link=" then ",
        add=("buys {n}", "finds {n}"), subtract=("sells {n}", "loses {n}"), double=("doubles them",),
        share=0.08, strategies=(0.45, 0.15, 0.40),
    ),
    "list": Family(
        layout="{things}: start {start}; {events}; total?",
        link="; ",
        add=("plus {n}",), subtract=("minus {n}",), double=("twice",),
        share=0.20, strategies=(0.30, 0.60, 0.10),
    ),
    "passive": Family(
        layout="{start} {things} are owned by {name}. {events}. Count?",
        link=". ",
        add=("{n} are given to {him}",), subtract=("{n} are taken from {him}",), double=("they are doubled",),
        share=0.04, strategies=(0.45, 0.15, 0.40),
    ),
    "reversed": Family(
        layout="{events}. At first {name} has {start} {things}. How many?",
        link=". Before that ",
        add=_BUYS, subtract=_SELLS, double=("{he} doubles them",), backward=True,
        share=0.04, strategies=(0.35, 0.25, 0.40),
    ),
    "symbol": Family(
        layout="Compute {start} {events}.",
        link=", ",
        add=("+ {n}",), subtract=("- {n}",), double=("* 2",),
        share=0.20, strategies=(0.60, 0.20, 0.20),
    ),
    "hybrid": _mixed(layout="{name} starts with {start} {things}; {events}; total?", link="; "),
    "start_last": _mixed(layout="How many if {events}? At first {name} has {start} {things}.", link=" then "),
}  # fmt: skip


def phrase(problem: Problem, family: Family, rng: random.Random) -> str:
    """Phrase `problem` in the words of `family`; `rng` chooses among synonyms.

    >>> problem = Problem(23, (Operation("+", 4), Operation("*", 2)), person=0, thing=0)
    >>> phrase(problem, FAMILIES["passive"], random.Random(0))
    '23 apples are owned by Tom. 4 are given to him. They are doubled. Count?'
    >>> phrase(problem, FAMILIES["symbol"], random.Random(0))
    'Compute 23 + 4, * 2.'
    """
    person = dict(zip(("name", "he", "him"), PEOPLE[problem.person], strict=True))
    clauses = {"+": family.add, "-": family.subtract, "*": family.double}
    events = [rng.choice(clauses[symbol]).format(n=n, **person) for symbol, n in problem.operations]
    told = family.link.join(reversed(events) if family.backward else events)
    text = family.layout.format(start=problem.start, things=THINGS[problem.thing], events=told, **person)
    # Sentences follow a full stop or a question mark.
    return re.sub(r"(?:^|[.?] )[a-z]", lambda match: match.group().upper(), text)


_TRAINED = ("narrative", "question_first", "list", "passive", "reversed", "symbol")
_RARE = ("question_first", "passive", "reversed")
_HARD = ("passive", "reversed", "start_last")
_COMMON = ("narrative", "question_first", "list", "symbol")

REFORMULATED = "reformulated"
"""Regime whose answers are chains of values and which has five kinds of rephrasings."""
REPHRASINGS: Mapping[str, Sequence[str]] = {
    "mixed": _TRAINED,
    "hard": _COMMON,
    REFORMULATED: ("list", "question_first", "reversed", *REFORMULATIONS),
}
"""Regime → families of its rephrasings."""


@dataclass(frozen=True, kw_only=True)
class ArithmeticSplit(Split):
    """Split with specific sizes of problems."""

    num_operations: Sequence[int] = (3,)
    start: tuple[int, int] = (2, 30)
    """Range of the first number, both ends included."""


_TRAIN_ORIGINALS = {"mixed": _TRAINED, "hard": _HARD, REFORMULATED: ("passive",)}
_TEST_ORIGINALS = {"mixed": _RARE, "hard": _HARD, REFORMULATED: ("passive",)}
_UNSEEN = dict.fromkeys(REPHRASINGS, ("hybrid",))

SPLITS: Mapping[str, ArithmeticSplit] = {
    "train": ArithmeticSplit(buckets=range(6), originals=_TRAIN_ORIGINALS, num_operations=(2, 3)),
    "validation": ArithmeticSplit(buckets=range(6, 7), originals=_TRAIN_ORIGINALS, num_operations=(2, 3)),
    "test_id": ArithmeticSplit(buckets=range(7, 8), originals=_TEST_ORIGINALS),
    "test_phrasing": ArithmeticSplit(buckets=range(8, 9), originals=_UNSEEN),
    "test_size": ArithmeticSplit(buckets=range(9, 10), originals=_TEST_ORIGINALS, start=(31, 60)),
}


class ArithmeticSource(GeneratedSource):
    """Generated word problems with rephrasings.

    Splits: `train` and `validation` have the same distribution. All problems of the tests have three
    operations, so that Pass@k can rise up to k = 32. `test_id` uses the rare families of training,
    `test_phrasing` a family that is never trained, and `test_size` the families of `test_id` with larger
    starting numbers than in training (31..60 instead of 2..30).

    Regimes: `mixed` uses the six trained families for originals and rephrasings. For originals, `hard` uses
    two rare families and a family that is never trained; for rephrasings, it uses the four other families.
    `reformulated` has problems of two operations, one family of originals, and rephrasings of five kinds:
    wordings in three other families, and the four kinds in `REFORMULATIONS`. Its answers are the values after
    each operation, in any valid order of the operations, so that all answers can be listed.

    >>> group = ArithmeticSource("train", num_rephrasings=1).load()[3]
    >>> group.metadata["family"], group.question
    ('passive', '11 coins are owned by Leo. 5 are given to him. 8 are given to him. Count?')
    >>> group.rephrasings, group.answer, group.metadata["expression"]
    (('Leo has 11 coins. He buys 5. He buys 8. How many?',), ('24',), '((11 + 5) + 8)')
    """

    splits = SPLITS
    rephrasings = REPHRASINGS

    def sample(self, rng: random.Random) -> Asked:
        """Draw a problem with the split's sizes."""
        chained, split = self.regime == REFORMULATED, SPLITS[self.split]
        problem = sample_problem(rng, (2,) if chained else split.num_operations, split.start)
        return problem.asked._replace(answers=problem.chains) if chained else problem.asked

    def phrase(self, asked: Asked, family: str, rng: random.Random) -> str:
        """Phrase a problem; `rng` chooses among the family's synonyms."""
        return phrase(asked.told, FAMILIES[family], rng)

    def aids(self, asked: Asked, rng: random.Random) -> Mapping[str, str]:
        """Return the fields of `REFORMULATIONS` for a problem.

        `hint` is the first value of a solution, `choices` a correct chain and two wrong chains, and `noise`
        two unrelated numbers of things.
        """

        def others() -> Iterator[str]:
            while True:
                values = rng.choice(asked.answers).split(" ")
                values[rng.randrange(len(values))] = str(rng.randint(0, MAX_VALUE))
                yield " ".join(values)

        return {
            "hint": rng.choice(asked.answers).split(" ")[0],
            "choices": choices(asked.answers, others(), rng),
            "noise": f"{rng.randint(2, 9)} {rng.choice(THINGS)}, {rng.randint(2, 9)} {rng.choice(THINGS)}",
        }
