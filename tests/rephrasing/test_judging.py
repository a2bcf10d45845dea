from __future__ import annotations

import pytest

from tagrpo.rephrasing.judging import Majority, judge_request, majority, solver_verdict
from tagrpo.rephrasing.verdicts import Pair
from tagrpo.rewards import FinalAnswerReward

VERIFIER = FinalAnswerReward()


def vote(*answers):
    return majority([f"so #### {answer}" if answer else "?" for answer in answers], ("5",), VERIFIER)


def test_correct_answers_vote_together_however_they_are_written():
    assert vote("5", "5.0", "05", "7", "7") == Majority("5", 3, 5)
    assert vote("5", "7") == Majority(None, 1, 2)
    assert vote("", "") == Majority(None, 0, 2)


@pytest.mark.parametrize(
    ("original", "rephrased", "passed"),
    [
        (("5", "5", "7"), ("5", "5", "5"), True),  # right on both
        (("7", "8", "9"), ("5", "5", "7"), True),  # right on the rephrasing
        (("7", "7", "5"), ("7", "7", "7"), True),  # wrong alike
        (("5", "5", "5"), ("7", "7", "5"), False),  # another problem now
        (("5", "5", "5"), ("7", "8", "9"), None),  # no majority to the rephrasing
        (("7", "7", "5"), ("8", "8", "8"), None),  # the solver never was right
    ],
)
def test_a_rephrasing_fails_only_where_a_solver_that_was_right_changes_its_mind(original, rephrased, passed):
    verdict = solver_verdict(vote(*original), vote(*rephrased), ("5",))
    assert verdict.passed is passed
    assert verdict.reason


def test_the_judge_does_not_see_the_answer():
    request = judge_request("q", Pair("What is 2 + 40?", "Add 2 and 40.", ("42",)), "m", {})
    assert "42" not in request.system + request.user
