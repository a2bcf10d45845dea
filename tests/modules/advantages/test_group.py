"""Group advantages against a loop over pools in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.advantages.pools import pool_index
from tagrpo.types import RewardGroups


def groups_of(rewards, question, prompt=None):
    rewards = torch.tensor(rewards, dtype=torch.float32)
    question = torch.tensor(question)
    prompt = question if prompt is None else torch.tensor(prompt)
    return RewardGroups(rewards=rewards, correct=rewards > 0.5, question=question, prompt=prompt)


def by_loop(groups, group_by, baseline, scale, unbiased, epsilon):
    rewards = groups.rewards.double().numpy()
    keys = np.zeros(len(rewards)) if group_by == "batch" else getattr(groups, group_by).numpy()

    def std(values):
        return values.std(ddof=1 if unbiased and len(values) > 1 else 0)

    out = np.zeros(len(rewards))
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        for row in rows:
            others = rewards[[r for r in rows if r != row]]
            base = {
                "mean": rewards[rows].mean(),
                "none": 0.0,
                "leave_one_out": others.mean() if len(others) else rewards[row],
            }
            out[row] = rewards[row] - base[baseline]
            if baseline != "none" and np.ptp(rewards[rows]) == 0:
                out[row] = 0.0
            if scale == "mean":
                out[row] = 0.0 if not rewards[rows].any() else out[row] / (rewards[rows].mean() + epsilon)
            elif scale != "none":
                pool = rewards if scale == "batch" else rewards[rows]
                out[row] = 0.0 if np.ptp(pool) == 0 else out[row] / (std(pool) + epsilon)
    return out


@pytest.mark.parametrize("group_by", ["question", "prompt", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "none"])
@pytest.mark.parametrize("scale", ["std", "mean", "batch", "none"])
@pytest.mark.parametrize("unbiased", [True, False])
def test_every_combination_equals_the_loop(group_by, baseline, scale, unbiased):
    rng = np.random.default_rng(0)
    groups = groups_of(
        rng.choice([0.0, 0.1, 1.0], 40).tolist(),
        rng.choice([7, -3, 100, 5], 40).tolist(),
        rng.integers(0, 12, 40).tolist(),
    )
    strategy = GroupAdvantage(group_by, baseline, scale, unbiased, epsilon=1e-3)
    expected = by_loop(groups, group_by, baseline, scale, unbiased, 1e-3)
    np.testing.assert_allclose(strategy(groups).numpy(), expected, atol=1e-6)


def test_pooling_rescues_a_uniform_question():
    # The original is always right, its rephrasing always wrong: each alone says nothing, together they do.
    groups = groups_of([1.0, 1.0, 0.0, 0.0], [0, 0, 0, 0], [0, 0, 1, 1])
    assert GroupAdvantage("prompt")(groups).tolist() == [0, 0, 0, 0]
    # Equal halves: mean 1/2, standard deviation with Bessel's correction √(1/3).
    torch.testing.assert_close(
        GroupAdvantage("question", epsilon=0.0)(groups), torch.tensor([1, 1, -1, -1]) * 0.75**0.5
    )


@given(value=st.floats(-3, 3, width=32), size=st.integers(1, 9))
@settings(max_examples=min(50, settings.default.max_examples))
def test_equal_rewards_give_exact_zeros(value, size):
    groups = groups_of([value] * size, [0] * size)
    for group_by in ("question", "batch"):
        for baseline in ("mean", "leave_one_out"):
            for scale in ("std", "mean", "none", "batch"):
                assert not GroupAdvantage(group_by, baseline, scale)(groups).any()


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 3)), min_size=1, max_size=20),
    st.randoms(),
)
@settings(max_examples=min(50, settings.default.max_examples))
def test_order_and_names_of_groups_do_not_matter(rows, random):
    rewards, question = map(list, zip(*rows, strict=True))
    order = list(range(len(rows)))
    random.shuffle(order)
    plain = GroupAdvantage("question")(groups_of(rewards, question))
    shuffled = GroupAdvantage("question")(
        groups_of([rewards[i] for i in order], [100 - 7 * question[i] for i in order])
    )
    torch.testing.assert_close(shuffled, plain[order])


def test_one_response_has_no_advantage_over_others():
    for scale in ("std", "none"):
        assert GroupAdvantage("question", "leave_one_out", scale)(groups_of([1.0, 0.0], [0, 1])).tolist() == [
            0,
            0,
        ]


def test_of_sixteen_responses_one_success_counts_fifteen_failures():
    # MaxRL: (1 − 1/16) / (1/16) and −1; four of 16 count 3, none and all nothing.
    strategy = GroupAdvantage("question", scale="mean", epsilon=0.0)
    for correct, right in ((1, 15.0), (4, 3.0)):
        advantages = strategy(groups_of([1.0] * correct + [0.0] * (16 - correct), [0] * 16)).tolist()
        assert advantages == [right] * correct + [-1.0] * (16 - correct)
    assert strategy(groups_of([0.0] * 16 + [1.0] * 16, [0] * 16 + [1] * 16)).tolist() == [0.0] * 32


def test_a_mean_that_is_not_positive_cannot_scale():
    with pytest.raises(ValueError, match=r"advantage\.scale is mean.* mean of -0\.5.*reward_terms"):
        GroupAdvantage(scale="mean")(groups_of([1.0, 0.0, -2.0, 1.0], [0, 0, 1, 1]))


def test_impossible_options_are_refused():
    for options in ({"group_by": "rank"}, {"baseline": "median"}, {"scale": "mad"}, {"epsilon": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            GroupAdvantage(**options)


def test_a_batch_is_one_pool_and_nothing_is_none():
    groups = groups_of([1.0, 0.0, 0.0], [4, 4, 9])
    assert pool_index(groups, "batch")[1] == 1
    assert pool_index(groups_of([], []), "batch")[1] == 0


def test_a_mean_of_zero_or_less_is_refused_by_that_of_the_first_such_pool():
    def found(*rewards):
        rewards = torch.tensor(rewards)
        question = torch.arange(len(rewards)) % max(len(rewards) // 2, 1)
        groups = RewardGroups(rewards=rewards, correct=rewards > 0, question=question, prompt=question)
        return GroupAdvantage(scale="mean")(groups)

    with pytest.raises(ValueError, match="a mean of 0\\."):
        found(1.0, -1.0)
    with pytest.raises(ValueError, match="a mean of -2\\."):
        found(1.0, -1.0, -4.0, -5.0, 2.0, -3.0, 1.0, -6.0)
