"""Final answers behind a marker and of plain responses, each form against readings and verdicts written by hand."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rewards import FinalAnswerReward, PlainAnswerReward, Score
from tagrpo.rewards.canonical import canonical_number

NUMBER = PlainAnswerReward("number")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("36", "36"),
        ("12 times 3 is 36.", "36"),
        ("36\nI hope this helps!", "36"),
        ("The answer is 36, since 12 * 3 = 36.", "36"),
        ("Answer: 36\nBecause 12 times 3.", "36"),
        (r"Either 5 or \boxed{36}, not 7", "36"),
        ("#### 36", "36"),
        ("1,234,567.50", "1234567.5"),
        ("$12", "12"),
        ("10-7", "7"),
        ("3 - 10 = -7", "-7"),
        ("\N{MINUS SIGN}7", "-7"),
        ("72/2", "36"),
        ("3/4", "0.75"),
        ("1.5e3", "1500"),
        (".5", "0.5"),
        ("36 apples", "36"),
        ("x2", None),
        ("no idea", None),
        ("", None),
        (r"\boxed{no} 36", None),
        # What is stated, not what it is compared with or derived from.
        ("The answer is 42, which is 50% more than 28.", "42"),
        ("Answer: 42 apples (3 bags of 14)", "42"),
        ("Answer: x = 42 (from 84 / 2)", "42"),
        ("#### 42 (6 * 7)", "42"),
        (r"\boxed{42\text{ (3 bags of 14)}}", "42"),
        ("The answer is about $1,042.50, 3 times 347.5", "1042.5"),
        ("The answer is **42** apples, not 43", "42"),
        ("The answer is 42 out of 100.", "42"),
        (r"Answer: \frac{3}{4} of 100", "0.75"),
        ("The final answer is $42$ dollars for 3 people", "42"),
        ("Answer: 3 + 4 = 7", "7"),
        ("Answer: 3 + 4 = 7, 50% more than 4.67", "7"),
        ("Answer: 3 dozen = 36", "36"),
        ("Answer: 12 * 3 is 36", "36"),
        ("The answer is the sum of 3 and 4, 7.", "7"),
        ("The answer is twice 21, which is 42.", "42"),
        ("The answer is that Tom has 42 apples, which is 50% more than 28.", "42"),
        ("Tom has 42 apples, which is 50% more than 28.", "42"),
        ("There are 42 apples (3 bags of 14).", "42"),
        ("12 is 3 * 4", "4"),
        ("#### Step 3\nThe answer is 72.", "72"),
        (r"\boxed{36}. I used \boxed{} as you asked, 1 time.", "36"),
        ("<think>The answer is 3.</think>\n42", "42"),
        ("<answer>42</answer>", "42"),
        ("<think>The answer is 3.", None),
        ("Answer: 42 = 6 * 7", "42"),
        ("Answer: 42 = 6 * 7 = 42", "42"),
        ("The answer is 1 000 000.", "1000000"),
        # Numbers that are spelled with scales, powers, fractions or signs.
        ("The answer is 4 thousand.", "4000"),
        ("It costs $2.5 million.", "2500000"),
        ("The answer is 4 hundred thousand.", "400000"),
        ("The answer is 2 dozen eggs.", "24"),
        ("The answer is 10^3.", "1000"),
        (r"The answer is $4 \times 10^{3}$.", "4000"),
        (r"The answer is 4 \times 10^{-3}", "0.004"),
        ("The answer is 5^2.", "25"),
        ("The answer is 25 = 5^2.", "25"),
        ("The answer is 3 1/2.", "3.5"),
        ("The answer is 3½ cups.", "3.5"),
        ("The answer is ½.", "0.5"),
        (r"\boxed{2\frac{1}{4}}", "2.25"),
        ("The answer is negative 6.", "-6"),
        ("The answer is –6.", "-6"),
        ("Answer: 10 minus 4, so 6.", "6"),
        ("The answer is 0^0.", "0"),
        ("The answer is 3 hours 20 minutes.", None),
        (r"\boxed{3\text{ hours }20\text{ minutes}}", None),
        # Several numbers are no answer, and denied ones do not count.
        ("The answer is 42 or 43.", None),
        ("The answer is 42 apples or maybe 43 apples.", None),
        ("The answer is either 42 or 43.", None),
        ("The answer is between 42 and 43.", None),
        ("Answer: 42, 43", None),
        ("Answer: 42-43", None),
        ("Answer: 42 to 43", None),
        (r"\boxed{42 \text{ or } 43}", None),
        ("The answer is not 42.", None),
        ("The answer is not 42 but 43.", "43"),
        ("The answer is: 42 (not 43).", "42"),
        ("The answer is 42, 3 times 14.", "42"),
        ("The answer is 42 and the remainder is 3.", "42"),
        ("The answer is 42 to the nearest 10.", "42"),
        ("The answer is 42, and 3 of them are red.", "42"),
        ("I am not sure whether the answer is 42.\n43", "43"),
    ],
)
def test_the_number_of_a_response(response, answer):
    assert NUMBER(response, "0").answer == answer


def test_numbers_are_equal_in_value_and_in_nothing_else():
    assert all(
        NUMBER(text, "1000").correct for text in ("1000.0", "1,000", "1e3", "2000/2", "+1000", "01000")
    )
    assert not any(
        NUMBER(text, "1000").correct for text in ("1000.1", "-1000", "100", "10000", "1000/7", "1 000 1")
    )
    assert NUMBER("0.75", "3/4").correct
    assert NUMBER("5", ("4", "5")).correct


@pytest.mark.parametrize(
    ("spellings", "vote"),
    [
        (["1/2", "0.5", ".50", "2/4", r"\boxed{\frac{1}{2}}", "5e-1"], "0.5"),
        (["4", "4.0", "8/2", "+4", "04"], "4"),
        (["1/3", "2/6", "3/9"], "1/3"),
        (["-7/8", "-0.875"], "-0.875"),
        (["0", "-0", "0.0", "0/7"], "0"),
        (["1e-30", "0." + "0" * 29 + "1"], "0." + "0" * 29 + "1"),
    ],
)
def test_equal_numbers_are_one_vote(spellings, vote):
    assert {NUMBER(text, "9").answer for text in spellings} == {vote}
    assert PlainAnswerReward("multiset")(f"[{', '.join(spellings[:2])}]", "9").answer == f"{vote} {vote}"


@given(st.fractions(max_denominator=10**6))
def test_a_vote_is_equal_to_its_number(value):
    answer = NUMBER(f"Answer: {value}", "9").answer
    assert Fraction(answer) == value
    assert NUMBER(f"Answer: {answer}", "9").answer == answer


@pytest.mark.parametrize(
    "text", ["12:30", "4 or 5", "between 4 and 5", "1 000", "1/0", "{'value': '4'}", "['4']"]
)
def test_a_reference_is_one_number(text):
    with pytest.raises(ValueError, match="form `number`"):
        NUMBER.check_reference(text)


@pytest.mark.parametrize(
    "text", ["4", "-4.5", "1,000", "1/2", "$4", "4 apples", "x = 4", r"\frac{1}{2}", "4 (2 bags of 2)"]
)
def test_a_number_with_a_name_is_a_reference(text):
    NUMBER.check_reference(text)


def test_digits_leave_half_a_unit_of_the_last_one():
    reward = PlainAnswerReward("number", digits=3)
    assert all(reward(text, "0.3125").correct for text in ("0.3125", "0.313", "0.312", "5/16"))
    assert not any(reward(text, "0.3125").correct for text in ("0.311", "0.314", "0.3", "3.125"))
    # A reference with fewer digits is as exact as it is written; a whole number of three digits is itself alone.
    assert reward("0.504", "0.5").correct
    assert not reward("0.56", "0.5").correct
    assert not reward("5.01", "5").correct
    assert reward("897000000000", "897303639322.6414").correct
    assert not reward("898000000000", "897303639322.6414").correct


def test_numbers_in_order_and_in_any_order():
    ordered, any_order = PlainAnswerReward("numbers"), PlainAnswerReward("multiset")
    assert ordered("Sorted: ['1', '2.0', '3']", "1 2 3").correct
    assert ordered("The three numbers are: 1, 2, 3", "1 2 3").correct
    assert not ordered("3 2 1", "1 2 3").correct
    assert not ordered("1 2", "1 2 3").correct
    assert ordered("[]", "[]").correct
    assert not ordered("nothing", "[]").correct
    assert any_order("12 = 3 × 2 × 2", "2 × 2 × 3").correct
    assert not any_order("2 × 3", "2 × 2 × 3").correct
    assert not any_order("12", "2 × 2 × 3").correct
    assert PlainAnswerReward("multiset", digits=3)("1.972, -0.776", "-0.7757, 1.9717").correct


def test_the_last_word_and_the_last_match():
    word = PlainAnswerReward("word")
    assert word("It was a **Friday**.", "Friday").correct
    assert word("mother-in-law", "mother-in-law").answer == "mother-in-law"
    assert not word("Friday or Monday", "Friday").correct
    assert word("-0x3f", "-0x3F").correct
    fraction = PlainAnswerReward("word", pattern=r"(\d+)(?:\s?/|\s?\}\s?\{)\s?(\d+)")
    assert fraction(r"4/8 is $\frac{1}{2}$", "1/2").correct
    assert not fraction("2/4", "1/2").correct, "not in lowest terms"
    assert not fraction("11/2", "1/12").correct


def test_marks_of_an_answer_are_no_words():
    word, numbers = PlainAnswerReward("word"), PlainAnswerReward("numbers")
    assert word("<think>Monday</think><answer>Friday</answer>", "Friday").answer == "friday"
    assert numbers(r"$\boxed{2}$, $\boxed{3}$ and $\boxed{5}$", "2 3 5").correct


def test_a_set_counts_every_match_so_that_nobody_hedges():
    choice = PlainAnswerReward("set", pattern=r"\b(?:yes|no)\b")
    assert choice("Yes, it follows.", "Yes").correct
    assert not choice("Yes or no", "Yes").correct
    assert choice("It depends.", "Yes").answer is None
    people = PlainAnswerReward("set", pattern=r"\b(\w+) (is) an? (\w+)")
    assert people("Zoe is a knave and Amy is a knight", "Amy is a knight, and Zoe is a knave.").correct
    assert not people("Amy is a knave, and Zoe is a knight", "Amy is a knight, and Zoe is a knave.").correct
    groups = PlainAnswerReward("set", pattern=r"\[([^\[\]]*)\]")
    assert groups('[["tea", "eat"], ["tan"]]', '[["tan"], ["eat", "tea"]]').correct
    assert not groups('[["tea"], ["eat", "tan"]]', '[["tan"], ["eat", "tea"]]').correct


def test_the_line():
    text = PlainAnswerReward("text")
    assert text('"Alpha,beta , gamma."', "alpha, beta, gamma").correct
    assert text("Let me see.\n\nalpha  beta\n", "Alpha beta").correct
    assert not text("alphabeta", "Alpha beta").correct
    assert not text("beta, alpha", "alpha, beta").correct


def test_a_grid_is_the_last_block_without_words():
    grid = PlainAnswerReward("grid")
    assert grid("Input was:\n9 9\n9 9\nThe output is:\n1 2\n3 4\nThat is all.", "1 2\n3 4").correct
    assert grid("[[1, 2],\n [3, 4.0]]", "1 2\n3 4").correct
    assert grid("[[1,2],[3,4]]", "1 2\n3 4").correct
    assert grid("```\n1   2\n    ∨\n3 > 4\n```", "1 < 2\n\n3   4").correct
    assert grid("_ Q\nQ _", "_ Q\nQ _").correct
    for wrong in ("1 2 3 4", "1 2\n4 3", "1 2", "12\n34", "no grid at all"):
        assert not grid(wrong, "1 2\n3 4").correct


@pytest.mark.parametrize("form", ["number", "numbers", "multiset", "word", "set", "text", "grid"])
def test_nothing_is_evaluated_and_nothing_takes_long(form, tmp_path):
    reward = PlainAnswerReward(form, digits=3 if form == "number" else None)
    trap = tmp_path / "trap"
    hostile = [
        f"__import__('pathlib').Path({str(trap)!r}).write_text('x')",
        "[" * 100_000, "9" * 100_000, "1,111" * 50_000, "1/" * 100_000, "1/0", "1e999", "9e-999", "9**9**9**9",
        "a" * 100_000, " " * 100_000, "- " * 50_000, "= " * 50_000, "\\boxed{" * 20_000, "\ufdfa" * 50_000, "٣",
        "½", "\x00",
        "#### " * 30_000, "answer is " * 30_000, "\n".join("1" * 30_000),
    ]  # fmt: skip
    for response in hostile:
        assert not reward(response, "7").correct
    assert not trap.exists()


def test_a_form_is_checked_and_so_are_references():
    with pytest.raises(ValueError, match="`form`.*'sonnet'"):
        PlainAnswerReward("sonnet")
    NUMBER.check_reference("5")
    with pytest.raises(ValueError, match="`number`.*'five'"):
        NUMBER.check_reference(("5", "five"))


def test_it_travels_to_other_processes():
    assert pickle.loads(pickle.dumps(PlainAnswerReward("multiset", digits=2)))("3 2", "2 3").correct


def test_a_fraction_in_latex_is_one_number():
    assert NUMBER(r"It is \boxed{\frac{3}{4}}", "3/4").correct
    assert NUMBER(r"It is \boxed{-\dfrac{3}{4}}", "-0.75").correct
    assert not NUMBER(r"\boxed{\frac{1}{2}}", "2").correct


def test_digits_count_in_fractions_too():
    assert PlainAnswerReward("number", digits=3)("It is 1/3", "1/3").correct
    assert not PlainAnswerReward("number", digits=3)("It is 2/3", "1/3").correct


def test_a_group_that_matches_nothing_is_empty():
    assert PlainAnswerReward("word", pattern=r"(yes)|(no)")("Well, no", "no").correct
    assert not PlainAnswerReward("word", pattern=r"(yes)|(no)")("Well, yes", "no").correct


@pytest.mark.parametrize(
    ("response", "reference", "answer"),
    [
        ("3 + 24 = 27 #### 27", "27", "27"),
        ("#### 1,000", "1000", "1000"),
        ("#### $1000.00", "1,000", "1000"),
        ("#### 18.", "18", "18"),
        ("#### 007", "7", "7"),
        ("#### -0", "0", "0"),
        ("#### 50%", "50", "50"),
        ("#### .5", "0.50", "0.5"),
        ("#### 3\nThat is all, 4 times checked.", "3", "3"),
        ("####\n12", "12", "12"),
        ("#### 5 #### 6", "6", "6"),
        ("#### Paris", "Paris", "Paris"),
        ("#### 2", ("1", "2"), "2"),
        ("<think>#### 1</think>\n#### 2", "2", "2"),
        ("#### 1</think>\n#### 2", "2", "2"),
    ],
)
def test_equal_answers_are_correct(response, reference, answer):
    assert FinalAnswerReward()(response, reference) == Score(True, answer, None)


@pytest.mark.parametrize(
    ("response", "reference", "answer"),
    [
        ("#### 4 2", "42", "4 2"),
        ("#### 27 apples", "27", "27 apples"),
        ("<think>#### 27</think>", "27", None),
        ("<think>#### 27", "27", None),
        ("#### -27", "27", "-27"),
        ("#### 27.5", "27", "27.5"),
        ("#### 2,7", "27", "2,7"),
        ("#### 6 #### 5", "6", "5"),
        ("the answer is 27", "27", None),
        ("####", "27", None),
        ("#### \n ", "27", None),
        ("", "27", None),
        ("#### \u0662\u0667", "27", "\u0662\u0667"),
        ("#### paris", "Paris", "paris"),
    ],
)
def test_anything_else_is_wrong(response, reference, answer):
    assert FinalAnswerReward()(response, reference) == Score(False, answer, None)


def test_a_batch_is_the_single_scores_in_order():
    reward = FinalAnswerReward(marker="Answer:")
    assert reward.score_batch(["Answer: 1", "Answer: 2"], ["1", ("3", "4")]) == [
        Score(True, "1"),
        Score(False, "2"),
    ]
    with pytest.raises(ValueError, match="shorter"):
        reward.score_batch(["Answer: 1", "Answer: 2"], ["1"])


def test_a_number_of_a_million_digits_is_compared_exactly():
    digits = "9" * 1_000_000
    assert FinalAnswerReward()(f"#### {digits}", digits).correct
    assert not FinalAnswerReward()(f"#### {digits[:-1]}8", digits).correct


def test_nothing_to_compare_with_is_an_error():
    with pytest.raises(ValueError, match="one reference"):
        FinalAnswerReward()("#### 1", ())
    with pytest.raises(ValueError, match="marker"):
        FinalAnswerReward(marker="")
    with pytest.raises(ValueError, match="final answer"):
        FinalAnswerReward().check_reference("{'value': '4'}")


def test_canonical_numbers_agree_with_exact_fractions():
    for text in ["0", "00.10", "-3.1400", "+5", "12,345,678.90", ".25", "9."]:
        canonical = canonical_number(text)
        assert canonical is not None
        assert Fraction(canonical) == Fraction(text.replace(",", "").removesuffix("."))
        assert canonical_number(canonical) == canonical


@pytest.mark.parametrize("scale", ["hundred", "trillion"])
@pytest.mark.parametrize("count", [1, 4, 10, 500, 880])
def test_a_number_with_many_scales_is_read_exactly_or_not_at_all(scale, count):
    score = PlainAnswerReward("number")(f"The answer is 2.5{f' {scale}' * count}.", "4")
    value = Fraction(5, 2) * {"hundred": 100, "trillion": 10**12}[scale] ** count
    assert score.failure is None
    assert score.answer is None or Fraction(score.answer) == value
    assert (score.answer is None) == (value > 10**60)
