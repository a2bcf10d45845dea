"""A run that cannot learn says so early, once, with responses and the setting to change."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from tagrpo.callbacks import FirstLook
from tests.callbacks.test_diagnostics import Foreign, loader, make_trainer

EQUAL, MIXED = [[[0.0, 0.0], [0.0, 0.0]]], [[[1.0, 0.0], [0.0, 0.0]]]


def warned(tmp_path, batches, **options):
    """The texts of the warnings of a fit, which must be those of the file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, batches, FirstLook(**options)).fit(Foreign(), loader(batches))
    texts = [str(one.message) for one in caught if "Responses:" in str(one.message)]
    file = tmp_path / "warnings.md"
    assert (file.read_text() if file.exists() else "") == (f"{texts[-1]}\n" if texts else "")
    return texts


def unread(batch):
    return replace(
        batch, rollouts=replace(batch.rollouts, answers=[None] * 4, text=[f"well, {i}" for i in range(4)])
    )


def test_no_answer_in_a_batch_is_told_with_three_responses(tmp_path, make_batch):
    (text,) = warned(tmp_path, [unread(make_batch(EQUAL)), unread(make_batch(EQUAL)), make_batch(MIXED)])
    assert text.startswith("Iteration 1: No answer was found")
    assert "0 of 4 responses were cut off" in text
    assert text.splitlines()[1:] == [f"- 'well, {i}', expected '1'" for i in range(3)]
    assert all(setting in text for setting in ("`reward`", "`template`", "rollout.sampling.max_new_tokens"))


def test_equal_rewards_are_told_once_there_were_as_many_batches_as_one_waits_for(tmp_path, make_batch):
    (text,) = warned(tmp_path, [make_batch(EQUAL)] * 4, patience=3)
    assert text.startswith("Iteration 3: All rewards of the first 3 iterations are 0:")


@pytest.mark.parametrize("order", [(EQUAL, MIXED), (MIXED, EQUAL), (MIXED, MIXED)])
def test_a_run_with_any_difference_in_reward_is_left_alone(tmp_path, make_batch, order):
    assert warned(tmp_path, [*map(make_batch, order), make_batch(EQUAL)]) == []


def test_two_rewards_that_are_equal_within_batches_alone_are_a_difference(tmp_path, make_batch):
    assert warned(tmp_path, [make_batch(EQUAL), make_batch([[[1.0, 1.0], [1.0, 1.0]]])]) == []


def test_at_least_one_batch_is_looked_at():
    with pytest.raises(ValueError, match=r"callbacks.first_look.patience.*0"):
        FirstLook(patience=0)


def test_graded_rewards_need_no_answer(tmp_path, make_batch):
    graded = unread(make_batch(EQUAL))
    graded = replace(graded, rollouts=replace(graded.rollouts, rewards=torch.tensor([0.0, 0.25, 0.5, 0.0])))
    assert warned(tmp_path, [graded, graded, graded]) == []
