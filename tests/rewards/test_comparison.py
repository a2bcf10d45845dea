"""Properties of canonical forms and of their comparison; the pairs with labels are tested in test_math.py."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rewards.comparison import DEFAULT, Conventions, all_of, any_of, compare_forms
from tagrpo.rewards.forms import Formula, Quantity
from tagrpo.rewards.reading import read_answer

TABLE = [json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text().splitlines()]
STRICT = Conventions(bare_base=False, bare_unit=False, ordered_as_list=False, decimal_tolerance=0.0)
"""Without the conventions that let an answer leave something out."""
ATOMS = ["1", "2", "1/2", "0.5", r"\frac{1}{2}", "x", "2x", r"\sqrt{8}", r"2\sqrt2", "-3", r"\pi", "x+1", "1+x", "3y"]


def plan(reference, answer, conventions=DEFAULT):
    return compare_forms(read_answer(reference), read_answer(answer), conventions)


def texts():
    """Answers of all kinds, of the same few values in many spellings, so that many of them are equal."""
    values = st.sampled_from(ATOMS)
    several = st.lists(values, min_size=2, max_size=3).map(", ".join)
    return st.one_of(
        values,
        several,
        several.map("({})".format),
        several.map(r"\{{{}\}}".format),
        st.tuples(values, values).map("[{0[0]},{0[1]})".format),
        st.tuples(values, st.sampled_from([r"\text{ cm}", " cm", r"\text{ apples}", r"\%"])).map("".join),
        values.map("y={}".format),
        st.tuples(st.sampled_from(["1010", "110", "11"]), st.integers(2, 4)).map("{0[0]}_{{{0[1]}}}".format),
        st.sampled_from(["ACB", "BCA", "listen", r"\text{odd}", "A", "B", r"\begin{pmatrix}1\\2\end{pmatrix}"]),
    )


def certain(text):
    form = read_answer(text)
    return not isinstance(form, Quantity) or form.unit.certain


@given(texts())
def test_equality_is_reflexive(text):
    assert plan(text, text) is True


@given(texts(), texts())
def test_equality_is_symmetric_where_letters_have_one_role(one, other):
    assert certain(one)
    assert certain(other)
    assert plan(one, other) == plan(other, one)


@given(texts(), texts(), texts())
def test_equality_is_transitive_without_the_conventions(one, two, three):
    if plan(one, two, STRICT) is True and plan(two, three, STRICT) is True and "y=" not in one + two + three:
        assert plan(one, three, STRICT) is True


def test_many_of_the_drawn_answers_are_equal():
    """Else the properties above would say little."""
    pairs = list(itertools.product(ATOMS, repeat=2))
    assert sum(plan(*pair) is True for pair in pairs) > 1.5 * len(ATOMS)


def test_no_answer_is_right_for_two_whole_numbers():
    """Whatever the table has as an answer is right for at most one of the numbers that it has as a reference."""
    numbers = sorted({row["reference"] for row in TABLE if row["reference"].isdigit()})
    assert len(numbers) > 20
    for answer in {row["answer"] for row in TABLE}:
        form = read_answer(answer)
        right = [number for number in numbers if compare_forms(read_answer(number), form) is True]
        assert len(right) <= 1, (answer, right)


@given(st.fractions(), st.fractions())
def test_fractions_are_compared_as_fractions(one, other):
    for spelling in (r"\frac{{{0.numerator}}}{{{0.denominator}}}", "{0.numerator}/{0.denominator}"):
        assert plan(str(one), spelling.format(other)) is (one == other)
    assert read_answer(str(one)).number.real == one == Fraction(str(one))


@pytest.mark.parametrize(
    "hedge", [row["answer"] for row in TABLE if row["kind"] == "hedge" and row["reference"] == "4"]
)
def test_a_hedge_is_wrong_against_either_of_its_values(hedge):
    assert plan("4", hedge) is not True
    assert plan("5", hedge) is not True
    assert hedge in ("4:5", "4 / 5") or plan("4", hedge) is False


WORDS = ["or", "perhaps", "maybe", "but", "else", "otherwise", "unless", "and", "not", "versus", "hopefully", "instead"]


@given(
    st.integers(0, 99),
    st.sampled_from(WORDS),
    st.sampled_from(["{} {} {}", r"{}\text{{ {} }}{}", r"{} \text{{ ({} {})}}"]),
)
def test_words_that_join_two_numbers_are_no_unit(number, word, spelling):
    answer = spelling.format(number, word, number + 1)
    assert plan(str(number), answer) is False
    assert plan(str(number + 1), answer) is False


LETTERS = [
    ("6m", "6", False), ("6m", "6m", True), ("6m", r"6\text{ m}", True), ("6", "6m", True), ("6", "6 m", True),
    ("6", "6n", False), (r"6\text{ m}", "6", True), (r"6\text{ m}", "6s", False), ("3m", "3s", False),
    ("5cd", "5dc", True),    ("6 cm", "6", True), ("2m+n", "n+2m", True),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "answer", "right"), LETTERS)
def test_the_reference_tells_what_a_letter_is(reference, answer, right):
    assert plan(reference, answer) is right


def test_plans_are_simplified():
    leaf = ("same", "a", "b")
    assert all_of([True, leaf, leaf]) == any_of([False, leaf]) == leaf
    assert all_of([leaf, False]) is False
    assert any_of([leaf, True]) is True
    assert all_of([]) is True
    assert any_of([]) is False


def test_lists_that_need_algebra_become_a_matrix_of_plans():
    name, rows = plan(r"\sin 2x, \cos x", r"\cos x, 2\sin x\cos x")
    assert (name, len(rows), len(rows[0])) == ("match", 1, 1), "equal values are taken off first"
    assert plan(r"\sin x, 2", r"\sin x, 3") is False


def test_forms_hold_what_was_written():
    assert isinstance(read_answer("x+1"), Formula)
    assert (read_answer("5 km/h").unit.name, read_answer("4210_5").base) == ("hour^-1 kilometer", 5)
    assert read_answer(r"\text{A5}_{11}").digits == "A5"
    assert [item.number.real for item in read_answer("81, 256").items] == [81, 256]


def test_long_and_deep_answers_are_read_in_bounded_time():
    rng = random.Random(0)
    for opening in (
        "(",
        "[",
        r"\{",
        "{",
        r"\frac{1}{",
        r"\text{",
        r"\sqrt{",
        r"\begin{pmatrix}",
        "$",
        "-",
        "x^",
        "1,",
        r"\pm",
    ):
        for count in (300, 1000):
            read_answer(opening * count)
            read_answer(opening * count + "1" + "}" * rng.randint(0, count))


@pytest.mark.parametrize("row_end", [r"\\", r"\\[4pt]", r"\\\,", r"\\ ", r"\\ [1ex]", r" \\ \; "])
def test_rows_of_a_matrix_end_in_any_layout(row_end):
    assert plan(r"\begin{pmatrix}1\\2\end{pmatrix}", rf"\begin{{pmatrix}}1{row_end}2\end{{pmatrix}}") is True
