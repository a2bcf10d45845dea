"""RS-GRPO against the authors' log-sum-exp, written anew in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.rs_grpo.advantage import RiskSensitiveAdvantage
from tagrpo.modules.advantages import GroupAdvantage


def by_soft_maximum(rewards, beta):
    """(e^{β (r − soft)} − 1) / β with soft = (logsumexp(β r) − log n) / β."""
    soft = (np.log(np.exp(beta * rewards).sum()) - np.log(len(rewards))) / beta
    return (np.exp(beta * (rewards - soft)) - 1) / beta


@pytest.mark.parametrize("beta", [-3.0, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("group_by", ["question", "prompt"])
def test_advantages_are_those_of_the_soft_maximum(beta, group_by, pools):
    rng = np.random.default_rng(0)
    groups = pools((3, 5), (1, 7), (6, 2))
    groups = replace(
        groups, rewards=torch.from_numpy(rng.normal(size=24)), prompt=torch.from_numpy(rng.integers(0, 4, 24))
    )
    found = RiskSensitiveAdvantage(beta, group_by)(groups).numpy()
    names = getattr(groups, group_by).numpy()
    for name in np.unique(names):
        expected = by_soft_maximum(groups.rewards.numpy()[names == name], beta)
        np.testing.assert_allclose(found[names == name], expected, rtol=1e-10, atol=1e-12)


def test_little_risk_is_the_mean_and_much_the_maximum(pools):
    groups = replace(pools((1, 3)), rewards=torch.tensor([1.0, 0.9, 0.5, 0.0], dtype=torch.float64))
    little = RiskSensitiveAdvantage(1e-7)(groups)
    torch.testing.assert_close(little, GroupAdvantage(scale="none")(groups), rtol=0, atol=1e-6)
    much = RiskSensitiveAdvantage(1e4)(groups) * 1e4  # e^{10,000} is no float
    torch.testing.assert_close(much, torch.tensor([3.0, -1, -1, -1], dtype=torch.float64))


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"advantage\.beta.*advantage=group advantage\.scale=none"):
        RiskSensitiveAdvantage(0.0)
    with pytest.raises(ValueError, match=r"advantage\.beta"):
        RiskSensitiveAdvantage(float("inf"))
    with pytest.raises(ValueError, match=r"advantage\.group_by"):
        RiskSensitiveAdvantage(2.0, "rank")
