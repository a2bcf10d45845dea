"""The experiments of Pass@k training build the strategy that their name promises, over pools of 32 responses."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

from tagrpo.contrib.greso.curriculum import SkipUniform
from tagrpo.contrib.negative_reinforcement.advantage import VerdictAdvantage
from tagrpo.contrib.outcome_exploration.advantage import HistoricalExplorationAdvantage
from tagrpo.contrib.pkpo.advantage import PKPOAdvantage
from tagrpo.contrib.rs_grpo.advantage import RiskSensitiveAdvantage
from tagrpo.modules.advantages import (
    CombinationAdvantage,
    EntropyAdaptiveAdvantage,
    ExceedingPassAtKAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
)
from tagrpo.modules.losses import PolicyLoss

pytestmark = pytest.mark.shell


def composed(experiment):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("train", [f"experiment={experiment}"])


def samples_per_question(cfg):
    return (1 + cfg.data.num_rephrasings) * cfg.data.samples_per_prompt


@pytest.mark.parametrize(
    ("experiment", "estimator"),
    [
        ("pass_at_k", "analytic"),
        ("pass_at_k_bootstrap", "bootstrap"),
        ("pass_at_k_full", "full"),
        ("pass_at_k_pooled", "analytic"),
    ],
)
def test_each_estimator_of_pass_at_k_is_an_experiment(experiment, estimator):
    cfg = composed(experiment)
    strategy = instantiate(cfg.advantage)
    assert type(strategy) is PassAtKAdvantage
    assert (strategy.estimator, strategy.k, strategy.group_by) == (estimator, 4, "question")
    assert samples_per_question(cfg) == 32


@pytest.mark.parametrize(
    ("experiment", "strategy"),
    [
        ("combination", CombinationAdvantage),
        ("entropy_adaptive", EntropyAdaptiveAdvantage),
        ("exceeding_pass_at_k", ExceedingPassAtKAdvantage),
    ],
)
def test_each_form_of_pass_at_k_is_an_experiment(experiment, strategy):
    cfg = composed(experiment)
    assert type(instantiate(cfg.advantage)) is strategy
    assert (cfg.policy.anchor, cfg.data.num_rephrasings, samples_per_question(cfg)) == ("own", 0, 32)


def test_only_the_pooled_run_rephrases_and_anchors():
    for experiment, expected in (("pass_at_k", ("own", 0)), ("pass_at_k_pooled", ("original", 3))):
        cfg = composed(experiment)
        assert (cfg.policy.anchor, cfg.data.num_rephrasings) == expected


@pytest.mark.parametrize(
    ("experiment", "options"),
    [
        ("rloo", ("prompt", "leave_one_out", "none")),
        ("dr_grpo", ("prompt", "mean", "none")),
        ("max_rl", ("prompt", "mean", "mean")),
    ],
)
def test_relatives_of_grpo_are_options_of_the_group_advantage(experiment, options):
    strategy = instantiate(composed(experiment).advantage)
    assert (strategy.group_by, strategy.baseline, strategy.scale) == options


@pytest.mark.parametrize(
    ("experiment", "weights"), [("psr", (1.0, 0.0)), ("nsr", (0.0, -1.0)), ("w_reinforce", (0.1, -1.0))]
)
def test_positive_and_negative_samples_are_weights_of_the_verdicts(experiment, weights):
    strategy = instantiate(composed(experiment).advantage)
    assert isinstance(strategy, VerdictAdvantage)
    assert (strategy.correct, strategy.wrong) == weights


def test_pkpo_compares_groups_of_four_with_groups_of_three():
    strategy = instantiate(composed("pkpo").advantage)
    assert isinstance(strategy, PKPOAdvantage)
    assert (strategy.k, strategy.baseline, strategy.group_by) == (4, "fewer", "question")


def test_rs_grpo_seeks_as_much_risk_as_its_paper_recommends():
    strategy = instantiate(composed("rs_grpo").advantage)
    assert isinstance(strategy, RiskSensitiveAdvantage)
    assert (strategy.beta, strategy.group_by) == (2.0, "question")


def test_exploration_by_outcomes_is_a_bonus_on_grpo():
    strategy = instantiate(composed("outcome_exploration").advantage)
    assert type(strategy) is HistoricalExplorationAdvantage
    assert (strategy.coefficient, type(strategy.base), strategy.base.group_by) == (
        0.1,
        GroupAdvantage,
        "question",
    )


def test_greso_skips_questions_and_replaces_what_it_did_not_foresee():
    cfg = composed("greso")
    curriculum = instantiate(cfg.data.curriculum)
    assert isinstance(curriculum, SkipUniform)
    assert (curriculum.chances, cfg.rollout.dynamic_sampling.pool) == ({1.0: 0.5, 0.0: 0.5}, "prompt")


def test_dr_grpo_divides_by_the_length_limit():
    cfg = composed("dr_grpo")
    loss = instantiate(cfg.loss)
    assert isinstance(loss, PolicyLoss)
    assert (loss.aggregation, loss.max_length) == ("constant", cfg.rollout.sampling.max_new_tokens)
