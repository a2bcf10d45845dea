"""What holds for both tasks whose answers can be listed: families, splits, supervised examples, their words."""

import re
from collections import Counter
from itertools import combinations, product

import pytest

from tagrpo.lab.tasks.countdown import CountdownReward
from tagrpo.lab.tasks.countdown import source as countdown
from tagrpo.lab.tasks.shortest_path import ShortestPathReward
from tagrpo.lab.tasks.shortest_path import source as shortest_path

CELL = re.compile(r"\b[a-f][1-6]\b")
TASKS = {
    "countdown": (countdown, countdown.CountdownSource, CountdownReward()),
    "shortest_path": (shortest_path, shortest_path.ShortestPathSource, ShortestPathReward()),
}
SPLITS = ["train", "validation", "test_id", "test_phrasing", "test_size"]
REGIMES = ["easy", "medium", "hard"]
every_task = pytest.mark.parametrize("task", TASKS)
every_source = pytest.mark.parametrize(("task", "split", "regime"), list(product(TASKS, SPLITS, REGIMES)))


def asked(question):
    """What a question asks, read without its templates: (kind, givens)."""
    if cells := CELL.findall(question):
        goal_first = "is the goal" in question or question.startswith("Tom walks; walls")
        if question.startswith("Boxes"):
            *walls, start, goal = cells
        elif question.startswith("Tom walks; walls"):
            *walls, goal, start = cells
        elif goal_first:
            goal, *walls, start = cells
        else:
            start, goal, *walls = cells
        return start, goal, tuple(sorted(walls))
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    places = {"Make": 0, "How": 0, "Ann": 1}
    target = numbers.pop(places.get(question.split(" ")[0], -2 if "is a card" in question else -1))
    return target, tuple(sorted(numbers))


@every_source
def test_a_question_and_its_rephrasings_ask_the_same_in_different_families(task, split, regime):
    module, source, reward = TASKS[task]
    groups = source(split, regime, size=36).load()
    originals = Counter(group.metadata["family"] for group in groups)
    assert set(originals) == set(source.splits[split].originals[regime])
    assert max(originals.values()) == min(originals.values())
    for group in groups:
        told = [group.metadata["family"], *group.metadata["rephrasing_families"]]
        assert len(set(told)) == 4
        assert set(told[1:]) <= set(module.REPHRASINGS[regime])
        assert len({asked(text) for text in (group.question, *group.rephrasings)}) == 1
        assert set(group.answer) <= set(reward.correct_responses(group.answer))
        assert all(reward(answer, group.answer).correct for answer in group.answer)


@every_task
def test_no_two_splits_share_a_problem_whatever_the_seed(task):
    source = TASKS[task][1]
    found = {
        split: {
            asked(group.question)
            for seed in (0, 1)
            for group in source(split, "easy", 150, 0, seed=seed).load()
        }
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert not found[one] & found[other], (one, other)


@every_task
def test_ids_and_problems_are_unique_and_the_same_arguments_give_the_same_questions(task):
    source = TASKS[task][1]
    groups = source("test_id", "easy", size=600).load()
    assert len({group.id for group in groups}) == len({asked(group.question) for group in groups}) == 600
    assert source("test_id", "easy", size=40).load() == groups[:40]
    assert source("test_id", "easy", size=40, seed=1).load()[0].question != groups[0].question


@every_task
def test_the_test_of_phrasing_is_told_in_a_family_that_is_never_trained(task):
    module, source, _ = TASKS[task]
    assert {g.metadata["family"] for g in source("test_phrasing", "medium", 20).load()} == {"hybrid"}
    assert module.FAMILIES["hybrid"].share == 0
    assert sum(family.share for family in module.FAMILIES.values()) == pytest.approx(1)


@every_task
def test_arguments_that_cannot_be_met_are_refused(task):
    source = TASKS[task][1]
    with pytest.raises(ValueError, match="`regime`.*'mixed'"):
        source(regime="mixed")
    with pytest.raises(ValueError, match="`num_rephrasings`"):
        source(regime="hard", num_rephrasings=5)
    with pytest.raises(ValueError, match=f"`size`.*{source.largest_size}"):
        source(size=source.largest_size + 1)
