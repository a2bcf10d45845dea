"""Questions without gradient are found, taken out and replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tagrpo.rollouts.dynamic_sampling import DynamicSampling, join_batches, take_questions

# 0: original right, rephrasing wrong. 1: all right. 2: mixed within a prompt.
REWARDS = [[[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]]


def described(batch):
    """Everything about each response, by names instead of rows."""
    rollouts = batch.rollouts
    return [
        (
            batch.groups[int(rollouts.question[r])].id,
            rollouts.prompts[int(rollouts.prompt[r])].token_ids.tolist(),
            rollouts.prompts[int(rollouts.prompt[r])].question == int(rollouts.question[r]),
            int(rollouts.rephrasing[r]),
            rollouts.token_ids[r].tolist(),
            rollouts.logprobs[r].tolist(),
            float(rollouts.rewards[r]),
            bool(rollouts.correct[r]),
            rollouts.text[r],
            rollouts.answers[r],
        )
        for r in range(len(rollouts))
    ]


def test_what_is_informative_depends_on_the_pool(make_batch):
    rollouts = make_batch(REWARDS).rollouts
    assert DynamicSampling("question").informative(rollouts).tolist() == [0, 2]
    assert DynamicSampling("prompt").informative(rollouts).tolist() == [2]


def test_dapo_asks_whether_the_verdicts_differ_not_the_shaped_rewards(make_batch):
    rollouts = make_batch(REWARDS).rollouts
    shaped = replace(rollouts, rewards=rollouts.rewards - 0.1 * rollouts.lengths)
    assert DynamicSampling("question").informative(shaped).tolist() == [0, 1, 2]
    assert DynamicSampling("question", values="correct").informative(shaped).tolist() == [0, 2]
    assert DynamicSampling("prompt", values="correct").informative(shaped).tolist() == [2]
    with pytest.raises(ValueError, match="rewards or correct"):
        DynamicSampling(values="length")


def test_taking_questions_keeps_all_that_belongs_to_them(make_batch):
    batch = make_batch(REWARDS)
    taken = take_questions(batch, torch.tensor([0, 2]))
    assert described(taken) == [row for row in described(batch) if row[0] in ("q0", "q2")]
    assert [prompt.question for prompt in taken.prompts] == [0, 0, 1, 1]


def test_joining_puts_batches_end_to_end(make_batch):
    first, second = make_batch(REWARDS, seed=0), make_batch(REWARDS[:1], seed=1)
    joined = join_batches([take_questions(first, torch.tensor([1])), second])
    assert described(joined) == [row for row in described(first) if row[0] == "q1"] + described(second)
    assert joined.rollouts.seconds["generate"] == pytest.approx(0.2)


def named(batch, prefix):
    batch.groups = [group._replace(id=f"{prefix}{row}") for row, group in enumerate(batch.groups)]
    return batch


@pytest.mark.parametrize(
    ("max_draws", "expected", "discarded"),
    [
        (1, ["a0", "a1", "a2", "b0"], 4),  # one draw is not enough: a1 fills the batch up without gradient
        (4, ["a0", "a2", "b0", "c0"], 8),  # of the second draw one question is needed, and no third one
    ],
)
def test_draws_fill_the_batch_up_in_their_order(make_batch, max_draws, expected, discarded):
    flat, mixed = [[1.0, 1.0]], [[1.0, 0.0]]
    batch = named(make_batch([mixed, flat, mixed, flat]), "a")
    draws = {
        1: named(make_batch([mixed, flat, flat, flat], seed=1), "b"),
        2: named(make_batch([mixed, mixed, mixed, mixed], seed=2), "c"),
    }
    filled, thrown_away = DynamicSampling(max_draws=max_draws).fill_up(batch, draws.__getitem__)
    assert [group.id for group in filled.groups] == expected
    assert thrown_away == discarded
    of_all = [row for part in (batch, *draws.values()) for row in described(part)]
    assert described(filled) == [row for id in expected for row in of_all if row[0] == id]
    assert filled.rollouts.seconds["generate"] == pytest.approx(0.1 * (1 + min(max_draws, 2)))


def test_a_batch_that_lacks_nothing_is_left_as_it_is(make_batch):
    batch = make_batch([[[1.0, 0.0]], [[0.0, 1.0]]])
    filled, thrown_away = DynamicSampling().fill_up(batch, lambda number: pytest.fail("nothing is to be drawn"))
    assert (described(filled), thrown_away) == (described(batch), 0)


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="question or prompt"):
        DynamicSampling("batch")
    with pytest.raises(ValueError, match="max_draws"):
        DynamicSampling(max_draws=0)
