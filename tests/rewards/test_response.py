r"""Responses are split into thoughts and answer: marks of each model, whole and cut, with and without the first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tagrpo.rewards import FinalAnswerReward, MathReward, MultipleChoiceReward, PlainAnswerReward
from tagrpo.rewards.extraction import extract_answer, extract_answers
from tagrpo.rewards.response import (
    THOUGHT_MARKS,
    THOUGHT_TAGS,
    ResponseParts,
    last_answer_block,
    opening_marks,
    opens_thoughts,
    split_response,
    without_answer_marks,
)

HARMONY = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
SPELLINGS = [
    ("<think>", "</think>"),
    ("<THINK>", "</THINK>"),
    ("<think:a1b2>", "</think:a1b2>"),
    ("<think_fast>", "</think_fast>"),
    ("<think_faster>", "</think_faster>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<Thought>", "</Thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<scratchpad>", "</scratchpad>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<unused94>thought\n", "<unused95>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<start_working_out>", "<end_working_out>"),
    ("<|im_start|>think\n", "<|im_start|>answer\n"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]\n"),  # opens a thought if it is closed
    HARMONY,
    ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|channel|>final<|message|>"),
    ("<analysis>", "</analysis>"),
    ("<reflection>", "</reflection>"),
    ("<|think|>", "<|/think|>"),
    ("<|thinking|>", "</thinking|>"),
    ("<|think|>", "<|end|><|begin|>assistant<|content|>"),
    ("< think >", "</ think >"),
]
"""An opening and a closing mark of each kind."""


def test_every_kind_of_mark_is_spelled_in_these_tests():
    spelled = " ".join(
        opening + " " + closing for opening, closing in [*SPELLINGS, ("analysisWe", "assistantfinal")]
    )
    tags = {tag.lower() for tag in re.findall(r"<([\w:]+)>", spelled)}
    assert not [tag for tag in THOUGHT_TAGS if not any(re.fullmatch(tag, found) for found in tags)]
    for kind, (opening, closing) in THOUGHT_MARKS.items():
        assert opening is None or kind == "harmony_text" or any(re.match(opening, o) for o, _ in SPELLINGS), (
            kind
        )
        assert re.search(closing, spelled), kind


@pytest.mark.parametrize(("opening", "closing"), SPELLINGS)
def test_what_stands_between_marks_is_no_answer(opening, closing):
    parts = split_response(f"{opening}Try \\boxed{{4}}.{closing}The answer is 5.")
    assert (parts.thoughts, parts.answer, parts.finished) == ("Try \\boxed{4}.", "The answer is 5.", True)


@pytest.mark.parametrize(("opening", "closing"), SPELLINGS)
def test_the_opening_mark_may_stand_in_the_prompt(opening, closing):
    parts = split_response(f"Try \\boxed{{4}}.{closing}The answer is 5.")
    assert (parts.thoughts, parts.answer, parts.finished) == ("Try \\boxed{4}.", "The answer is 5.", True)
    assert opens_thoughts(f"Question\n{opening}")


@pytest.mark.parametrize(("opening", "closing"), SPELLINGS)
def test_a_thought_that_was_cut_has_no_answer(opening, closing):
    if opening.startswith("Here are"):  # an opening that other models write, too
        opening = "<think>"
    parts = split_response(f"{opening}Perhaps \\boxed{{4}}. The answer is 4. Let me")
    assert (parts.answer, parts.finished) == ("", False)
    assert extract_answer(f"{opening}Perhaps \\boxed{{4}}. The answer is 4. Let me") is None
    # Cut again after a first thought.
    again = split_response(f"{opening}a{closing}It is 5.\n{opening}Or \\boxed{{4}}")
    if closing != "[BEGIN FINAL RESPONSE]\n":
        assert (again.answer, again.finished) == ("It is 5.", False)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # gpt-oss, with its special tokens and without.
        (f"{HARMONY[0]}a<|end|><|start|>assistant{HARMONY[0]}b{HARMONY[1]}5<|return|>", "5<|return|>"),
        ("analysisWe try 4.assistantfinalIt is 5.", "It is 5."),
        ("analysisWe try 4.assistantcommentaryOnce more.assistantfinalIt is 5.", "It is 5."),
        ("analysisWe try \\boxed{4}", ""),
        ("<|channel|>final<|message|>It is 5.", "It is 5."),
        # Granite 3.2 writes sentences, which count as a pair alone.
        ("Here is my thought process:\nTry 4.\nHere is my response:\nIt is 5.", "It is 5."),
        ("Here's my thought process:\nTry 4.\n\nHere's my response:\nIt is 5.", "It is 5."),
        ("Here is my thought process:\nIt is 5.", "Here is my thought process:\nIt is 5."),
        ("Here is my response:\nIt is 5.", "Here is my response:\nIt is 5."),
        # Ends of turns are no ends of thoughts.
        ("It is 5.<|end|>", "It is 5.<|end|>"),
        # Nested and repeated.
        ("<think>a<think>b</think>c</think>It is 5.", "It is 5."),
        ("<think>I write <think> first.</think>It is 5.", "It is 5."),
        ("<think>a <reasoning>b</reasoning> c</think>It is 5.", "It is 5."),
        ("<think>a <reasoning>b</reasoning> \\boxed{4}", ""),
        ("<think>a</think>It is 5.<think>b</think>I am sure.", "It is 5.\nI am sure."),
        ("<think>a</think><think>b</think>It is 5.", "It is 5."),
        ("<think>\n<think>\na</think>It is 5.", "It is 5."),
        ("<think>\n\n</think>\n\nIt is 5.", "It is 5."),
        ("<think></think>", ""),
        ("a</think>b</think>It is 5.", "It is 5."),
        ("<think>a</think>It is 5.</think>", "It is 5."),
        ("<think>a</think>It is 5.</think>I am sure.", "It is 5.\nI am sure."),
        ("<think>a</think>It is 5.</think>I am</think> sure.", "It is 5.\nI am\nsure."),
        # Marks that do not match.
        ("<thinking>a</think>It is 5.", "It is 5."),
        ("<think>a</thought>It is 5.", "It is 5."),
        # Text before a thought is answer.
        ("Sure.\n<think>a</think>It is 5.", "Sure.\nIt is 5."),
        ("Okay. <think>Perhaps \\boxed{4}. Let me", "Okay."),
        ("Let me see <think>Perhaps \\boxed{4}.", "Let me see"),
        ("Let me see <think> perhaps \\boxed{4}.", "Let me see"),
        ("We try \\boxed{4} </think> so it is 5.", "so it is 5."),
    ],
)
def test_answers_stand_outside_of_thoughts(text, answer):
    assert split_response(text).answer == answer


@pytest.mark.parametrize(
    "text",
    [
        "It is 5. I did not use <think> here.",
        "I need no <think> for this: it is 5.",
        "I need no `<think>` for this: it is 5.",
        'The marks "<think>" and "</think>" are not needed. It is 5.',
        "It is 5 (<think> was not needed).",
        "It is 5. There was nothing to put before </think>.",
        "It is 5. Without (</think>) it would be cut.",
        "It is 5. (No </think> needed.)",
        "The tag <think> begins a thought. It is 5.",
        "I wrote <think> as asked: it is 5.",
        "x <thinker> y </thinker>",
        "a < b > c, [THINKING], think, analysis: We",
        "",
        "<",
        "</",
    ],
)
def test_marks_in_prose_take_no_answer_away(text):
    assert split_response(text) == ResponseParts("", text, True)


@pytest.mark.parametrize(
    ("text", "answer", "finished"),
    [
        ("<think>1 + 1 <answer>\\boxed{2}</answer>", "<answer>\\boxed{2}</answer>", True),
        ("<think>1 + 1\n<answer>\n\\boxed{2}", "<answer>\n\\boxed{2}", True),
        ("<think>\\boxed{3}? <answer>2</answer> \\boxed{4}", "<answer>2</answer>", True),
        ("<think>I write <answer> later. \\boxed{4}", "", False),
        ("<think>I write <answer></answer> later. \\boxed{4}", "", False),
        (
            "<|START_THINKING|>a\n<|START_RESPONSE|>2<|END_RESPONSE|>",
            "<|START_RESPONSE|>2<|END_RESPONSE|>",
            True,
        ),
    ],
)
def test_an_answer_in_marks_ends_a_thought_that_was_not_closed(text, answer, finished):
    parts = split_response(text)
    assert (parts.answer, parts.finished) == (answer, finished)


def test_a_prompt_that_opened_a_thought_decides_what_a_response_without_marks_is():
    text = r"Perhaps \boxed{4}. Let me"
    assert split_response(text, opened=True, truncated=True).answer == ""
    assert not split_response(text, opened=True, truncated=True).finished
    assert (
        split_response(text, opened=True)
        == split_response(text, truncated=True)
        == ResponseParts("", text, True)
    )
    block = "Two. <answer>2</answer> And so on"
    assert split_response(block, opened=True, truncated=True).answer == "<answer>2</answer>"
    # A closing mark after the one that ends the prompt's thought is one too many.
    assert (
        split_response("4?</think>It is 5.</think>I am sure.", opened=True).answer == "It is 5.\nI am sure."
    )
    # What stands before a thought of its own belongs to the thought that the prompt opened.
    assert split_response("4? <think>a</think>It is 5.", opened=True).answer == "It is 5."
    assert split_response("4?</think>. It is 5.", opened=True).answer == ". It is 5."


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("1 + 1 = <think>", True),
        ("<|im_start|>assistant\n<think>\nOkay, so", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("Put your thoughts after <think>.\n1 + 1<|im_end|>\n<|im_start|>assistant\n", False),
        ("<think> the reasoning </think> <answer> the answer </answer>\n1 + 1", False),
        ("Begin with\n<think>\n[/INST]", False),
        ("1 + 1", False),
        ("", False),
    ],
)
def test_a_prompt_opens_thoughts_if_its_last_mark_does(prompt, opens):
    assert opens_thoughts(prompt) is opens


def test_opening_marks_are_found_as_they_are_spelled():
    for opening, closing in SPELLINGS:
        assert opening_marks(f"a\n{opening}b{closing}\n{opening}") == [opening.strip()] * 2
    assert opening_marks("`<think>` and </think>") == []


PIECES = [*(mark for pair in SPELLINGS for mark in pair), "<|end|>", "<answer>", "</answer>"]
PIECES += [
    "Here is my thought process:",
    "Here is my response:",
    "assistantfinal",
    "\x00",
    "\ud800",
    *"<>/|[]`'\"(). \nab",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@settings(max_examples=15 * settings.default.max_examples, deadline=None)
@given(TEXTS)
@example("<think>a</think></think>. b")
@example("<think>a</think>b</think>")
def test_splitting_an_answer_again_changes_nothing(text):
    parts = split_response(text)
    assert split_response(parts.answer).answer == parts.answer
    assert extract_answers(parts.answer) == extract_answers(text)


@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(TEXTS, st.booleans(), st.booleans())
def test_every_line_of_an_answer_stands_in_its_response_in_the_same_order(text, opened, truncated):
    parts = split_response(text, opened=opened, truncated=truncated)
    position = 0
    for line in parts.answer.splitlines(keepends=False):
        found = text.find(line, position)
        assert found >= 0
        position = found + len(line)


UNITS = [
    "<think>",
    "</think>",
    "x <think> ",
    "<think>a</think>b",
    "<answer>",
    "\n<answer>a",
    "`<think>`",
    "<|channel|>",
]
UNITS += [
    "<|end|>",
    "Here is my response:\n",
    "<|channel|>analysis",
    " ",
    "<",
    "<think>\n<answer>a</answer>",
    "[THINK]a",
]


@pytest.mark.parametrize("length", [20_000, pytest.param(100_000, marks=pytest.mark.runs)])
@pytest.mark.parametrize("unit", UNITS)
def test_a_long_text_is_split_in_linear_time(unit, length):
    """Anything quadratic in here would take hours, not give a wrong value: the test ends or it does not."""
    noise = unit * (length // len(unit))
    parts = split_response(f"{noise}</think></think:x><think>a</think>It is 5.")
    assert parts.answer.endswith("It is 5.") or unit == "[THINK]a"
    split_response(noise, opened=True, truncated=True)


def test_the_text_between_marks_of_an_answer():
    assert last_answer_block("<answer>1</answer> or <answer> 2 </answer> <answer>3") == "2"
    assert last_answer_block("<answer> </answer>") is None
    assert last_answer_block("2</answer>") is None
    assert without_answer_marks("a<answer>b</answer>") == "a\n\f\nb\n\f\n"


VERIFIERS = [
    (MultipleChoiceReward(), "Answer: B", "Answer: C", "B"),
    (PlainAnswerReward("number"), "The answer is 4.", "The answer is 5.", "4"),
    (PlainAnswerReward("word"), "north", "south", "north"),
    (FinalAnswerReward(), "#### 4", "#### 5", "4"),
]


@pytest.mark.parametrize(("verifier", "right", "wrong", "reference"), VERIFIERS)
@pytest.mark.parametrize(("opening", "closing"), SPELLINGS[:1] + SPELLINGS[14:18])
def test_verifiers_read_the_answer_alone(verifier, right, wrong, reference, opening, closing):
    assert verifier(f"{opening}{wrong}{closing}\n{right}", reference).correct
    assert verifier(f"{wrong}{closing}\n{right}", reference).correct
    assert not verifier(f"{opening}{right}{closing}\n{wrong}", reference).correct
    assert verifier(f"{opening}{right}{closing}", reference).answer is None
    assert verifier(f"{opening}{right}", reference).answer is None


@pytest.mark.parametrize(
    ("response", "reference", "correct"),
    [
        (r"<think>Perhaps \boxed{4}. Let me check", "4", False),
        (r"<think>Try \boxed{4}</think> The answer is 5.", "4", False),
        (r"<think>\boxed{4} \boxed{5}</think> Answer: 4", "4", True),
        (r"<think>\boxed{5}</think>\boxed{4}", "5", False),
        (r"Try \boxed{4}</think> The answer is 5.", "4", False),
        (r"Try \boxed{4}</think> The answer is 5.", "5", True),
    ],
)
def test_a_box_in_thoughts_is_no_answer_of_mathematics(response, reference, correct):
    with MathReward(workers=1) as reward:
        assert reward(response, reference).correct is correct


def templates():
    """The 13 reasoning templates of prompt augmentation, with what is pre-filled."""
    option = Path(__file__).parents[2] / "configs" / "template" / "prompt_augmentation_paper.yaml"
    found = yaml.safe_load(option.read_text(encoding="utf-8"))["templates"]
    return {name: settings.get("prefill", "") for name, settings in found.items()}


LAYOUTS = {
    "open-r1": "<think>\n1 + 1\n</think>\n<answer>\n\\boxed{2}\n</answer>",
    "deepseek-r1": "<think>1 + 1</think> <answer>\\boxed{2}</answer>",
    "reflective_prompt": "<solution>\n\\boxed{2}\n</solution>\n<check>\nLet's verify step by step\n</check>\n"
    "\\boxed{2}",
    "lm_eval_prompt1": "1 + 1\nThe final answer is: \\boxed{2}",
}


@pytest.mark.parametrize("name", templates())
def test_responses_in_a_template_have_the_answer_that_they_state(name):
    prefill = templates()[name]
    kind = name.removesuffix("-teacher")
    layout = LAYOUTS.get(kind, "1 + 1 = 2, so it is \\boxed{2}.")
    response = layout.removeprefix(prefill)
    opened = opens_thoughts(f"<|im_start|>assistant\n{prefill}")
    assert opened == (prefill.strip() == "<think>")
    for text in (
        response,
        response.replace(r"\boxed{2}", r"\boxed{2}" * 2),
        response.replace("</think>", ""),
    ):
        read = split_response(text, opened=opened).answer
        assert extract_answer(read) == "2"
    if "<answer>" in response:
        plain = response.replace(r"\boxed{2}", "2")
        assert extract_answer(split_response(plain, opened=opened).answer) == "2"
