"""The regime `reformulated`: the same questions with the same answers, put differently in five ways."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tagrpo.lab.tasks.arithmetic import ArithmeticSource, ChainReward
from tagrpo.lab.tasks.countdown import CountdownReward, CountdownSource
from tagrpo.lab.tasks.generated import REFORMULATIONS
from tagrpo.lab.tasks.shortest_path import ShortestPathReward, ShortestPathSource

TASKS = {
    "arithmetic": (ArithmeticSource, ChainReward()),
    "countdown": (CountdownSource, CountdownReward()),
    "shortest_path": (ShortestPathSource, ShortestPathReward()),
}
KINDS = ["wording", "format", "hint", "harder", "template"]
every_task = pytest.mark.parametrize("task", TASKS)


def groups_of(task, split="train", size=40):
    source, reward = TASKS[task]
    return source(split, "reformulated", size, num_rephrasings=None).load(), reward


def told(group, kind):
    return [text for text, name in zip(group.rephrasings, group.kinds, strict=True) if name == kind]


@every_task
def test_a_question_has_three_reformulations_of_each_kind(task):
    for group in groups_of(task)[0]:
        assert Counter(group.kinds) == dict.fromkeys(KINDS, 3)
        assert len({group.question, *told(group, "wording")}) == 4
        assert len(set(told(group, "template"))) == 3
        names = group.metadata["rephrasing_families"]
        for name, kind in zip(names, group.kinds, strict=True):
            assert kind == (REFORMULATIONS[name].kind if name in REFORMULATIONS else "wording")


@every_task
def test_all_but_wordings_hold_the_very_text_of_the_original(task):
    for group in groups_of(task)[0]:
        for kind in KINDS[1:]:
            assert all(group.question in text for text in told(group, kind))
        assert not any(group.question in text for text in told(group, "wording"))


@every_task
def test_one_of_three_given_choices_is_correct(task):
    groups, reward = groups_of(task)
    for group in groups:
        for text in told(group, "format"):
            given = re.fullmatch(r".* Choose: (.*)\.", text)[1].split(" or ")
            assert len(set(given)) == 3
            assert sum(reward(answer, group.answer).correct for answer in given) == 1


@every_task
def test_a_hint_is_a_part_of_a_solution(task):
    groups, reward = groups_of(task)
    for group in groups:
        for text in told(group, "hint"):
            part = re.fullmatch(r".* Hint: (.*)\.", text)[1]
            solutions = reward.correct_responses(group.answer)
            assert any(part in solution and part != solution for solution in solutions)


@every_task
def test_a_test_of_the_wordings_is_told_in_one_that_training_has_not(task):
    trained = groups_of(task)[0]
    families = {
        name
        for group in trained
        for name in (group.metadata["family"], *group.metadata["rephrasing_families"])
    }
    unseen = {group.metadata["family"] for group in groups_of(task, "test_phrasing")[0]}
    assert len(unseen) == 1
    assert not unseen & families


def test_rephrasings_of_other_regimes_name_no_kinds():
    for source, _ in TASKS.values():
        for regime in source.rephrasings.keys() - {"reformulated"}:
            assert all(group.kinds == () for group in source("train", regime, 8).load())


def test_chains_are_all_orders_that_keep_every_value_within_its_range():
    groups, reward = groups_of("arithmetic", size=200)
    for group in groups:
        start, steps = re.match(r"\(*(\d+)", group.metadata["expression"])[1], []
        for symbol, operand in re.findall(r"([-+*]) (\d+)\)", group.metadata["expression"]):
            steps.append((symbol, int(operand)))
        assert set(group.answer) == set(orders(int(start), steps, eval(group.metadata["expression"])))
        assert all(reward(answer, group.answer).correct for answer in group.answer)
        assert not reward(group.answer[0] + " ", group.answer).correct


def orders(value, left, answer, walk=()):
    """Every sequence of values by all steps `left` that ends in `answer`; the limits are those of the task."""
    if not left and value == answer:
        yield " ".join(map(str, walk))
    for i, (symbol, operand) in enumerate(left):
        made = {"+": value + operand, "-": value - operand, "*": value * operand}[symbol]
        if 0 <= made <= 99 and (symbol != "*" or value <= 30):
            yield from orders(made, left[:i] + left[i + 1 :], answer, (*walk, made))
