"""RL-ZVP against Eq. 5 of its paper, token by token."""

from __future__ import annotations

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tagrpo.contrib.rl_zvp.credit import ZeroVarianceCredit
from tagrpo.settings.methods import options_of


@pytest.mark.parametrize("group_by", ["question", "prompt"])
@pytest.mark.parametrize("rewards", [(1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0)])
def test_a_pool_of_equal_rewards_has_the_entropies_of_equation_5(make_inputs, rewards, group_by):
    inputs = make_inputs(rewards)
    found = ZeroVarianceCredit(0.1, group_by)(inputs).advantages
    pools = [0, 0, 1, 1] if group_by == "question" else [0, 1, 2, 3]
    for row, reward in enumerate(rewards):
        tokens = inputs.response == row
        entropy = inputs.entropy[tokens]
        of_pool = {r for r, pool in zip(rewards, pools, strict=True) if pool == pools[row]}
        if len(of_pool) > 1:
            expected = [float(inputs.advantages[row])] * len(entropy)
        elif reward > 0:
            expected = [0.1 * float(h) for h in entropy]
        else:
            expected = [-0.1 * (float(entropy.max()) - float(h)) for h in entropy]
        assert found[tokens].tolist() == pytest.approx(expected, abs=1e-7)


def test_a_response_that_is_left_out_still_makes_its_pool_a_mixed_one(make_inputs):
    inputs = make_inputs((1.0, 0.0, 1.0, 1.0), counted=(True, False, True, True))
    found = ZeroVarianceCredit(0.1)(inputs).advantages
    assert found[:5].tolist() == pytest.approx([0.75] * 5)
    torch.testing.assert_close(found[5:], 0.1 * inputs.entropy[5:])


def test_alpha_is_the_papers_unless_another_is_given(make_inputs):
    inputs = make_inputs((1.0, 1.0, 0.0, 1.0))
    found = ZeroVarianceCredit()(inputs).advantages
    torch.testing.assert_close(found[:8], 0.1 * inputs.entropy[:8])


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"credit\.alpha"):
        ZeroVarianceCredit(0.0)
    with pytest.raises(ValueError, match=r"credit\.group_by.*'batch'"):
        ZeroVarianceCredit(0.1, "batch")


@pytest.mark.parametrize("advantage", options_of("advantage"))
def test_credit_pools_as_every_strategy_does(advantage):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [f"advantage={advantage}", "credit=zero_variance"])
    assert instantiate(cfg.credit).group_by == "question"
    if advantage != "verdict":  # which has no pool
        OmegaConf.update(cfg, "advantage.group_by", "prompt")
        assert instantiate(cfg.credit).group_by == "prompt"
