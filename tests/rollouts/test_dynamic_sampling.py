"""Questions without gradient are found, taken out and replaced."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from scipy.stats import binom

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


def test_pooled_over_rephrasings_a_question_is_kept_whose_original_is_all_wrong_and_its_rephrasing_all_right(
    make_batch,
):
    batch = named(make_batch([[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]]), "a")
    drawn = named(make_batch([[[1.0, 0.0], [0.0, 0.0]]] * 2, seed=1), "b")
    for pool, expected in (("question", ["a1", "b0"]), ("prompt", ["b0", "b1"])):
        filled, *_ = DynamicSampling(pool).fill_up(batch, lambda: drawn)
        assert [group.id for group in filled.groups] == expected


def test_a_pool_of_several_questions_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"'batch'.* follows advantage\.group_by; set rollout\.dynamic_sampling\.pool"
    ):
        DynamicSampling("batch")


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
    draws = [
        named(make_batch([mixed, flat, flat, flat], seed=1), "b"),
        named(make_batch([mixed, mixed, mixed, mixed], seed=2), "c"),
    ]
    sampling = DynamicSampling(max_draws=max_draws)
    with (
        pytest.warns(UserWarning, match=r"at most 1 further .*max_draws") if max_draws == 1 else nullcontext()
    ):
        filled, *counts = sampling.fill_up(batch, iter(draws).__next__)
    assert [group.id for group in filled.groups] == expected
    assert counts == [min(max_draws, 2), discarded, max_draws == 1]
    of_all = [row for part in (batch, *draws) for row in described(part)]
    assert described(filled) == [row for id in expected for row in of_all if row[0] == id]
    assert filled.rollouts.seconds["generate"] == pytest.approx(0.1 * (1 + min(max_draws, 2)))


def test_a_batch_that_lacks_nothing_is_left_as_it_is(make_batch):
    batch = make_batch([[[1.0, 0.0]], [[0.0, 1.0]]])
    filled, *counts = DynamicSampling().fill_up(batch, lambda: pytest.fail("nothing is to be drawn"))
    assert (described(filled), counts) == (described(batch), [0, 0, False])


def test_the_warning_comes_once_and_the_fact_every_time(make_batch):
    sampling = DynamicSampling(max_draws=1)
    with pytest.warns(UserWarning, match="max_draws") as warned:
        filled = [
            sampling.fill_up(make_batch([[[1.0, 1.0]]]), lambda: make_batch([[[0.0, 0.0]]])) for _ in range(2)
        ]
    assert (len(warned), [limit_reached for *_, limit_reached in filled]) == (1, [True, True])


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8, 32, 256])
@pytest.mark.parametrize("uniform", [0.62, 0.93])  # TA-GRPO, Fig. 3: the smallest and the largest share
def test_by_default_the_limit_is_hardly_ever_reached_at_the_papers_uniform_rates(batch_size, uniform):
    questions = batch_size * (1 + DynamicSampling().max_draws)
    assert binom.cdf(batch_size - 1, questions, 1 - uniform) < 0.01


def test_at_93_percent_uniform_a_batch_of_the_demos_size_is_filled_with_informative_questions(make_batch):
    generator = torch.Generator().manual_seed(0)
    flat, mixed = make_batch([[[1.0, 1.0]]] * 8), make_batch([[[1.0, 0.0]]] * 8)

    def sampled():
        informative = torch.rand(8, generator=generator) < 0.07
        rows = [flags.nonzero()[:, 0] for flags in (informative, ~informative)]
        return join_batches([take_questions(part, r) for part, r in zip((mixed, flat), rows, strict=True)])

    sampling, every = DynamicSampling(), 0
    for _ in range(40):
        filled, draws, discarded, _ = sampling.fill_up(sampled(), sampled)
        assert len(sampling.informative(filled.rollouts)) == 8
        assert discarded == 8 * draws
        every += draws
    # The eighth informative question is the 114th on average, in the 15th batch.
    assert every / 40 == pytest.approx(8 / 0.07 / 8 - 0.5, rel=0.15)


def test_what_is_drawn_in_vain_is_not_kept(make_batch):
    drawn = []

    def draw():
        assert [ref() for ref in drawn] == [None] * len(drawn), "earlier draws are still in memory"
        batch = make_batch([[[1.0, 1.0]]] * 3 if len(drawn) < 3 else [[[1.0, 0.0]]] * 3)
        drawn.append(weakref.ref(batch.rollouts))
        return batch

    filled, *counts = DynamicSampling().fill_up(make_batch([[[1.0, 1.0]]] * 3), draw)
    assert (len(filled.groups), counts) == (3, [4, 12, False])


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="question or prompt"):
        DynamicSampling("batch")
    with pytest.raises(ValueError, match="max_draws"):
        DynamicSampling(max_draws=0)


def test_reward_parts_follow_their_responses(make_batch):
    """A batch to which no function with a name applies lacks the name."""

    def with_parts(**parts):
        batch = make_batch([[[0.0, 1.0]], [[0.0, 0.0]]])
        batch.rollouts = replace(
            batch.rollouts, reward_parts={name: torch.tensor(v) for name, v in parts.items()}
        )
        return batch

    first, second = with_parts(a=[1.0, 2.0, 3.0, 4.0]), with_parts(b=[5.0, 6.0, 7.0, 8.0])
    taken = take_questions(first, torch.tensor([1]))
    assert taken.rollouts.reward_parts["a"].tolist() == [3.0, 4.0]
    joined = join_batches([taken, second]).rollouts.reward_parts
    assert list(joined) == ["a", "b"]
    assert joined["a"].nan_to_num(-1).tolist() == [3.0, 4.0, -1, -1, -1, -1]
    assert joined["b"].nan_to_num(-1).tolist() == [-1, -1, 5.0, 6.0, 7.0, 8.0]
