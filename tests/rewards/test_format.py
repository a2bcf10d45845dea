"""Format rewards of the 13 templates against responses whose markers are counted by hand."""

from __future__ import annotations

import pytest

from tagrpo.rewards.terms import MARKERS, TemplateFormatTerm, format_reward

LINES = "<think>\n1 + 1\n</think>\n\n<answer>\n\\boxed{2}\n</answer>"
INLINE = "<think>1 + 1</think> <answer>\\boxed{2}</answer>"
CHECKED = "<solution>\n2\n</solution>\n\n<check>\nLet's verify step by step: 2.\n</check>\n\\boxed{2}"
STATED = "1 + 1 = 2.\nThe final answer is: \\boxed{2}"
PLAIN = "1 + 1 = \\boxed{2}"
FREE = ("abel", "lm_eval_prompt8", "simplerl", "qwen-math", "formal")


@pytest.mark.parametrize(
    ("response", "earned"),
    [
        # Template → reward in quarters or thirds of the tags that occur exactly once.
        (LINES, {"open-r1": 1, "open-r1-teacher": 1, "deepseek-r1": 1, "deepseek-r1-teacher": 1}),
        # Tags without lines of their own are deepseek-r1's, not open-r1's.
        (INLINE, {"open-r1": 0, "open-r1-teacher": 0, "deepseek-r1": 1, "deepseek-r1-teacher": 1}),
        # What the teacher's turn begins with is not in its response: all it owes is there, the student lacks one.
        (
            LINES.removeprefix("<think>\n"),
            {"open-r1": 3 / 4, "open-r1-teacher": 1, "deepseek-r1": 3 / 4, "deepseek-r1-teacher": 1},
        ),
        # A tag that comes twice earns nothing; the others do.
        (LINES + "\n</answer>", {"open-r1": 3 / 4, "open-r1-teacher": 2 / 3, "deepseek-r1": 3 / 4}),
        # Cut off while thinking.
        (
            "<think>\n1 + 1 is",
            {"open-r1": 1 / 4, "open-r1-teacher": 0, "deepseek-r1": 1 / 4, "deepseek-r1-teacher": 0},
        ),
        # Order is not checked.
        ("</answer><answer></think><think>", {"deepseek-r1": 1, "deepseek-r1-teacher": 1}),
        # One line break serves two tags: the blank line may be left out.
        ("<think>\n1\n</think>\n<answer>\n2\n</answer>", {"open-r1": 1, "open-r1-teacher": 1}),
        (CHECKED, {"reflective_prompt": 1, "reflective_prompt-teacher": 1, "open-r1": 0}),
        (CHECKED.removeprefix("<solution>\n"), {"reflective_prompt": 3 / 4, "reflective_prompt-teacher": 1}),
        # The check must open with its phrase.
        (
            CHECKED.replace("Let's verify step by step", "It is right"),
            {"reflective_prompt": 3 / 4, "reflective_prompt-teacher": 2 / 3},
        ),
        (STATED, {"lm_eval_prompt1": 1, "lm_eval_prompt4": 1}),
        (STATED + STATED, {"lm_eval_prompt1": 0, "lm_eval_prompt4": 0}),
        (STATED.lower(), {"lm_eval_prompt1": 0, "lm_eval_prompt4": 0}),
        (PLAIN, {name: 1 if name in FREE else 0 for name in MARKERS}),
        ("", {name: 1 if name in FREE else 0 for name in MARKERS}),
    ],
)
def test_tags_earn_their_share_when_they_occur_exactly_once(response, earned):
    assert {name: format_reward(response, MARKERS[name]) for name in earned} == pytest.approx(
        earned, abs=1e-12
    )


def test_what_overlaps_is_counted_without_overlap():
    # As Python and the authors count: "aa" occurs once in "aaa".
    assert format_reward("aaa", ("aa",)) == 1.0
    assert format_reward("aaaa", ("aa",)) == 0.0


def test_an_empty_marker_is_refused():
    with pytest.raises(ValueError, match="not empty"):
        TemplateFormatTerm(markers={"own": ["<think>", ""]})
