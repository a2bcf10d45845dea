"""Countdown: the grammar, the rules of the game, all correct expressions, and answers that mean harm."""

import ast
import operator
import random
import sys
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.lab.tasks.countdown import CountdownReward
from tagrpo.lab.tasks.countdown.reward import solutions, value_of
from tagrpo.types import EnumeratingVerifier, Score
from tests.lab.tasks.hostile import COUNTDOWN as HOSTILE

REFERENCE = "( 9 - 3 ) * 4"
reward = CountdownReward()
ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def python_value(expression):
    """Python's own grammar and exact fractions; None where a step leaves the whole numbers above zero."""

    def value(node):
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        left, right = value(node.left), value(node.right)
        result = None if left is None or right is None else ARITHMETIC[type(node.op)](left, right)
        return result if result is not None and result > 0 and result.denominator == 1 else None

    return value(ast.parse(expression, mode="eval").body)


def all_expressions(numbers):
    """Every fully parenthesised expression, by brute force over orders, shapes and operators."""

    def shapes(items):
        if len(items) == 1:
            yield items[0]
        for cut in range(1, len(items)):
            for left, right, op in product(list(shapes(items[:cut])), list(shapes(items[cut:])), "+-*/"):
                yield f"( {left} {op} {right} )"

    return {text[2:-2] for order in set(permutations(map(str, numbers))) for text in shapes(order)}


@pytest.mark.parametrize("numbers", [(3, 4, 9), (5, 5, 2), (7, 7, 7), (2, 3, 4, 6), (2, 2, 5, 5)])
def test_solutions_are_all_expressions_that_python_gives_the_same_value(numbers):
    by_value = {}
    for text in all_expressions(numbers):
        by_value.setdefault(python_value(text), []).append(text)
    values = sorted(value for value in by_value if value)
    for target in (*random.Random(0).sample(values, min(len(values), 12)), 997):
        assert solutions(numbers, int(target)) == sorted(by_value.get(target, []))


def test_a_response_is_correct_exactly_when_it_is_listed():
    listed = set(reward.correct_responses(REFERENCE))
    assert listed == {"( 9 - 3 ) * 4", "4 * ( 9 - 3 )"}
    for text in all_expressions((3, 4, 9)):
        assert reward(text, REFERENCE).correct == (text in listed), text
    assert isinstance(reward, EnumeratingVerifier)


def test_no_text_one_edit_away_from_a_correct_one_is_correct_unless_it_is_listed():
    listed = reward.correct_responses("( ( 2 + 3 ) * 4 ) - 6")
    alphabet = ["(", ")", "+", "-", "*", "/", "2", "3", "4", "6", "12", "<sep>", "", " ", "0", "-2"]
    for text in listed:
        tokens = text.split(" ")
        for i, extra in product(range(len(tokens) + 1), alphabet):
            for edited in (
                [*tokens[:i], extra, *tokens[i:]],
                [*tokens[:i], extra, *tokens[i + 1 :]],
                [*tokens[:i], *tokens[i + 1 :]],
            ):
                said = " ".join(edited)
                assert reward(said, listed[0]).correct == (said in listed), said


@pytest.mark.parametrize(
    "text",
    [
        "9 - 3 * 4", "(9-3)*4", "( 9 - 3 ) * 4 ", " ( 9 - 3 ) * 4", "( ( 9 - 3 ) * 4 )", "( 9 - 3 ) * 4 = 24", "24",
        "( 9 - 3 ) * 5", "( 9 - 3 ) × 4", "( 9 − 3 ) * 4", "( 9 - 3 ) ** 4", "( 9 - 3 ) * -4", "( 9 - 3 * 4", "", "( )",
        "( 9 - 3 ) * 4\n", "( 9 - 3 ) * 4 #", ") 9 - 3 ( * 4", "( 9 - 3 ) 4 *", "9 ( - 3 ) * 4",
    ],
)  # fmt: skip
def test_what_is_written_otherwise_is_wrong(text):
    assert not reward(text, REFERENCE).correct
    assert reward(text, REFERENCE).answer is None


def test_an_expression_with_another_value_is_an_answer_but_wrong():
    assert reward("( 9 - 4 ) * 3", REFERENCE) == Score(False, "( 9 - 4 ) * 3")
    assert reward("9 / ( 4 + 3 )", REFERENCE).answer is None  # does not come out even: against the rules


def test_every_step_must_be_a_whole_number_above_zero():
    # On the way too.
    for expression in ("3 - 3", "( 3 - 9 ) + 8", "( 9 / 2 ) * 2", "9 / ( 3 - 3 )"):
        assert value_of(expression) is None


def test_any_of_several_references_counts():
    references = ("( 9 - 3 ) * 4", "5 + 5")
    assert reward("5 + 5", references).correct
    assert reward("4 * ( 9 - 3 )", references).correct
    assert reward.correct_responses(references) == ["( 9 - 3 ) * 4", "4 * ( 9 - 3 )", "5 + 5"]


def test_a_reference_that_is_no_expression_is_refused():
    with pytest.raises(ValueError, match=r"\( 9 - 3 \) \* 4, .*'24'"):
        reward.correct_responses("24")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_wrong_after_little_work_and_nothing_is_evaluated(
    name, tmp_path, monkeypatch, lines_run
):
    monkeypatch.chdir(tmp_path)
    limit = sys.getrecursionlimit()
    score, lines = lines_run(reward, HOSTILE[name], REFERENCE)
    assert lines < 200
    assert score == Score(False, None)
    assert list(tmp_path.iterdir()) == []
    assert sys.getrecursionlimit() == limit


def test_nothing_that_evaluates_is_even_called(monkeypatch):
    import builtins

    for name in ("eval", "exec", "compile", "__import__"):
        monkeypatch.setattr(builtins, name, lambda *_, name=name: pytest.fail(f"{name} was called"))
    for text in HOSTILE.values():
        reward(text, REFERENCE)
    assert reward("4 * ( 9 - 3 )", REFERENCE).correct


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.randoms())
@settings(max_examples=30)
def test_every_expression_has_the_value_that_fractions_give_it(numbers, random):
    def spelled(numbers):
        if len(numbers) == 1:
            return str(numbers[0]), Fraction(numbers[0]), True
        at = random.randrange(1, len(numbers))
        (left, a, fine), (right, b, good) = spelled(numbers[:at]), spelled(numbers[at:])
        operator = random.choice("+-*/")
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else Fraction(-1)}[operator]
        return f"( {left} {operator} {right} )", value, fine and good and value > 0 and value.denominator == 1

    text, value, fine = spelled(numbers)
    text = text[2:-2]
    assert value_of(text) == (value if fine else None)
    if fine:
        assert text in solutions(numbers, int(value))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=3), st.integers(1, 30))
@settings(max_examples=30)
def test_all_solutions_are_correct_for_each_other(numbers, target):
    reward, found = CountdownReward(), solutions(numbers, target)
    for text in found[:5]:
        assert all(reward(other, text).correct for other in found)
        assert reward.correct_responses(text) == found


@pytest.mark.parametrize(
    "response",
    ["( 8  2 ) +- 4", "( 8 / 2 ) +- 4", "( 8 */ 2 ) / 4", "( 8  2 )  4", "( 8 /  2 ) / 4", "( 8 -* 2 ) / 4"],
)
def test_only_the_four_operators_are_operators(response):
    for reference in ("( 8 / 2 ) / 4", "( 8 / 2 ) - 4", "( 8 * 2 ) / 4"):
        assert reward(response, reference) == Score(False, None)


def test_a_zero_is_an_operand_that_divides_nothing():
    assert value_of("8 / 0") is None
    assert value_of("0 * 8") is None  # not above zero
    assert not reward("8 / 0 + 4", "( 8 + 0 ) + 4").correct
    assert reward("( 8 + 0 ) + 4", "( 4 + 0 ) + 8").correct
    assert not reward("( 8 / 0 ) + 4", "( 8 + 0 ) + 4").correct
    assert "( 8 - 0 ) + 4" in solutions([0, 4, 8], 12)
