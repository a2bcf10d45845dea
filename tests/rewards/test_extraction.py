import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.rewards.canonical import canonical_number, exact_value, normalize_answer
from tagrpo.rewards.extraction import after_marker, extract_answer, extract_reference, last_boxed

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{1} and then \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (
            "\\boxed{\n\\begin{pmatrix} 0 & 3 \\\\ 0 & -1 \\end{pmatrix}\n}",
            "\\begin{pmatrix} 0 & 3 \\\\ 0 & -1 \\end{pmatrix}",
        ),
        (r"\boxed {17}.$$- OR -", "17"),
        (r"So $x$ is $\boxed 9$.", "9"),
        ("\\boxed -3\nDone.", "-3"),
        ("\\boxed \\boxed 4 $", "4"),
        ("$\\boxed \\pi$", r"\pi"),
        (r"\fbox{B}", "B"),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}"),
        (r"\boxed{\mbox{four}}", r"\mbox{four}"),
        (r"\boxed{x = \boxed{3}}", "3"),
        (r"\boxed{x = \boxed{3}}, or, cut off, \boxed{4", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a} then } and { and \boxed{b} }", "b"),
        (r"{ { \boxed{7}", "7"),
        (r"\boxed{7} or, cut off, \boxed{\frac{1}{", "7"),
        (r"\\boxed{7}", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{ }", ""),
        (r"\boxed{5", None),
        (r"\boxed", None),
        (r"\boxedness{5}", None),
        ("5", None),
        ("", None),
    ],
)
def test_the_last_complete_box_counts(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{5} #### 6. The answer is 7.", "5"),
        ("#### 6\nThe answer is 7.", "6"),
        ("The answer is 7.", "7"),
        ("The answer is 7.5. I am sure.", "7.5"),
        ("The final answer is: $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("**Answer:** 12", "12"),
        ("The answer is 3. No, the answer is 4.", "4"),
        (r"An empty \boxed{} is none, but the answer is 4", "4"),
        (r"cut off: \boxed{4", None),
        ("The answer is", None),
        ("12", None),
        ("", None),
    ],
)
def test_an_answer_is_boxed_or_marked_or_stated(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\dfrac{1}{2}", r"\frac12"),
        (r"\tfrac 1 2", r"\frac{1}{2}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"\$1,\!657", "1657"),
        (r"\$23{,}000", "23000"),
        ("$2,500.50$.", "2500.5"),
        (".35625", "0.35625"),
        (r"\text{(E)},", "E"),
        (r"\mbox{four}", "four"),
        (r"\boxed{\text{odd}}", "odd"),
        (r"8\text{ cm}", "8 cm"),
        ("\n x^2 +\n 1 ", "x^2+1"),
        (r"3\ \pi~r", r"3\pi r"),
        ("\N{MINUS SIGN}5", "-5"),
        (r"x \, y", "x y"),
        (r"50\%", "50"),
    ],
)
def test_spellings_of_one_answer_are_normalised_alike(one, other):
    assert normalize_answer(one) == normalize_answer(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4 2", "42"),
        ("1,2", "12"),
        ("1.5", "15"),
        ("-5", "5"),
        ("x y", "xy"),
        (r"\pi r", r"\pir"),
        ("(1,2)", "[1,2]"),
        ("(12)", "12"),
        (r"\frac{1}{12}", r"\frac{11}{2}"),
        (r"\sqrt{2}", r"\sqrt2x"),
        ("A,B", "AB"),
        ("a", "A"),
        ("x=1", "x=-1"),
    ],
)
def test_different_answers_stay_different(one, other):
    assert normalize_answer(one) != normalize_answer(other)


PIECES = ["\\boxed", "\\fbox", "\\text", "\\frac", "answer is", "\x00", "\ud800", *"\\{}$ #\nab12.,%()~!"]
TEX = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
BALANCED = st.recursive(
    st.sampled_from(["1", "x", r"\pi", r"\{", r"\\", "$", "\n"]),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=12,
)


@settings(max_examples=300)
@given(TEX)
def test_no_text_raises_and_normal_forms_are_clean(text):
    answer = extract_answer(text)
    extract_reference(text)
    assert answer is None or (answer and answer == answer.strip())
    normal = normalize_answer(text)
    assert normal == normal.strip()
    assert canonical_number(normal) in (None, normal)


@settings(max_examples=200)
@given(BALANCED, TEX)
def test_a_box_is_found_again_whatever_stands_before_it(content, before):
    assert last_boxed(before + r" \boxed{" + content + "}") == content.strip()


BOXES = [r"\boxed{", r"\boxed{1}", r"\boxed ", r"\boxed 1", r"\boxed{\text{", r"\text{", r"\text "]
WORDS = ["answer is ", "answer    ", "#### ", r"\frac 1", "a $ ", ", ", "9,"]


@pytest.mark.parametrize("unit", [*BOXES, *WORDS, *"{}\\.$(\n\x00"])
def test_half_a_megabyte_is_read_in_linear_time(unit):
    """Anything quadratic in here would take hours, not give a wrong value: the test ends or it does not."""
    noise = unit * (500_000 // len(unit))
    assert extract_answer(noise + "\n" + r"\boxed{42}") == "42"
    assert normalize_answer(noise + " z").endswith("z")
    assert (extract_answer(noise) == "1") == (unit in (r"\boxed{1}", r"\boxed 1"))


def test_marker_and_number_helpers():
    assert after_marker("a #### 1\n#### 2 \nrest", "####") == "2"
    assert after_marker("no marker", "####") is None
    assert canonical_number("1,234,567.00") == "1234567"
    assert canonical_number("12,34") is None


@given(st.integers(), st.integers(min_value=1, max_value=10**40), st.booleans())
def test_exact_values_are_those_of_the_fractions_module(numerator, denominator, slash):
    expected = Fraction(numerator, denominator)
    sign = "-" if numerator < 0 else ""
    tex = rf"{sign}\frac{{{abs(numerator)}}}{{{denominator}}}"
    assert exact_value(f"{numerator}/{denominator}" if slash else tex) == expected
    assert exact_value(rf"\frac{{{numerator}}}{{{denominator}}}") == expected
    assert exact_value(str(numerator)) == numerator


def test_what_is_no_plain_fraction_has_no_exact_value():
    for answer in [
        "",
        "-",
        "1/0",
        r"\frac{1}{0}",
        "0.5",
        "1/2/3",
        r"2\frac{1}{2}",
        "1,2",
        "x",
        "9" * 100,
        "\u0663",
    ]:
        assert exact_value(answer) is None


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the benchmark files are not here")


def rows(name):
    with (DATA / f"{name}.jsonl").open() as lines:  # not splitlines: some rows hold other line separators
        return [json.loads(line) for line in lines]


def box_by_counting(solution):
    """The last box of a well-formed solution, by counting braces; the bare form ends at its dollar."""
    tail = solution[solution.rindex("boxed") + len("boxed") :].lstrip()
    if not tail.startswith("{"):
        return tail[: tail.index("$")]
    depth = 0
    for end, character in enumerate(tail):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return tail[1:end].strip()
    raise AssertionError(solution)


@needs_data
def test_every_math_solution_with_an_answer_yields_it():
    missing = []
    for number, row in enumerate(rows("math_train")):
        reference = extract_reference(row["solution"])
        assert (reference or "") == box_by_counting(row["solution"])
        if reference is None:
            missing.append(number)
    assert missing == [5341, 5343], "the two solutions that end in an empty box, and no others"


@needs_data
def test_every_gsm8k_solution_yields_its_number():
    for row in rows("gsm8k_train"):
        assert extract_reference(row["answer"]) == re.search(r"#### (\S+)\Z", row["answer"])[1]


def test_statements_end_with_their_line_and_their_first_sentence():
    assert extract_answer("answer:\n5") == "5"
    assert extract_answer("The answer is 3. It is 4. Yes. No.") == "3"
    assert extract_answer("The answer is 3") == "3"
    assert extract_answer("The answer is **\nnothing") == "nothing"
    assert extract_answer("The answer is x\n$7$") == "x"


def test_a_box_at_the_very_beginning_counts():
    assert last_boxed(r"\boxed{1}") == "1"
    assert last_boxed(r"\boxed{1} \boxed{2") == "1"
