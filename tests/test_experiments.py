"""Experiments that vary another one differ from it in what their name says, and in nothing else."""

from __future__ import annotations

from functools import cache

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

SCALES = {"demo": [], "paper": ["scale=paper", "data.train.path=x", "data.evaluation.test.path=y"]}


def leaves(node, prefix=""):
    """Path → value of what is set in a plain configuration, interpolations as they are written."""
    if isinstance(node, dict):
        return {
            path: leaf
            for key, value in node.items()
            for path, leaf in leaves(value, f"{prefix}{key}.").items()
        }
    return {} if node is None else {prefix[:-1]: node}


@cache
def settings(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", list(overrides))
    return leaves(OmegaConf.to_container(cfg, resolve=False))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("experiment", "varied", "difference"),
    [
        ("ta_grpo_corrected", "ta_grpo", {"policy.prompt_correction": 2.0}),
        (
            "ta_grpo_adaptive",
            "ta_grpo",
            {
                "data.curriculum._target_": "tagrpo.contrib.adaptive_rephrasings.curriculum.AdaptiveRephrasings",
                "data.curriculum.low": 0,
                "data.curriculum.high": "${data.num_rephrasings}",
                "data.curriculum.samples": "${data.samples_per_prompt}",
                "data.curriculum.decay": 0.5,
            },
        ),
        (
            "noisy_rewards",
            "pass_at_1",
            {
                "rollout.reward_terms.noise._target_": "tagrpo.rewards.terms.RewardNoise",
                "rollout.reward_terms.noise.probability": 0.1,
                "rollout.reward_terms.noise.seed": "${seed}",
            },
        ),
    ],
)
def test_a_variation_changes_what_it_names_and_nothing_else(experiment, varied, difference, scale):
    one, other = (settings(f"experiment={name}", *SCALES[scale]) for name in (experiment, varied))
    changed = {path: one.get(path) for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
    assert changed == difference | {"name": experiment}


@pytest.mark.parametrize(("experiment", "batches"), [("dapo", 20), ("rl_zvp", 4)])
def test_warm_up_that_a_paper_counts_in_batches_is_counted_in_optimizer_steps(experiment, batches):
    found = settings(f"experiment={experiment}", *SCALES["paper"])
    assert found["policy.warmup"] == batches * found["policy.mini_batches"] == batches * 16


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        (
            "high_entropy_tokens",
            {
                "rollout.reward_terms.overlong._target_": "tagrpo.rewards.terms.SoftOverlongPenalty",
                "rollout.reward_terms.overlong.cache": 4096,
                "rollout.reward_terms.signed._target_": None,  # rewards of 1 and 0
                "rollout.sampling.max_new_tokens": 20480,
                "trainer.max_epochs": 30,
                "policy.max_grad_norm": 1.0,
            },
        ),
        ("unlikeliness", {"policy.skip_grad_norm": 20.0, "advantage.ranked_by": "sequence"}),
        ("rs_grpo", {"data.samples_per_prompt": 16, "advantage.beta": 2.0}),
        ("greso", {"optimizer.weight_decay": 0.01}),
        ("ngrpo", {"optimizer.weight_decay": 0.01, "loss.clip_low": 0.16, "loss.clip_high": 0.24}),
    ],
)
def test_settings_of_a_paper_at_its_scale(experiment, expected):
    found = settings(f"experiment={experiment}", *SCALES["paper"])
    assert {path: found.get(path) for path in expected} == expected
