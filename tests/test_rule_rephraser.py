"""The example of a rephraser without a model: rules keep a problem the same problem, or leave it alone."""

from __future__ import annotations

import doctest
import json
import os
import random
import re
import sys
from pathlib import Path
from runpy import run_path

import pytest

from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.rephrasing.candidates import Pair, accepted, review
from tagrpo.rephrasing.checks import TEXT_CHECKS, numbers_kept
from tagrpo.rephrasing.symbols import symbols_kept
from tagrpo.rewards.extraction import extract_reference
from tests.helpers import in_fork

EXAMPLE = Path(__file__).parents[1] / "examples" / "rule_rephraser"
DATA = Path(os.environ.get("TAGRPO_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""Folder with `gsm8k_train.jsonl` and `math_train.jsonl`."""

sys.path.insert(0, str(EXAMPLE))
import renaming  # noqa: E402
import rules  # noqa: E402
import stories  # noqa: E402
from rules import RULES, RuleRephraser  # noqa: E402
from stories import Question, read_story, split_sentences  # noqa: E402

pytestmark = pytest.mark.pages

sys.path.remove(str(EXAMPLE))


def applied(rule, question, answer=(), seed=0):
    return RULES[rule](Question.of(question, answer, seed))


@pytest.mark.parametrize("module", [rules, stories, renaming], ids=lambda module: module.__name__)
def test_its_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def test_it_is_a_command_and_its_output_is_audited(tmp_path):
    question = "Tom has 3 cats. His sister Anna has 4 cats. How many cats do they have?"
    row = {"id": "a", "question": question, "answer": "7", "level": "easy"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    places = [f"input={tmp_path}/questions.jsonl", f"output={tmp_path}/out.jsonl"]
    code, output = in_fork(lambda: run_path(str(EXAMPLE), run_name="__main__"), *places)
    assert code == 0, output
    assert "nothing is asked of a model" in output
    written = json.loads((tmp_path / "out.jsonl").read_text())
    assert written["level"] == "easy"
    assert len(written["rephrasings"]) == 3
    assert {entry["model"] for entry in written["provenance"]} == {"rules"}
    assert all(accepted(review(Pair(question, text, ("7",)), TEXT_CHECKS)) for text in written["rephrasings"])


@pytest.mark.parametrize(
    ("rule", "question", "answer"),
    [
        # a second question, choices, figures, examples, quotes: no plain story
        ("question_first", "Tom has 3 cats. How many cats? And how many legs?", "12"),
        ("question_first", r"Two is even. Which is odd? $\text{(A)}\ 1 \quad \text{(B)}\ 2$", "A"),
        ("list_form", "Look. [asy] draw((0,0)--(1,1)); [/asy] It is shown. How long is it?", "2"),
        ("list_form", 'Tom says "I have 3 cats. You have 2." They meet. How many cats?', "5"),
        ("question_first", "Find $x$. Tom has $x$ cats.", "5"),
        # several answers are no value
        ("command", "Find the values of $x$ and $y$.", "1"),
        ("command", "Find the roots of $x^2 = 1$.", "1,-1"),
        # names that are part of something, or hide a person
        ("rename_people", "Kevin Kangaroo hops 3 times. How far?", "3"),
        ("rename_people", "Tom sits at Tom's Diner. How far is it?", "3"),
        ("rename_people", "Mr. James teaches 3 classes. How many?", "3"),
        ("rename_people", "Three Toms and Tom meet. How many?", "4"),
        ("rename_people", "Tom has T cats. How many is that?", "3"),
        ("rename_people", "Who is older, Anna or Paul?", "Anna"),
        ("rename_people", "April has 3 cats in May. How many in June?", "3"),
        # letters with a meaning of their own
        ("rename_variables", "Expand $(x+1)^2$.", "x^2+2x+1"),
        ("rename_variables", "What is the $x$-intercept of $y = x + 1$?", "-1"),
        ("rename_variables", "How many real x satisfy $x^2 = 1$?", "2"),
        ("rename_variables", "How long is $ab$ if $a = 3$ cm and $xcm = 4$?", "12"),
        ("rename_variables", r"What is $\int_0^1 x\,dx$?", "1/2"),
        ("rename_variables", "Let $f(x) = x + 1$ be a function. What is $f(2)$?", "3"),
    ],
)
def test_a_rule_leaves_alone_what_it_could_spoil(rule, question, answer):
    assert applied(rule, question, (answer,)) is None


@pytest.mark.parametrize(
    ("rule", "question", "expected"),
    [
        ("command", "Find the sum of the digits of $2^{10}$.", "What is the sum of the digits of $2^{10}$?"),
        (
            "command",
            "A die is rolled. What is the chance of a 6? Express your answer as a common fraction.",
            "A die is rolled. Determine the chance of a 6. Express your answer as a common fraction.",
        ),
    ],
)
def test_a_rule_writes_what_a_person_would(rule, question, expected):
    assert applied(rule, question) == expected


def test_variables_are_renamed_one_to_one_outside_of_commands_and_texts():
    question = r"If $\max(x, y) = \frac{x}{2} \text{ and } xy = 3$, what is $x^2 y$?"
    renamed = applied("rename_variables", question, ("7",))
    x, y = re.search(r"max\((.), (.)\)", renamed).groups()
    assert len({x, y, "x", "y"}) == 4
    assert (
        renamed == rf"If $\max({x}, {y}) = \frac{{{x}}}{{2}} \text{{ and }} {x}{y} = 3$, what is ${x}^2 {y}$?"
    )


def test_people_are_renamed_everywhere_to_names_that_suit_the_pronouns():
    question = "Tom's dog is 3. Tom and Anna see Anna's cat. He is 5, she is 4. How old is Tom's dog?"
    renamed = applied("rename_people", question, ("3",))
    assert "Tom" not in renamed
    assert "Anna" not in renamed
    old, new = question.split(), renamed.split()
    changed = {
        a.strip(".,?").removesuffix("'s"): b.strip(".,?").removesuffix("'s")
        for a, b in zip(old, new, strict=True)
        if a != b
    }
    assert set(changed) == {"Tom", "Anna"}
    assert changed["Tom"] in renaming._MALE
    assert changed["Anna"] in renaming._FEMALE


def test_sentences_are_not_cut_inside_formulas_numbers_and_abbreviations():
    text = r"Mr. Li pays 2.50 dollars. At 5 p.m. he sees \[x = 1.\] Then $a. B$ holds. Is it 3.5 ft. long?"
    assert split_sentences(text) == [
        "Mr. Li pays 2.50 dollars.", r"At 5 p.m. he sees \[x = 1.\]", "Then $a. B$ holds.", "Is it 3.5 ft. long?",
    ]  # fmt: skip


def test_a_story_joined_again_is_the_question():
    question = "Tom has 3 cats. He buys 2. How many? Answer in words."
    story = read_story(question)
    assert " ".join([*story.facts, story.asked]) == question


def test_the_same_seed_gives_the_same_rephrasings_and_unknown_rules_are_named():
    question = "Tom has 3 cats. His sister has 2. What is the number of cats?"
    assert RuleRephraser(seed=4).rephrase(question) == RuleRephraser(seed=4).rephrase(question)
    assert len({tuple(RuleRephraser(seed=seed).rephrase(question).items()) for seed in range(20)}) > 5
    with pytest.raises(ValueError, match="question_first"):
        RuleRephraser(rules=["no_such_rule"])


@pytest.mark.parametrize("rule", ["question_first", "list_form"])
def test_moving_keeps_every_sentence_word_by_word(rule):
    moved = 0
    for group in ArithmeticSource("train", size=200, num_rephrasings=0).load():
        text = applied(rule, group.question, group.answer)
        if text is None:
            continue
        moved += 1
        for sentence in split_sentences(group.question):
            assert sentence in text
        facts = read_story(group.question).facts
        places = [text.index(fact) for fact in facts]
        assert places == sorted(places), "facts keep their order"
    assert moved > 20


needs_data = pytest.mark.skipif(
    not DATA.exists(), reason="needs public datasets: set TAGRPO_DATA to their folder"
)


def real_questions(name, count):
    """(question, answer) of a random sample."""
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().strip().split("\n")]
    pairs = [(row.get("question") or row["problem"], row.get("answer") or row["solution"]) for row in rows]
    sample = random.Random(0).sample(pairs, count)
    return [(text, (extract_reference(answer, text) or ("?",))[-1]) for text, answer in sample]


@needs_data
@pytest.mark.parametrize(("name", "least"), [("gsm8k_train", 0.85), ("math_train", 0.35)])
def test_on_real_questions_numbers_and_formulas_survive_every_rule(name, least):
    made, texts, differ = 0, 0, 0
    for question, answer in real_questions(name, 250):
        found = RuleRephraser().rephrase(question, (answer,))
        made += bool(found)
        for rule, text in found.items():
            texts += 1
            assert numbers_kept(Pair(question, text)).passed, (rule, question, text)
            differ += not symbols_kept(Pair(question, text, (answer,))).passed
    assert made >= least * 250
    assert differ <= 0.01 * texts


def stories_of_people(count):
    """Questions about people, none of them from a dataset."""
    rng = random.Random(1)
    for _ in range(count):
        woman, man = rng.choice(renaming._FEMALE), rng.choice(renaming._MALE)
        a, b, c = rng.sample(range(2, 90), 3)
        yield (
            f"{woman} has {a} marbles and {man} has {b}. {man} gives her {c} of his. How many does {woman} have?",
            f"{a + c}",
        )


def systems_of_equations(count):
    """Questions about two variables."""
    rng = random.Random(2)
    for _ in range(count):
        (x, y), (a, b, c, d) = rng.sample("xyznkabc", 2), rng.sample(range(2, 90), 4)
        yield f"If ${a}{x} + {b}{y} = {c}$ and ${x} - {y} = {d}$, what is ${x}{y} + {x}^2$?", "?"


KINDS = {
    "people": ("rename_people", lambda: stories_of_people(250)),
    "variables": ("rename_variables", lambda: systems_of_equations(250)),
    "people of GSM8K": ("rename_people", lambda: real_questions("gsm8k_train", 800)),
    "variables of MATH": ("rename_variables", lambda: real_questions("math_train", 1200)),
}


def with_another_number(text, rng):
    place = rng.choice(list(re.finditer(r"(?<![\d.,^_])\d+(?![\d.,])", text)) or [None])
    if place is None:
        return None
    return f"{text[: place.start()]}{int(place[0]) + rng.choice((1, 2, 3, 10))}{text[place.end() :]}"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[needs_data] if " of " in kind else []) for kind in KINDS]
)
def test_the_checks_let_other_names_pass_and_see_a_number_that_changes_with_them(kind):
    rule, questions = KINDS[kind]
    rng = random.Random(0)
    renamed = [(q, text, (a,)) for q, a in questions() if (text := applied(rule, q, (a,), seed=q))]
    assert len(renamed) >= 200
    passed = [accepted(review(Pair(*pair), TEXT_CHECKS)) for pair in renamed]
    assert sum(passed) >= 0.98 * len(passed)
    damaged = [(q, text, a) for q, right, a in renamed if (text := with_another_number(right, rng))]
    assert len(damaged) >= 200
    refused = [not accepted(review(Pair(*pair), TEXT_CHECKS)) for pair in damaged]
    assert sum(refused) >= 0.94 * len(refused)  # the rest has the new number elsewhere, and the old one twice
