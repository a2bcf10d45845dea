"""Scores and completions are checked when they are made."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from tagrpo.types import Completion, InvalidScoreError, Score

BOOLS = [True, np.bool_(True), np.array([1, 2])[0] == 1, torch.tensor(True), torch.tensor([1.0, 2.0])[1] > 1]
NO_BOOLS = [
    -1.0, 1.0, 0.0, 1, 0, -1, 0.5, None, "True", "", "27", [], [True], (), np.float64(1.0), np.int64(1),
    np.array([True]), torch.tensor(1.0), torch.tensor([True]), torch.tensor(1), float("nan"), object(), True + 0j,
]  # fmt: skip


@pytest.mark.parametrize("correct", BOOLS)
def test_bools_of_python_numpy_and_torch_are_verdicts(correct):
    for verdict in (correct, ~correct if not isinstance(correct, bool) else not correct):
        score = Score(verdict, "27")
        assert score.correct is bool(verdict)
        assert type(score.correct) is bool


@pytest.mark.parametrize("correct", NO_BOOLS, ids=lambda value: type(value).__name__)
def test_every_other_value_is_no_verdict(correct):
    with pytest.raises(InvalidScoreError, match=r"Score\.correct to be a bool"):
        Score(correct, "27")
    with pytest.raises(InvalidScoreError, match=r"Score\.correct"):
        Score(True, "27")._replace(correct=correct)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("27", True), "correct"), ((True, 27), "answer"), ((True, ["27"]), "answer"), ((True, b"27"), "answer"),
        ((False, None, True), "failure"), ((False, None, 3), "failure"), ((True, "27", "timeout"), "failure"),
    ],
)  # fmt: skip
def test_swapped_and_mistyped_fields_are_refused_by_name(arguments, field):
    with pytest.raises(InvalidScoreError, match=rf"Score\.{field}"):
        Score(*arguments)


def test_a_score_stays_what_it_is_when_copied_pickled_or_replaced():
    score = Score(np.bool_(True), "27")
    assert pickle.loads(pickle.dumps(score)) == copy.deepcopy(score) == score
    assert score._replace(answer=None) == Score(True, None)
    assert repr(Score(False, None)) == "Score(correct=False, answer=None, failure=None)"


@pytest.mark.parametrize("reward", ["0.5", math.nan, -math.inf, 1e19, [0.5], 1j, torch.zeros(1)])
def test_a_graded_reward_is_one_finite_number(reward):
    with pytest.raises(InvalidScoreError, match=r"Score\.reward"):
        Score(True, "27", reward=reward)


@pytest.mark.parametrize("reward", [0.5, np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_a_graded_reward_may_go_with_any_verdict(reward):
    for correct in (True, False):
        score = Score(correct, "27", reward=reward)
        assert (type(score.reward), score.reward, score.correct) == (float, 0.5, correct)
        assert repr(score) == f"Score(correct={correct}, answer='27', failure=None, reward=0.5)"
    assert Score(True, None, reward=True).reward == 1.0
    assert Score(True, None, parts=[("a", 1.0)]) in {Score(True, None, parts=(("a", 1.0),))}


COMPLETION = {"token_ids": torch.tensor([7, 2]), "logprobs": torch.tensor([-1.0, -0.5]), "truncated": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_ids", [7, 2]), ("token_ids", torch.tensor([7.0, 2.0])), ("token_ids", torch.tensor([[7, 2]])),
        ("token_ids", torch.tensor([7, 2], dtype=torch.int32)), ("token_ids", None), ("token_ids", torch.tensor(7)),
        ("logprobs", [-1.0, -0.5]), ("logprobs", None), ("logprobs", torch.tensor([-1.0, -0.5]).double()),
        ("logprobs", torch.tensor([[-1.0, -0.5]])), ("truncated", 0), ("truncated", None),
    ],
)  # fmt: skip
def test_a_completion_of_other_types_is_refused_by_the_name_of_the_field(name, value):
    with pytest.raises(TypeError, match=rf"Completion\.{name}"):
        Completion(**{**COMPLETION, name: value})


def test_a_completion_has_at_least_one_token_and_a_logprob_of_each():
    assert len(Completion(**COMPLETION).token_ids) == 2
    for count in (1, 3):
        with pytest.raises(ValueError, match=rf"2 token_ids and {count} logprobs"):
            Completion(**{**COMPLETION, "logprobs": torch.zeros(count)})
    with pytest.raises(ValueError, match="Completion .*0 token_ids"):
        Completion(token_ids=torch.zeros(0, dtype=torch.long), logprobs=torch.zeros(0), truncated=False)
