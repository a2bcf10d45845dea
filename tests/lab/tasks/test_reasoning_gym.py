"""Tasks of reasoning-gym: reproducible, disjoint, and judged by comparisons that the package's own answers pass."""

from __future__ import annotations

import os
import random
import re

import pytest

from tagrpo.datamodules.overlap import find_overlaps, words
from tagrpo.lab.tasks.reasoning_gym import TASKS, ReasoningGymSource, verifier

pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS, create_dataset

SUPPORTED = [task for task, facts in TASKS.items() if "form" in facts]


def generated(task, size=8, seed=7):
    random.seed(seed)
    data = create_dataset(task, seed=seed, size=size)
    return [data[row] for row in range(size)]


def test_every_task_of_the_package_is_listed():
    assert sorted(DATASETS) == list(TASKS)
    assert all(("form" in facts) != ("unsupported" in facts) for facts in TASKS.values())
    assert len(SUPPORTED) == 83


def perturbed(answer, first):
    """A wrong answer that looks like a right one: its last digit or letter is another, or its first one but zero."""
    places = [match.start() for match in re.finditer(r"[^\W_0]" if first else r"[^\W_]", answer)]
    place = places[0 if first else -1]
    other = (
        str((int(answer[place]) + 1) % 10)
        if answer[place].isdecimal()
        else "q"
        if answer[place] != "q"
        else "z"
    )
    return answer[:place] + other + answer[place + 1 :]


@pytest.mark.parametrize("task", SUPPORTED)
def test_the_packages_answers_are_correct_and_changed_ones_are_not(task):
    judge = verifier(task)
    items = [item for item in generated(task) if item["answer"].strip()]
    assert items
    for item in items:
        answer = item["answer"]
        for response in (answer, f"Let me think.\n{answer}", rf"It is \boxed{{{answer}}}"):
            assert judge(response, answer).correct, response
        if re.search(r"[^\W_0]", answer) and "Q" not in answer:
            wrong = perturbed(answer, first="digits" in TASKS[task])
            assert not judge(wrong, answer).correct, (answer, wrong)
        assert not judge("I do not know how to say it", answer).correct


def test_other_answers_of_a_task_are_wrong():
    for task in ("gcd", "spell_backward", "knights_knaves", "sudoku", "spiral_matrix", "complex_arithmetic"):
        judge, items = verifier(task), generated(task)
        pairs = [(a["answer"], b["answer"]) for a in items for b in items if a["answer"] != b["answer"]]
        assert pairs
        assert not any(judge(*pair).correct for pair in pairs)


def test_every_solution_of_n_queens_is_a_reference():
    group = next(g for g in ReasoningGymSource("n_queens", size=40).load() if len(g.answer) > 1)
    assert all(verifier("n_queens")(board, group.answer).correct for board in group.answer)
    assert not verifier("n_queens")(group.question, group.answer).correct


def test_parts_of_a_complex_number_are_not_read_out_of_decimals():
    judge = verifier("complex_arithmetic")
    assert judge("(1+2i) + (2+3i) = 3 + 5i", "3.0 + 5.0i").correct
    assert not any(judge(text, "3.0 + 5.0i").correct for text in ("3.5i", "3 - 5i", "5 + 3i", "3 + 5", "3.0"))


def test_a_question_is_the_same_in_every_process_and_a_smaller_size_is_a_beginning(monkeypatch):
    for task in (
        "isomorphic_strings",
        "list_functions",
        "polynomial_multiplication",
    ):  # not so without precaution
        found = []
        for hash_seed in ("1", "2"):
            monkeypatch.setitem(os.environ, "PYTHONHASHSEED", hash_seed)
            found.append(ReasoningGymSource(task, size=6).load())
        assert found[0] == found[1]
        assert ReasoningGymSource(task, size=3).load() == found[0][:3]
    assert [g.question for g in ReasoningGymSource(task, size=3, seed=1).load()] != [
        g.question for g in found[0][:3]
    ]


def test_splits_share_no_question_in_any_order():
    asked = {}
    for split, seed in (("train", 0), ("train", 1), ("test", 0)):
        groups = ReasoningGymSource(
            "gcd", split, size=150, options={"max_value": 30, "max_numbers": 3}, seed=seed
        ).load()
        problems = [tuple(sorted(re.findall(r"\d+", group.question))) for group in groups]
        assert len(set(problems)) == len(problems), "no problem twice"
        asked.setdefault(split, set()).update(problems)
        assert [g.id for g in groups[:2]] == [f"gcd-{split}-{seed}-00000", f"gcd-{split}-{seed}-00001"]
        assert groups[0].metadata["task"] == "gcd"
    assert not asked["train"] & asked["test"]
    assert len(asked["train"]) > 150


def test_a_common_layout_is_no_overlap_but_a_copy_is():
    train = ReasoningGymSource("spell_backward", size=200).load()
    test = ReasoningGymSource("spell_backward", "test", size=40).load()
    assert find_overlaps(train, {"test": test})["test"] == []
    copy = test[0]._replace(question=train[5].question.upper())
    (overlap,) = find_overlaps(train, {"test": [copy, *test[1:]]})["test"]
    assert (overlap.test, overlap.train, overlap.similarity) == (copy.id, train[5].id, 1.0)
    assert len(words(train[5].question)) >= 8


def test_options_reach_the_generator_and_bad_ones_are_refused(capfd):
    groups = ReasoningGymSource(
        "chain_sum", size=20, options={"min_terms": 2, "max_terms": 2, "max_digits": 1}
    ).load()
    for group in groups:
        a, sign, b = re.search(r"(\d+) ([-+]) (\d+)", group.question).groups()
        assert group.answer == (str(int(a) + int(f"{sign}{b}")),)
    with pytest.raises(ValueError, match="generate chain_sum with {'max_term': 2}"):
        ReasoningGymSource("chain_sum", options={"max_term": 2}).load()
    assert "max_term" in capfd.readouterr().err


def test_an_exhausted_generator_warns():
    source = ReasoningGymSource("gcd", size=50, options={"max_value": 5})
    groups = source.load()
    assert 0 < len(groups) < 50
    assert source.report.warnings == [f"Expected 50 questions, but found {len(groups)}"]


def test_what_the_generator_fails_at_is_left_out():
    source = ReasoningGymSource(
        "maze", split="test", size=64
    )  # one of these mazes has no path that is long enough
    assert len(source.load()) == 64


def test_questions_without_an_answer_are_left_out():
    assert any(item["answer"] == "" for item in generated("ab", 60)), "some programs end in nothing"
    assert all(answer for group in ReasoningGymSource("ab", size=60).load() for answer in group.answer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("countdown",), "'countdown': many expressions are right"),
        (("no_such_task",), "'no_such_task': it is none of ab, acre"),
        (("gcd", "validation"), "one of train, test but got 'validation'"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGymSource(*arguments)
