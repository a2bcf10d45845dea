"""NGRPO: the authors' statistics over a group and its virtual success, written anew in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.ngrpo.advantage import VirtualSuccessAdvantage


def calibrated(rewards, best, epsilon):
    """(r − mean) / (std + ε) with one reward more in both."""
    extended = np.append(rewards, best)
    return (rewards - extended.mean()) / (extended.std(ddof=1) + epsilon)


@pytest.mark.parametrize("best", [1.0, 2.5])
@pytest.mark.parametrize("group_by", ["question", "prompt", "batch"])
def test_advantages_are_those_of_a_group_with_one_reward_more(best, group_by, pools):
    rng = np.random.default_rng(0)
    groups = pools((3, 5), (0, 8), (6, 2))
    groups = replace(
        groups,
        rewards=torch.from_numpy(rng.uniform(size=24)),
        prompt=torch.from_numpy(rng.integers(-2, 2, 24)),
    )
    found = VirtualSuccessAdvantage(best, group_by, epsilon=1e-3)(groups).numpy()
    names = np.zeros(24) if group_by == "batch" else getattr(groups, group_by).numpy()
    for name in np.unique(names):
        expected = calibrated(groups.rewards.numpy()[names == name], best, 1e-3)
        np.testing.assert_allclose(found[names == name], expected, rtol=1e-12)


def test_all_wrong_is_punished_and_all_correct_is_left_alone(pools):
    advantages = VirtualSuccessAdvantage(epsilon=0.0)(pools((0, 8), (8, 0), (0, 1)))
    expected = torch.tensor([-1 / 3] * 8 + [0.0] * 8 + [-(0.5**0.5)])
    torch.testing.assert_close(advantages, expected)
    assert not advantages[8:16].any()


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"advantage\.group_by"):
        VirtualSuccessAdvantage(group_by="rank")
    with pytest.raises(ValueError, match=r"advantage\.epsilon"):
        VirtualSuccessAdvantage(epsilon=-1.0)


def test_by_default_epsilon_is_a_millionth(pools):
    advantages = VirtualSuccessAdvantage()(pools((0, 3)))
    torch.testing.assert_close(
        advantages, torch.full_like(advantages, -0.25 / (0.5 + 1e-6)), atol=1e-7, rtol=0
    )
