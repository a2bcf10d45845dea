"""The countdown task: how large its problems are, and that they can be solved."""

import random

import pytest

from tagrpo.lab.tasks.countdown.reward import solutions, value_of
from tagrpo.lab.tasks.countdown.source import CountdownSource, sample_problem


@pytest.mark.parametrize(("regime", "count"), [("easy", 3), ("medium", 4), ("hard", 4)])
def test_a_regime_has_its_count_of_numbers_and_the_test_of_size_larger_ones(regime, count):
    def numbers(split):
        return [group.metadata["numbers"] for group in CountdownSource(split, regime, size=120).load()]

    assert {len(n) for n in numbers("train") + numbers("test_size")} == {count}
    assert {x for n in numbers("train") for x in n} == set(range(2, 16))
    assert {max(n) for n in numbers("test_size")} == set(range(16, 21))


def test_a_target_is_what_the_expression_gives():
    rng = random.Random(0)
    for count in (3, 4):
        for _ in range(300):
            problem = sample_problem(rng, count)
            (expression,), numbers, target = (
                problem.answers,
                problem.facts["numbers"],
                problem.facts["target"],
            )
            assert value_of(expression) == target <= 99
            assert tuple(sorted(int(token) for token in expression.split(" ") if token.isdigit())) == numbers
            assert expression in solutions(numbers, target)


def test_problems_of_hard_have_few_answers_and_most_others_have_more():
    def answers(regime, split):
        groups = CountdownSource(split, regime, size=60, num_rephrasings=0).load()
        return [len(solutions(g.metadata["numbers"], g.metadata["target"])) for g in groups]

    assert max(answers("hard", "train") + answers("hard", "test_size")) <= 16
    assert sorted(answers("medium", "train"))[30] > 16


def test_originals_of_hard_are_told_in_rare_families_and_rephrasings_in_common_ones():
    for group in CountdownSource("train", "hard", size=20).load():
        assert group.metadata["family"] in ("cards", "result")
        assert set(group.metadata["rephrasing_families"]) < {"make", "symbol", "list", "question"}
