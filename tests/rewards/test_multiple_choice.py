import re
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rewards import MathReward, MixedReward, MultipleChoiceReward, Score


@pytest.mark.parametrize(
    "response",
    [
        r"(A) is tempting, but $\boxed{B}$.",
        r"\boxed{\text{B}}",
        r"\boxed{\text{(B)}}",
        r"\boxed{\mathrm{b}}",
        r"\boxed{(B)\ 42\text{ m}}",
        r"\boxed{B: 42}",
        r"\boxed{B)}",
        r"\boxed{A} is wrong, so \boxed{B}",
        "Answer: B",
        "**Answer:** B",
        "**Answer**: **(B)**",
        "ANSWER IS B",
        "The correct answer is (b).",
        "The answer is A? No, the answer is B because it is larger.",
        r"The final answer is $\mathrm{B}$",
        r"The answer is \textbf{(B)}.",
        "the correct choice is: B",
        "So the best option is B, not A.",
        "I compare all of them.\n\nB.",
        "I compare all of them.\n**B**\n",
        "(A) 1\n(B) 2\n(C) 3\n(D) 4\nSo it must be (B).",
        "Answer: Option B",
        "The answer is option (B).",
        "Answer: 'B'",
        'Answer: "B"',
        "Answer: “B”",
        "The answer is `B`.",
        "Answer - B",
        "Answer — (B)",
        "Answer -> B",
        "Answer → **B**",
        "The answer is therefore B.",
        "Answer: B, because A is wrong",
        "Answer: B, C is too large",
        "Answer: (B), since (A) is too small",
        "The answer is B and A is wrong.",
        "Answer: B or a guess",
        "Answer: B) 42",
        "Option B",
        "B. Paris",
        "**B.** Paris",
        "(B) Paris",
        "<answer>B. Paris</answer>",
        "<think>Is it A?</think>\n\nB) Paris",
        "The answer is certainly B.",
        '{"answer": "B"}',
        '```json\n{"final_answer": "B", "reason": "A is wrong"}\n```',
        "I compare all of them.\n\n'B'",
        r"\boxed{\text{Option B}}",
        r"\boxed{'B'}",
        r"\boxed{B: 20\text{ C}}",
        r"\boxed{B} and once more $\boxed{B}$",
        r"\boxed{B}. I have put my answer in \boxed as you asked.",
        r"\boxed{B}. (I used \boxed{} for the final answer.)",
        r"The answer is B. (I used \boxed{} for it.)",
        "Option B is correct.",
        "Hence, (B) is correct.",
        "**B** is therefore the right choice.",
        "So, B is correct, and A, C, D are wrong.",
        "A is correct only if x = 0, so B is correct.",
        "I choose B.",
        "I would go with option (B).",
        "#### B",
        "The final answer is \\(B\\).",
        "Answer：B",
        "The solution is B",
        "The answer is B (not A).",
        "The answer is B) 42, not C) 43",
        "The answer is B rather than C.",
        "I think the answer is B.",
        "I am sure that the answer is B.",
        "A is not right. The answer is B.",
        "It is (B), not (A).",
        "<think>Answer: A</think>Answer: B",
        "<think>Answer: A</think><answer>B</answer>",
        "Answer: A</think>\n\nB.",
    ],
)
def test_the_chosen_letter_is_found(response):
    assert MultipleChoiceReward()(response, "B") == Score(True, "B")
    assert MultipleChoiceReward()(response, "(B)").correct
    assert MultipleChoiceReward()(response, ("C", "B")).correct
    assert MultipleChoiceReward()(response, "A") == Score(False, "B")


@pytest.mark.parametrize(
    "response",
    [
        "",
        "A hard question.",
        "The answer is a guess.",
        "The answer is Boron.",
        "The answer is A's second value.",
        "Is it (A) 1 or (B) 2",
        "(A) 1 (B) 2 (C) 3 (D) 4",
        "Option A is wrong.",
        "A. 1\nB. 2\nC. 3\nD. 4",
        "The answer is B?",
        "B.5 times as many",
        r"The answer is B, so \boxed{42}",
        r"\boxed{A, B}",
        r"\boxed{A and B}",
        r"\boxed{(A) or (B)}",
        r"\boxed{}",
        r"The answer is B but \boxed{E}",
        "The answer is E.",
        "\x00\\boxed{",
        "Answer: B, C, D, A",
        "Answer: B, C",
        "Answer: B, C, or D.",
        "Answer: B; C",
        "Answer: B or C",
        "Answer: either B or C",
        "Answer: **B** or **C**",
        "Answer: (B) and (C)",
        "Answer: Options B and C",
        "Answer: Option B or option C",
        "Answer: B/C",
        "Answer: B & C",
        "Answer: B C D",
        "Answer: B-D",
        "Answer: B to D",
        "Answer: B) 12 C) 13",
        "The answer is 'B' or 'C'.",
        r"\boxed{B}, \boxed{C}",
        r"\boxed{(B) or C}",
        r"\boxed{B: 1, C: 2}",
        r"\boxed{B. C. D.}",
        "B or C",
        # Several, in other words.
        "The answer is B or maybe C.",
        "Answer: B (or C)",
        "Answer: B (maybe C)",
        "Answer: B and possibly D",
        "Answer: B, possibly C",
        "Answer: B?? or D",
        "Answer: B or, if x > 0, C",
        "Answer: (B) or else (C)",
        "Answer: B and/or C",
        "The answer is B as well as C",
        "Answer: B vs C",
        "Answer: B\\C",
        "Answer: B, D?",
        "The answer is B, but it could also be C.",
        "The answer is B if x > 0 and C otherwise",
        "Either (A) or (B) is correct.",
        "B or C is correct",
        "A, B is correct",
        "I choose B or C.",
        # Doubted, supposed or denied.
        "I am not sure whether the answer is B",
        "I do not think that the answer is B.",
        "I doubt that the correct answer is B.",
        "If the answer is B, then x = 2.",
        "The answer is B is wrong",
        "Suppose B is correct.",
        "B is correct if x > 0",
        "It is unclear whether B is correct.",
        "The answer is not (B)",
        "Not (B)",
        "(B)?",
        "<think>Answer: B</think>",
        "<think>Answer: B",
        r"<think>\boxed{B}</think> I do not know.",
    ],
)
def test_what_names_no_choice_is_no_answer(response):
    assert MultipleChoiceReward()(response, "B") == Score(False, None)


def test_ten_choices_are_as_good_as_four():
    reward = MultipleChoiceReward(choices="ABCDEFGHIJ")
    assert reward.score_batch([r"\boxed{J}", "Answer: I", "answer: (e)"], ["J", "I", "D"]) == [
        Score(True, "J"),
        Score(True, "I"),
        Score(False, "E"),
    ]


def test_a_megabyte_of_near_misses_is_read_to_its_end():
    noise = "answer is " * 50_000 + "(" * 50_000 + "\\boxed{A" * 50_000 + "answer" + " " * 500_000
    assert MultipleChoiceReward()(noise + "\nAnswer: C", "C") == Score(True, "C")


@pytest.mark.parametrize(
    "unit",
    [
        "*",
        " ",
        "\t",
        "* ",
        ".",
        "(",
        "(A",
        "A",
        "A*",
        "a\n",
        "\\boxed{A",
        "answer:",
        "option is (",
    ],
)
@pytest.mark.parametrize("length", [20_000, pytest.param(200_000, marks=pytest.mark.runs)])
def test_a_long_text_of_one_character_costs_no_more_than_its_length(unit, length):
    """Quadratic time would be hours. The last line decides, and it is no choice but where the noise is blank."""
    noise = unit * (length // len(unit))
    assert MultipleChoiceReward()(f"A{noise}x", "A").answer is None
    assert MultipleChoiceReward()(f"x{noise}x\n{noise}\nC.", "C") == Score(True, "C")


@pytest.mark.parametrize(
    "unit", ["answer: A, ", "A or ", " A", "A) ", "answer the ", "answer: A (", "<think>", "</think>"]
)
@pytest.mark.parametrize("length", [20_000, pytest.param(200_000, marks=pytest.mark.runs)])
def test_long_lists_are_read_to_their_end(unit, length):
    """Quadratic time would be hours."""
    noise = unit * (length // len(unit))
    assert MultipleChoiceReward()(f"{noise}</think>\nAnswer: C", "C") == Score(True, "C")
    MultipleChoiceReward()(f"answer: A{noise}", "A")


@given(st.text(st.sampled_from("ABDabx() \t*.)\n"), max_size=12))
def test_the_last_line_is_read_as_its_plain_pattern_reads_it(text):
    if re.match(r"[*(\s]*[ABCD][).][*]*\s", text.strip()):  # an option with its text: `B. Paris`
        return
    line = text.rstrip().rpartition("\n")[2]
    letters = {a or b for a, b in re.findall(r"\(([ABCD])\)|^[ \t*]*([ABCD])[ \t*]*[.)]?[ \t*]*$", line)}
    assert MultipleChoiceReward()(text, "C").answer == (letters.pop() if len(letters) == 1 else None)


def test_bad_settings_and_references_are_errors():
    with pytest.raises(ValueError, match="upper-case letters"):
        MultipleChoiceReward(choices="A-D")
    with pytest.raises(ValueError, match="among the choices"):
        MultipleChoiceReward()("Answer: A", "E")


@pytest.mark.parametrize("length", [10**5, pytest.param(10**6, marks=pytest.mark.runs)])
@pytest.mark.parametrize(
    ("before", "unit", "after"), [("A", "*", "x"), ("A", " \t*", "\nA*x"), ("answer ", "*", "")]
)
def test_endless_decoration_is_read_in_linear_time(before, unit, after, length):
    """It would be an hour if each star were tried as an end."""
    assert MultipleChoiceReward()(before + unit * length + after, "A") == Score(False, None)


@pytest.fixture(scope="module")
def mixed():
    with closing(MixedReward(MultipleChoiceReward(), MathReward(workers=1))) as reward:
        yield reward


def test_letters_are_scored_as_choices_and_the_rest_as_mathematics_in_place(mixed):
    responses = [
        r"\boxed{\text{(b)}}",
        r"\boxed{\sqrt{4}}",
        "The answer is (C).",
        r"\boxed{B: 2}",
        r"\boxed{3}",
    ]
    references = ["B", "2", ("A", "C"), "2", "A"]
    assert [score.correct for score in mixed.score_batch(responses, references)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_each_verdict_is_that_of_its_own_verifier(mixed):
    choice, free = MultipleChoiceReward(), mixed.free
    for response in (r"\boxed{B}", r"\boxed{C}", r"\boxed{1/2}", "nothing", "B."):
        assert mixed(response, "B") == choice(response, "B")
        assert mixed(response, "0.5") == free(response, "0.5")


def test_letters_beyond_the_choices_are_free_answers(mixed):
    assert mixed(r"\boxed{\text{E}}", "E") == Score(True, "E")
    assert mixed(r"\boxed{x}", "x").correct


def test_an_empty_batch_needs_no_verifier(mixed):
    assert mixed.score_batch([], []) == []


def test_score_async_does_not_wait_for_free_answers(monkeypatch):
    free = MathReward(workers=1)
    mixed, waits = MixedReward(MultipleChoiceReward(), free), []
    monkeypatch.setattr(
        free, "score_async", lambda *_: lambda: waits.append("free") or [Score(False, "x", "timeout")]
    )
    slow = mixed.score_async([r"\boxed{(1+x)^{1000000}}", r"\boxed{B}"], [r"x+\frac12", "B"])
    assert waits == []
    assert slow() == [Score(False, "x", "timeout"), Score(True, "B")]
    assert waits == ["free"]


def test_notes_on_references_are_those_of_free_answers():
    class Noting(MultipleChoiceReward):
        def reference_notes(self, reference):
            return ("noted", reference[0])

    mixed = MixedReward(MultipleChoiceReward(), Noting())
    assert mixed.reference_notes(("B",)) == ()
    assert mixed.reference_notes(("10_2",)) == ("noted", "10_2")
