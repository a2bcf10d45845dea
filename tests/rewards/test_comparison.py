"""Properties of canonical forms and of their comparison; the pairs with labels are tested in test_math.py."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tagrpo.rewards.arithmetic import Number
from tagrpo.rewards.comparison import DEFAULT, Conventions, all_of, any_of, compare_forms
from tagrpo.rewards.equivalence import compare
from tagrpo.rewards.forms import Formula, Quantity
from tagrpo.rewards.reading import read_answer

TABLE = [json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text().splitlines()]
STRICT = Conventions(bare_base=False, bare_unit=False, ordered_as_list=False, decimal_tolerance=0.0)
"""Without the conventions that let an answer leave something out."""
ATOMS = [
    "1",
    "2",
    "1/2",
    "0.5",
    r"\frac{1}{2}",
    "x",
    "2x",
    r"\sqrt{8}",
    r"2\sqrt2",
    "-3",
    r"\pi",
    "x+1",
    "1+x",
    "3y",
]


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
        st.sampled_from(
            ["ACB", "BCA", "listen", r"\text{odd}", "A", "B", r"\begin{pmatrix}1\\2\end{pmatrix}"]
        ),
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
    numbers = sorted({str(int(row["reference"])) for row in TABLE if row["reference"].isdigit()})
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
    assert hedge in ("4:5", "4 / 5", r"4\text{ to }5") or plan("4", hedge) is False


WORDS = [
    "or",
    "perhaps",
    "maybe",
    "but",
    "else",
    "otherwise",
    "unless",
    "and",
    "not",
    "versus",
    "hopefully",
    "instead",
]


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


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.runs)])
def test_long_and_deep_answers_are_read_in_bounded_time(count):
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
        read_answer(opening * count)
        read_answer(opening * count + "1" + "}" * rng.randint(0, count))


@pytest.mark.parametrize("row_end", [r"\\", r"\\[4pt]", r"\\\,", r"\\ ", r"\\ [1ex]", r" \\ \; "])
def test_rows_of_a_matrix_end_in_any_layout(row_end):
    assert plan(r"\begin{pmatrix}1\\2\end{pmatrix}", rf"\begin{{pmatrix}}1{row_end}2\end{{pmatrix}}") is True


@given(st.integers(0, 9), st.integers(2, 99), st.integers(1, 500))
@example(0, 77, 6)  # 077922 repeats, and its last digit too
def test_a_decimal_that_ends_in_dots_repeats_its_last_digits(whole, denominator, numerator):
    """Against long division: the digits up to the end of the second period."""
    value = whole + Fraction(numerator % denominator, denominator)
    rest = numerator % denominator
    digits = ""
    seen = {}
    while rest and rest not in seen:
        seen[rest] = len(digits)
        rest *= 10
        digits += str(rest // denominator)
        rest %= denominator
    period = digits[seen[rest] :] if rest else "0"
    if len(digits + 2 * period) > 40:
        return
    assert read_answer(f"{whole}.{digits}{period}{period}\\ldots").number.real == value
    assert plan(str(value), f"{whole}.{digits}{period}{period}...") is True


def test_a_decimal_with_dots_that_does_not_repeat_is_a_decimal():
    assert read_answer(r"3.14159265\ldots").number.real == Fraction("3.14159265")
    assert plan(r"\pi", r"3.14159265\ldots") is True
    assert plan(r"\pi", r"3.24159265\ldots") is False


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(1, 9))
def test_ratios_of_three_terms_are_equal_up_to_a_factor(one, two, three, factor):
    reference = f"{one}:{two}:{three}"
    assert plan(reference, f"{factor * one} : {factor * two} : {factor * three}") is True
    assert plan(reference, f"{one} to {two} to {three}") is True
    assert plan(reference, f"{one}:{two}:{three + factor}") is False
    assert plan(reference, f"{one}:{two * three}") is False


@settings(max_examples=5)  # each takes half a second
@given(st.integers(-9, 9), st.integers(1, 9), st.sampled_from(["<", r"\le"]), st.sampled_from(["<", r"\le"]))
def test_two_inequalities_are_one_range_or_a_union(least, width, under, over):
    most = least + width
    mirrored = {"<": ">", r"\le": r"\ge"}
    opening, closing = ("(" if under == "<" else "["), (")" if over == "<" else "]")
    inside = rf"x {mirrored[under]} {least} \text{{ and }} x {over} {most}"
    assert compare(plan(f"{opening}{least},{most}{closing}", inside))
    outside = rf"x {over} {least} \text{{ or }} x {mirrored[under]} {most}"
    union = rf"(-\infty,{least}{closing}\cup{opening}{most},\infty)"
    assert compare(plan(union, outside))
    assert not compare(plan(union, inside))
    assert not compare(plan(f"{opening}{least},{most}{closing}", outside))


def test_an_inequality_is_no_side_condition_of_another():
    assert not compare(plan(r"x \neq 1", r"x \neq 1, x \neq 2"))
    assert plan(r"x \neq 1, x \neq 2", r"x \neq 2 \text{ and } x \neq 1") is True


@settings(max_examples=30)
@given(st.sets(st.integers(-9, 9), min_size=1, max_size=3), st.randoms())
def test_real_numbers_without_points_are_one_set_however_they_are_written(points, rng):
    shuffled = rng.sample(sorted(points), len(points))
    ends = [r"-\infty", *map(str, sorted(points)), r"\infty"]
    union = r"\cup".join(f"({lower},{upper})" for lower, upper in itertools.pairwise(ends))
    listed = ",".join(map(str, shuffled))
    assert plan(union, rf"\mathbb{{R}}\setminus\{{{listed}\}}") is True
    assert plan(union, rf"\text{{all real numbers except }} {listed.replace(',', ' and ')}") is True
    assert compare(plan(union, ", ".join(rf"x \ne {point}" for point in shuffled)))
    assert plan(union, rf"\mathbb{{R}}\setminus\{{{listed},10\}}") is not True


@given(st.permutations("abc"), st.permutations("abc"), st.tuples(*[st.integers(0, 3)] * 3))
def test_named_values_are_compared_by_name_in_any_order(one, other, values):
    value = dict(zip("abc", values, strict=True))
    listed = ", ".join(f"{name}={value[name]}" for name in one)
    named = f"({','.join(other)})=({','.join(str(value[name]) for name in other)})"
    swapped = f"({','.join(other)})=({','.join(str(value[name]) for name in reversed(other))})"
    unnamed = f"({','.join(map(str, values))})"
    assert plan(named, listed) is True
    assert plan(listed, named) is True
    assert plan(unnamed, listed) is True
    assert plan(named, listed.replace("c=", "d=")) is False
    assert plan(swapped, listed) is (value[other[0]] == value[other[2]])


@given(
    st.lists(
        st.tuples(st.fractions(-3, 3, max_denominator=4), st.integers(-4, 4), st.integers(-4, 4)), min_size=1
    )
)
def test_sums_of_multiples_of_columns_are_one_column(terms):
    """Against exact sums of fractions."""
    spelled = "".join(
        rf"{'-' if factor < 0 else '+'}\frac{{{abs(factor.numerator)}}}{{{factor.denominator}}}"
        rf"\begin{{pmatrix}}{above}\\{below}\end{{pmatrix}}"
        for factor, above, below in terms[:4]
    )
    above = sum(factor * value for factor, value, _ in terms[:4])
    below = sum(factor * value for factor, _, value in terms[:4])
    assert plan(spelled, rf"\begin{{pmatrix}}{above}\\{below}\end{{pmatrix}}") is True
    assert plan(rf"\begin{{pmatrix}}{above}\\{below + 1}\end{{pmatrix}}", spelled) is False
    transposed = spelled.replace(r"\end{pmatrix}", r"\end{pmatrix}^T")
    assert plan(rf"\begin{{pmatrix}}{above}&{below}\end{{pmatrix}}", transposed) is True


@given(st.lists(st.integers(1000, 10**7), min_size=2, max_size=4, unique=True))
def test_numbers_with_commas_stay_apart_in_lists(numbers):
    grouped = [f"{number:,}" for number in numbers]
    plain = ", ".join(map(str, numbers))
    assert plan(plain, ", ".join(grouped)) is True
    assert plan(rf"\{{{plain}\}}", rf"\{{{', '.join(reversed(grouped))}\}}") is True
    assert plan(f"({plain})", f"({', '.join(grouped)})") is True
    assert plan(plain, ", ".join(grouped[:-1])) is False
    assert plan(plain, ", ".join(grouped).replace(",", ", ").replace("  ", " ")) is False


CONDITIONS = [
    r"k\in\mathbb{Z}",
    r"k \in \mathbb Z",
    r"\text{for any integer } k",
    r"\text{where } k \text{ is an integer}",
    r"\text{for all integers } k",
    r"(k\in\mathbb{Z})",
    r"\text{ for } k\in \mathbb{Z}",
]


@pytest.mark.parametrize("one", CONDITIONS)
@pytest.mark.parametrize("other", ["", *CONDITIONS])
def test_declarations_of_a_variable_are_one_condition(one, other):
    def written(condition):
        return r"\frac{\pi}{3}+2k\pi" + ("" if condition.startswith("(") else ", ") + condition

    assert plan(written(one), written(other)) is True
    assert plan(written(one), written(other).replace("3", "4")) is False


def test_a_probability_has_no_side_condition():
    assert plan("P(x>0)", "P") is not True
    assert plan("x+1", r"x+1 (x \ne 1)") is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2^N-n", "2^n-N"),
        (r"\frac{\sin A}{a}", r"\frac{\sin a}{A}"),
        (r"\sqrt{R^2-r^2}", r"\sqrt{r^2-R^2}"),
        (r"\frac{N_1}{n_1}", r"\frac{n_1}{N_1}"),
        (r"\pi R^2-\pi r^2", "0"),
        (r"\sin\Delta", r"\sin\delta"),
        ("f'(x)", "f(x)"),
        ("f'(x)+g(x)", "f(x)+g'(x)"),
        ("y''", "y'"),
    ],
)
def test_capitals_and_primes_tell_variables_apart(one, other):
    assert not compare(plan(one, other))
    assert not compare(plan(other, one))
    assert compare(plan(one, one.replace("-", " - ")))


HALVES = ["", r"\text{ a.m.}", " p.m.", " PM", r"\text{ AM}"]


@given(st.integers(1, 12), st.integers(0, 59), st.sampled_from(HALVES), st.sampled_from(HALVES))
def test_times_agree_in_minutes_and_in_the_stated_half_of_the_day(hour, minute, one, other):
    halves = {half.lower().replace("text", "").strip(" \\{}.")[0] for half in (one, other) if half}
    assert plan(f"{hour}:{minute:02}{one}", f"{hour}:{minute:02}{other}") is (len(halves) < 2)
    assert (
        plan(f"{hour}:{minute:02}{one}", f"{hour}:{(minute + 1) % 60:02}{other}") is not True
        or not one + other
    )
    strict = plan(f"{hour}:{minute:02}{one}", f"{hour}:{minute:02}{other}", STRICT)
    assert strict is (len(halves) < 2 and bool(one) == bool(other))


def test_a_percentage_and_its_decimal_state_one_value():
    for reference in (r"0.56=56\%", r"p = 0.56 = 56\%"):
        assert plan(reference, "0.56") is True
        assert plan(reference, r"56\%") is True
        assert plan(reference, "0.57") is False
    assert plan("0.56", r"0.56=56\%") is True
    assert plan("0.56", r"0.56=57\%") is False


PARTS = st.integers(-3, 3)


@given(st.tuples(PARTS, PARTS), st.tuples(PARTS, PARTS))
def test_a_percentage_is_a_hundredth_in_both_of_its_parts(percent, fraction):
    real, imaginary = percent
    answer = rf"({25 * real}+({25 * imaginary})i)\%"
    other = rf"\frac{{{fraction[0]}}}{{4}}+\frac{{{fraction[1]}}}{{4}}i"
    conventions = Conventions(percent="fraction")
    assert plan(answer, other, conventions) is (percent == fraction)
    assert plan(other, answer, conventions) is (percent == fraction)
    assert plan(answer, other) is (percent == fraction == (0, 0))
    form = read_answer(answer)
    assert isinstance(form, Quantity)
    assert form.number == Number(Fraction(real, 4), Fraction(imaginary, 4))


def test_a_percentage_that_needs_algebra_is_a_hundredth_too():
    """All digits that a root is computed to agree with the decimal, so that only algebra tells them apart."""
    found = plan(r"\sqrt2\%", "0.01414213562373095048801689", Conventions(percent="fraction"))
    assert found[0] == "same"
    assert r"\frac{\sqrt2}{100}" in found


@given(st.integers(1, 6), st.integers(0, 30))
def test_an_equation_that_needs_algebra_states_a_value_if_it_is_true(upper, claimed):
    """The sum of the first whole numbers, by the formula of Gauss."""
    answer = rf"\sum_{{k=1}}^{{{upper}}} k = {claimed}"
    assert compare(plan(str(claimed), answer)) is (claimed == upper * (upper + 1) // 2)
    assert str(read_answer(answer)) != str(claimed), "a false claim does not vote for its value"
    assert not compare(plan("8", "2^x=8"))


NOUNS = [
    "pieces of candy", "of the cake", "of them", "students in the class", "beats per minute", "distinct real roots",
    "cm long", "years old", "years of age", "in total", "cm in width",
]  # fmt: skip
NO_NOUNS = [
    "of course", "of 12", "in the best case", "at most", "at the least", "per", "of the", "or so in total",
    "unsure", "wrong", "cases in the first", "perhaps in the class", "values in doubt",
]  # fmt: skip


@pytest.mark.parametrize("words", NOUNS)
def test_what_is_counted_or_measured_may_be_left_out(words):
    for answer in (f"7 {words}", rf"7\text{{ {words}}}"):
        assert plan("7", answer) is True
        assert plan("8", answer) is False


@pytest.mark.parametrize("words", NO_NOUNS)
@pytest.mark.parametrize("number", ["1", "7"])
def test_other_words_behind_a_number_make_another_answer(number, words):
    assert plan(number, rf"{number}\text{{ {words}}}") is False


def test_amounts_in_several_units_are_one_answer():
    reference = r"3\text{ hours }20\text{ minutes}"
    for answer in (r"3\text{ hours and }20\text{ minutes}", "3 h 20 min", "3 hours, 20 minutes"):
        assert compare(plan(reference, answer))
    for answer in (
        r"3\text{ hours }2\text{ minutes}",
        r"20\text{ hours }3\text{ minutes}",
        r"3\text{ hours}",
        "320",
    ):
        assert not compare(plan(reference, answer))


SAME_PRINT = [
    (r"\binom{9}{4}", r"{9 \choose 4}"), (r"\binom{9}{4}", r"9 \choose 4"), (r"\binom{9}{4}", "{}_{9}C_{4}"),
    (r"\binom{9}{4}", "C(9,4)"), (r"5\text{ m/s}^2", r"5\,\frac{\text{m}}{\text{s}^2}"),
    (r"5\text{ m/s}^2", r"5\,\mathrm{\frac{m}{s^{2}}}"), (r"5\text{ J/(mol K)}", r"5\,\mathrm{J/(mol\cdot K)}"),
    (r"\mathbb{R}", r"\mathbb R"), (r"\mathbb{R}", r"\Bbb{R}"), (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"\mathbf{v}", r"\vec{v}"), ("45^\\circ", r"45^{\text{o}}"), ("45^\\circ", "45º"), ("2, 3", r"2 \& 3"),
    (r"\{1,2\}", r"x\in\{1,2\}"), ("5 cm", "5 (cm)"), ("-4", r"\text{ -４ }"), (r"\text{July 4}", "July 4th"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME_PRINT)
def test_spellings_that_print_alike_are_one_answer(one, other):
    assert plan(one, other) is True
    assert plan(other, one) is True


@pytest.mark.parametrize("sign", ["+", "-", " ", r"\cdot ", "/", ":", ","])
@pytest.mark.parametrize("count", [99, pytest.param(499, marks=pytest.mark.runs)])
def test_formulas_of_any_length_are_read(sign, count):
    for term in ("1", "x", "2"):
        text = sign.join(term * count)
        assert plan(text, text) is True
        assert isinstance(str(read_answer(text)), str)


def test_digits_of_other_scripts_neither_raise_nor_pass():
    for digit in "❺٣²":
        assert plan("5", digit) is not True
        assert plan("3:5", f"3:{digit}") is not True
