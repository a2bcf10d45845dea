"""Countdown: an expression that makes the target from the given numbers, checked by a small parser.

No text of a model is evaluated. The language is small on purpose, so that all correct answers can be listed:

    expression = operand operator operand          operator = + | - | * | /
    operand    = number | ( expression )           one space between any two of these

Every number is used exactly once, and every operation gives a whole number above zero. These are the rules of
the game, except that no number may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product

from ....rewards.canonical import Reference, references_of
from ....types import EnumeratingVerifier, Score

OPERATORS = ("+", "-", "*", "/")
"""Tokens of one character; `+-` is not a token."""
OPERATION = re.compile(r"([0-9]+) ([-+*/]) ([0-9]+)")
INNERMOST = re.compile(rf"(?<![^ ])\( {OPERATION.pattern} \)(?![^ ])")


def operate(left: int, operator: str, right: int) -> int | None:
    """Return the result of one operation on integers; None if the result is not a positive integer.

    >>> operate(7, "-", 3), operate(3, "-", 7), operate(6, "/", 3), operate(7, "/", 3), operate(7, "/", 0)
    (4, None, 2, None, None)
    """
    match operator:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case "/" if right and left % right == 0:
            value = left // right
        case _:
            return None
    return value if value > 0 else None


def value_of(expression: str) -> int | None:
    """Return the value of an expression; None if it is malformed or a result is not a positive integer.

    The caller must ensure that the numbers in the expression have few digits.

    >>> value_of("( 9 - 3 ) * 4"), value_of("9 - 3 * 4"), value_of("( 3 - 9 ) * 4"), value_of("8 +- 2")
    (24, None, None, None)
    """
    while found := INNERMOST.search(expression):
        value = operate(int(found[1]), found[2], int(found[3]))
        if value is None:
            return None
        expression = f"{expression[: found.start()]}{value}{expression[found.end() :]}"
    whole = OPERATION.fullmatch(expression)
    return operate(int(whole[1]), whole[2], int(whole[3])) if whole else None


def solutions(numbers: Sequence[int], target: int) -> list[str]:
    """Return all expressions of `numbers` with the value `target`, without duplicates, in alphabetical order.

    >>> solutions([3, 4, 9], 24)
    ['( 9 - 3 ) * 4', '4 * ( 9 - 3 )']
    """
    ways = _operations(tuple(sorted(numbers)))
    return sorted(
        {
            f"{a} {op} {b}"
            for value, left, op, right in ways
            if value == target
            for a, b in product(left, right)
        }
    )


def _operations(numbers: tuple[int, ...]) -> Iterator[tuple[int, Sequence[str], str, Sequence[str]]]:
    """Yield (value, left operand's texts, operator, right operand's texts) of each last operation."""
    for left, right in _parts(numbers):
        for (one, these), (other, those) in product(_operands(left).items(), _operands(right).items()):
            for operator in OPERATORS:
                value = operate(one, operator, other)
                if value is not None:
                    yield value, these, operator, those


@lru_cache(maxsize=1024)
def _operands(numbers: tuple[int, ...]) -> Mapping[int, Sequence[str]]:
    """Return value → all operands that use exactly these numbers and have this value."""
    if len(numbers) == 1:
        return {numbers[0]: [str(numbers[0])]}
    found: dict[int, set[str]] = {}
    for value, left, operator, right in _operations(numbers):
        found.setdefault(value, set()).update(f"( {a} {operator} {b} )" for a, b in product(left, right))
    return {value: sorted(texts) for value, texts in found.items()}


def _parts(numbers: tuple[int, ...]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return all divisions of sorted numbers into two non-empty parts; equal numbers are interchangeable."""
    rows = range(len(numbers))
    chosen = [left for size in rows[1:] for left in combinations(rows, size)]
    return {
        (tuple(numbers[i] for i in left), tuple(numbers[i] for i in rows if i not in left)) for left in chosen
    }


class CountdownReward(EnumeratingVerifier):
    """Verifier that accepts an expression of the reference's numbers with the reference's value.

    A reference is any correct expression, which determines the numbers and the target. The response must be
    the expression alone, with no missing or superfluous parenthesis, so that `correct_responses` is complete.

    >>> reward = CountdownReward()
    >>> reward("4 * ( 9 - 3 )", "( 9 - 3 ) * 4")
    Score(correct=True, answer='4 * ( 9 - 3 )', failure=None)
    >>> reward("9 * 4 - 12", "( 9 - 3 ) * 4").correct, reward("24", "( 9 - 3 ) * 4").correct
    (False, False)
    """

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response; `answer` is None if the response is not a valid expression of the numbers."""
        scores = [self._compare(response, correct) for correct in references_of(reference)]
        return max(scores, key=lambda score: (score.correct, score.answer is not None))

    def check_reference(self, reference: Reference) -> None:
        """Raise a ValueError if a reference is not a valid expression."""
        for correct in references_of(reference):
            _target_of(correct)

    @staticmethod
    def _compare(response: str, reference: str) -> Score:
        # All expressions of the same numbers are equally long. This bounds what the parser is given.
        if len(response) != len(reference):
            return Score(False, None)
        value = value_of(response) if _operands_of(response) == _operands_of(reference) else None
        return Score(
            value is not None and value == _target_of(reference), response if value is not None else None
        )

    def correct_responses(self, reference: Reference) -> list[str]:
        """Return all responses that are scored as correct, without duplicates."""
        found = {
            solution
            for correct in references_of(reference)
            for solution in solutions(
                [int(number) for number in re.findall("[0-9]+", correct)], _target_of(correct)
            )
        }
        return sorted(found)


def _target_of(reference: str) -> int:
    value = value_of(reference)
    if value is None:
        raise ValueError(
            f"Expected a reference that is an expression such as ( 9 - 3 ) * 4, but got {reference!r}."
        )
    return value


def _operands_of(expression: str) -> list[str]:
    """Return all tokens except operators, sorted; they are equal for expressions of the same numbers."""
    return sorted(token for token in expression.split(" ") if token not in OPERATORS)
