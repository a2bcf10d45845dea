"""QuestA's hints against the authors' way of cutting a solution, written anew, and its stages."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from omegaconf import OmegaConf

from tagrpo.contrib.questa.hints import HintRephraser, Stages
from tagrpo.datamodules.memory import Record, Visit
from tagrpo.datamodules.sources.table import TableSource
from tagrpo.rephrasing.checks import TEXT_CHECKS
from tagrpo.settings.methods import options_of
from tagrpo.types import QuestionGroup
from tests.helpers import forked

UNCHECKED = OmegaConf.create(options_of("rephraser")["hint"])["unchecked"]
QUESTION = QuestionGroup("q", "open", ("half", "quarter"), ("49",), {"level": 5}, ("hint",) * 2)


def hinted(*solutions, checks=TEXT_CHECKS, **options):
    options = {
        "shares": (0.5, 0.25),
        "field": "solution",
        "form": "{question}\n\n{hint}",
        "unchecked": UNCHECKED,
    } | options
    groups = [
        QuestionGroup(str(n), f"question {n}", (), ("42",), {"solution": s}) for n, s in enumerate(solutions)
    ]
    return asyncio.run(HintRephraser(**options).propose(groups, checks, None))


def by_the_authors(generation, ratio):
    """foreverlasting1202/QuestA at 3c7be00, add_prefix.py: split_prefix of what stands behind the thoughts."""
    solution = generation.split("</think>")[-1].strip()
    cut = int(len(solution) * (ratio / 100))
    return solution[:cut] if cut >= 10 else None


def test_hints_are_the_first_characters_of_the_solution_as_in_the_authors_code():
    rng = np.random.default_rng(0)
    solutions = ["".join(rng.choice([*"abc {}$42\n"], size)) for size in rng.integers(0, 9000, 30)]
    solutions += [
        "<think>six times seven is 42</think>Multiply: " + "6 × 7 = 42. " * 9,
        "x" * 20,
        "x" * 39,
        "x" * 40,
    ]
    shares = (0.75, 0.5, 0.25)
    for number, (item, solution) in enumerate(zip(hinted(*solutions, shares=shares), solutions, strict=True)):
        cut = [by_the_authors(solution, 100 * share) for share in shares]
        expected = [f"question {number}\n\n{hint}" for hint in cut if hint is not None]
        assert [candidate.text for candidate in item.kept()] == expected
        assert bool(item.shortfall) == (None in cut)
        assert {candidate.kind for candidate in item.kept()} <= {"hint"}


def test_what_is_checked_is_refused_and_said():
    (item,) = hinted(
        "6 times 7 is 42, says the solution", unchecked=[c for c in UNCHECKED if c != "answer_not_leaked"]
    )
    assert item.kept() == []
    assert "34 characters" in item.shortfall
    (item,) = hinted("long " * 900, unchecked=[name for name in UNCHECKED if name != "readable"])
    assert [len(candidate.text) < 2000 for candidate in item.kept()] == [True]


def test_a_row_without_a_solution_has_no_hint():
    assert [item.kept() for item in hinted(None, "")] == [[], []]
    assert HintRephraser(shares=(0.5,), field="s", form="").calls([QUESTION]) == []


def test_the_command_writes_questions_with_hints_from_more_to_less(tmp_path):
    row = {
        "id": "a",
        "question": "What is 6 times 7?",
        "answer": "42",
        "solution": "Six sevens are 42, since 6 × 7 = 42.",
    }
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    places = [f"input={tmp_path}/questions.jsonl", f"output={tmp_path}/hinted.jsonl"]
    code, output = forked(
        "rephrase", *places, "rephraser=hint", "rephraser.shares=[1.0,0.5]", folder=tmp_path
    )
    assert code == 0, output
    assert "nothing is asked of a model" in output
    (group,) = TableSource(tmp_path / "hinted.jsonl").load()
    assert (group.answer, group.kinds) == (("42",), ("hint", "hint"))
    assert [text.rpartition("\n")[2] for text in group.rephrasings] == [row["solution"], row["solution"][:18]]
    assert all(text.startswith("What is 6 times 7?\n\n") for text in group.rephrasings)


@pytest.mark.parametrize("visits", [1, 3])
def test_each_hint_is_asked_for_its_visits_and_the_last_from_then_on(visits):
    asked = [
        Stages(visits).asked(QUESTION, Record(visits=[Visit((8,), (n % 9,)) for n in range(number)]))
        for number in range(4 * visits)
    ]
    expected = ["half"] * visits + ["quarter"] * 3 * visits
    assert [group.question for group in asked] == expected
    assert all(
        group == QUESTION._replace(question=group.question, rephrasings=(), kinds=()) for group in asked
    )


def test_a_question_without_hints_is_asked_alone():
    group = QUESTION._replace(rephrasings=(), kinds=())
    assert Stages(1).asked(group, Record(visits=[Visit((8,), (0,))] * 3)) == group
