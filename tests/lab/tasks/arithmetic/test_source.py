"""The embedded task: what the questions say, how they are spread, and what no split shares."""

import random
import re
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest

from tagrpo.lab.tasks.arithmetic.source import (
    REPHRASINGS,
    SPLITS,
    ArithmeticSource,
    sample_problem,
)

CONFIGS = Path(__file__).parents[4] / "configs"
EVERY_SOURCE = list(product(SPLITS, ["mixed", "hard"]))  # of `reformulated`: ../test_reformulated.py
EVENT = re.compile(
    r"(?P<add>(buys|finds|plus|\+) (\d+)|(\d+) are given)"
    r"|(?P<subtract>(sells|loses|minus|-) (\d+)|(\d+) are taken)"
    r"|(?P<double>doubles them|twice|they are doubled|\* 2)",
    re.IGNORECASE,
)
START = re.compile(r"(?:has|starts with|start|Compute) (\d+)|^(\d+) \w+ are owned")


def read(question: str) -> str:
    """Understand a question by its verbs alone, as a Python expression."""
    events = []
    for match in EVENT.finditer(question):
        number = re.search(r"\d+", match.group())
        symbol = {"add": "+", "subtract": "-", "double": "*"}[match.lastgroup]
        events.append(f"{symbol} {2 if symbol == '*' else number.group()}")
    if "Before that" in question:
        events.reverse()
    (start,) = [a or b for a, b in START.findall(question)]
    for event in events:
        start = f"({start} {event})"
    return start


@pytest.mark.parametrize(("split", "regime"), EVERY_SOURCE)
def test_every_phrasing_of_a_question_says_what_is_answered(split, regime):
    for group in ArithmeticSource(split, regime, size=120).load():
        assert len(group.rephrasings) == 3
        for text in (group.question, *group.rephrasings):
            assert read(text) == group.metadata["expression"], text
        assert group.answer == (str(eval(group.metadata["expression"])),)


@pytest.mark.parametrize(("split", "regime"), EVERY_SOURCE)
def test_a_question_and_its_rephrasings_are_told_in_different_families(split, regime):
    groups = ArithmeticSource(split, regime, size=60).load()
    originals = Counter(group.metadata["family"] for group in groups)
    assert set(originals) == set(SPLITS[split].originals[regime])
    assert max(originals.values()) == min(originals.values())
    for group in groups:
        told = {group.metadata["family"], *group.metadata["rephrasing_families"]}
        assert len(told) == 4
        assert len({group.question, *group.rephrasings}) == 4
        assert told - {group.metadata["family"]} <= set(REPHRASINGS[regime])


def test_ids_and_problems_are_unique():
    groups = ArithmeticSource("validation", size=1000).load()
    assert len({group.id for group in groups}) == 1000
    assert len({group.metadata["expression"] for group in groups}) == 1000


def test_no_two_splits_share_a_problem_whatever_the_seed():
    # A validation split of 1000 holds a twentieth of all its problems: chance alone would share many.
    expressions = {
        split: {
            group.metadata["expression"]
            for seed in (0, 1)
            for group in ArithmeticSource(split, size=1000, num_rephrasings=0, seed=seed).load()
        }
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert not expressions[one] & expressions[other], (one, other)


def test_the_same_arguments_give_the_same_questions_and_another_seed_gives_others():
    first = ArithmeticSource("train", size=50, seed=3).load()
    assert ArithmeticSource("train", size=50, seed=3).load() == first
    assert ArithmeticSource("train", size=80, seed=3).load()[:50] == first
    other = {group.metadata["expression"] for group in ArithmeticSource("train", size=50, seed=4).load()}
    assert len(other & {group.metadata["expression"] for group in first}) < 10


def test_size_split_starts_from_larger_numbers_than_training():
    def starts(split):
        groups = ArithmeticSource(split, size=300).load()
        return {int(re.search(r"\d+", group.metadata["expression"]).group()) for group in groups}

    assert starts("train") == set(range(2, 31))
    assert starts("test_size") == set(range(31, 61))


def test_every_value_on_the_way_lies_between_0_and_99_and_nothing_large_is_doubled():
    rng = random.Random(0)
    problems = [sample_problem(rng, (2, 3), (2, 99)) for _ in range(2000)]
    values = {value for problem in problems for value in problem.values}
    assert (min(values), max(values)) == (0, 99)
    for problem in problems:
        for operation, before, after in zip(
            problem.operations, problem.values[:-1], problem.values[1:], strict=True
        ):
            assert after == eval(f"{before} {operation.symbol} {operation.operand}")
            assert operation.symbol != "*" or before <= 30


@pytest.mark.parametrize(("regime", "expected"), [("mixed", 5), ("hard", 4)])
def test_without_a_number_every_other_family_tells_the_question(regime, expected):
    for group in ArithmeticSource(regime=regime, size=12, num_rephrasings=None).load():
        families = group.metadata["rephrasing_families"]
        assert len(set(families) - {group.metadata["family"]}) == len(group.rephrasings) == expected


def test_arguments_that_cannot_be_met_are_refused():
    with pytest.raises(ValueError, match=r"`split`.*'testing'"):
        ArithmeticSource("testing")
    with pytest.raises(ValueError, match="`regime`.*'easy'"):
        ArithmeticSource(regime="easy")
    with pytest.raises(ValueError, match="`num_rephrasings`"):
        ArithmeticSource(num_rephrasings=6)
    with pytest.raises(ValueError, match="`size`.*5001"):
        ArithmeticSource(size=5001)
