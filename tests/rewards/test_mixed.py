import time

import pytest

from tagrpo.rewards import MathReward, MixedReward, MultipleChoiceReward, Score


@pytest.fixture(scope="module")
def reward():
    with MixedReward(MultipleChoiceReward(), MathReward(workers=1)) as reward:
        yield reward


def test_letters_are_scored_as_choices_and_the_rest_as_mathematics_in_place(reward):
    responses = [r"\boxed{\text{(b)}}", r"\boxed{\sqrt{4}}", "The answer is (C).", r"\boxed{B: 2}", r"\boxed{3}"]
    references = ["B", "2", ("A", "C"), "2", "A"]
    assert [score.correct for score in reward.score_batch(responses, references)] == [True, True, True, False, False]


def test_each_verdict_is_that_of_its_own_verifier(reward):
    choice, free = MultipleChoiceReward(), reward.free
    for response in (r"\boxed{B}", r"\boxed{C}", r"\boxed{1/2}", "nothing", "B."):
        assert reward(response, "B") == choice(response, "B")
        assert reward(response, "0.5") == free(response, "0.5")


def test_letters_beyond_the_choices_are_free_answers(reward):
    assert reward(r"\boxed{\text{E}}", "E") == Score(True, "E")
    assert reward(r"\boxed{x}", "x").correct


def test_an_empty_batch_needs_no_verifier(reward):
    assert reward.score_batch([], []) == []


def test_score_async_does_not_wait_for_slow_answers(reward):
    start = time.monotonic()
    slow = reward.score_async([r"\boxed{(1+x)^{1000000}}", r"\boxed{B}"], [r"x+\frac12", "B"])
    at_once = time.monotonic() - start
    assert [score.correct for score in slow()] == [False, True]
    assert at_once < (time.monotonic() - start) / 4, "it ends at its limit of a CPU second"
