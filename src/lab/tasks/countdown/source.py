"""Embedded task: make a target from all of the given numbers. Many expressions are correct.

The task is modelled on `countdown` of reasoning-gym, but does not use its verifier, which evaluates the text
of a model as Python. Questions have a few words instead of eighty, in several phrasings. No two splits share
a problem.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping

from ..generated import REFORMULATIONS, Asked, Family, ListSource, bucket, choices, splits_of
from .reward import INNERMOST, OPERATORS, operate, solutions

LARGEST_TARGET, SMALLEST = 99, 2
LARGEST = {"usual": 15, "test_size": 20}
"""Largest number by split: numbers are 2..15; in the split `test_size`, at least one number is 16..20."""
COUNTS = {"easy": 3, "medium": 4, "hard": 4, "reformulated": 3}
"""Regime → number of numbers in a problem."""
FEW_ANSWERS = 16
"""Maximum number of answers to a `hard` problem; problems of four numbers have thirty answers on average."""

ONES = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

FAMILIES: Mapping[str, Family] = {
    "make": Family(layout="Make {target} from {items}.", share=0.40),
    "symbol": Family(layout="{items} = {target}", link=" and ", share=0.25),
    "list": Family(layout="numbers: {items}; total: {target}", link="; ", share=0.215),
    "question": Family(
        layout="How does one get {target} with the numbers {items}?", link=" and ", share=0.12
    ),
    # The target stands among the numbers.
    "cards": Family(
        layout="Ann holds {first}, needs {target}, and also holds {others}.", link=" and ", share=0.01
    ),
    "spelled": Family(layout="Ann holds {first}, needs {spelled}, and also holds {others}.", link=" and "),
    "result": Family(layout="{others} are cards, {target} is the result, {first} is a card.", share=0.005),
    "hybrid": Family(layout="{items}; Ann needs the result {target}.", link=" and "),
}
COMMON = ("make", "symbol", "list", "question")
RARE = ("cards", "result")
TRAINED = COMMON + RARE
REPHRASINGS = {
    "easy": TRAINED,
    "medium": TRAINED,
    "hard": COMMON,
    "reformulated": ("list", "question", "result", *REFORMULATIONS),
}
"""Regime → families of its rephrasings."""


class CountdownSource(ListSource):
    """Source of countdown problems: three or four numbers 2..15, all to be used, and a target of at most 99.

    Regimes differ in how much the policy of `examples/starters` can solve, see docs/tasks.md. `easy` has
    three numbers and `medium` has four, phrased in the trained families. `hard` has four numbers that can be
    combined in few ways; its originals are in two rarely trained families, and its rephrasings in common
    families. `reformulated` has three numbers, one family of originals with the target spelled out in words,
    and rephrasings of five kinds: wordings in three other families, and the four kinds in `REFORMULATIONS`.
    `examples/starters/exposed.py` makes policies for which these kinds are easier to different degrees.

    The tests are `test_id`, of the same kind as training; `test_phrasing`, in a family that is never trained;
    and `test_size`, with at least one number in 16..20.

    >>> group = CountdownSource("train", "easy", num_rephrasings=1).load()[0]
    >>> group.question, group.rephrasings, group.answer
    ('Make 68 from 11, 6, 4.', ('numbers: 4; 11; 6; total: 68',), ('4 * ( 11 + 6 )',))
    """

    families = FAMILIES
    splits = splits_of(easy=TRAINED, medium=TRAINED, hard=RARE, reformulated=("spelled",), unseen=("hybrid",))
    rephrasings = REPHRASINGS
    largest_size = 600

    def sample(self, rng: random.Random) -> Asked:
        """Draw a problem of the regime's size; in `hard`, a problem with few answers."""
        while True:
            problem = sample_problem(rng, COUNTS[self.regime], large=self.split == "test_size")
            # Answers are counted only where the problem is of use: that takes a millisecond.
            kept = self.regime == "hard" and bucket(problem) in self.splits[self.split].buckets
            if not kept or len(solutions(problem.facts["numbers"], problem.facts["target"])) <= FEW_ANSWERS:
                return problem

    def aids(self, asked: Asked, rng: random.Random) -> Mapping[str, str]:
        """Return the fields of `REFORMULATIONS` for a problem.

        `hint` is a first step of a solution, `choices` a solution and two wrong expressions, and `noise` two
        unrelated numbers.
        """
        numbers, target = asked.facts["numbers"], asked.facts["target"]
        answers = solutions(numbers, target)

        def others() -> Iterator[str]:
            while True:
                yield _combined(rng, list(numbers))[1]

        step = re.search(INNERMOST, rng.choice(answers))
        return {
            "hint": step.group() if step else "",
            "choices": choices(answers, filter(None, others()), rng),
            "noise": " ".join(str(rng.randint(SMALLEST, LARGEST["usual"])) for _ in range(2)),
        }


def spelled(number: int) -> str:
    """Return a number of 1..99 in words, each of which is a token.

    >>> spelled(15), spelled(40), spelled(63)
    ('fifteen', 'forty', 'sixty three')
    """
    if number <= len(ONES):
        return ONES[number - 1]
    tens, ones = divmod(number, 10)
    return " ".join([TENS[tens - 2], *ONES[ones - 1 : ones]])


def sample_problem(rng: random.Random, count: int, *, large: bool = False) -> Asked:
    """Draw a problem of `count` numbers; if `large`, at least one of the numbers is 16..20.

    The facts are the `numbers`, ascending, and the `target`. The answer is one of the correct expressions.
    """
    while True:
        numbers = [rng.randint(SMALLEST, LARGEST["test_size" if large else "usual"]) for _ in range(count)]
        target, expression = _combined(rng, numbers)
        if 0 < target <= LARGEST_TARGET and (not large or max(numbers) > LARGEST["usual"]):
            numbers.sort()
            items = tuple(map(str, numbers))
            facts = {"numbers": tuple(numbers), "target": target}
            told = items, {"target": str(target), "spelled": spelled(target)}
            return Asked(f"{' '.join(items)} = {target}", (expression,), facts, told)


def _combined(rng: random.Random, numbers: list[int]) -> tuple[int, str]:
    """Combine numbers by random operations; return value and text, or 0 and "" if there is no result."""
    made = [(number, str(number)) for number in numbers]
    while len(made) > 1:
        rng.shuffle(made)
        (left, one), (right, other) = made.pop(), made.pop()
        operator = rng.choice(OPERATORS)
        value = operate(left, operator, right)
        if value is None:
            return 0, ""
        made.append((value, f"( {one} {operator} {other} )"))
    return made[0][0], made[0][1][2:-2]
