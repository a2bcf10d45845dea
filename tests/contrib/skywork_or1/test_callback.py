"""The adaptive entropy coefficient against the authors' controller, written anew."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tagrpo.contrib.skywork_or1 import callback as module
from tagrpo.contrib.skywork_or1.callback import AdaptiveEntropy


class Controller:
    """EntController of SkyworkAI/Skywork-OR1 at 64e96af, verl/trainer/ppo/core_algos.py."""

    def __init__(self, target, step, most, least):
        self.value, self.enabled = 0.0, 1
        self.target, self.step, self.most, self.least = target, step, most, least

    def update(self, entropy):
        self.value += self.step if entropy < self.target else -self.step
        self.value = float(np.clip(self.value, self.least, self.most))
        self.enabled = int(entropy < self.target)


def make_module():
    logged = []
    return SimpleNamespace(
        loss=SimpleNamespace(entropy_coef=0.0),
        trainer=SimpleNamespace(callbacks=[]),
        log_dict=logged.append,
        logged=logged,
    )


def batch_of(*logprobs):
    parts = [torch.tensor(part) for part in logprobs]
    return SimpleNamespace(
        rollouts=SimpleNamespace(logprobs=parts, lengths=torch.tensor([len(part) for part in parts]))
    )


@pytest.mark.parametrize("settings", [(0.2, 1e-4, 5e-3, 0.0), (0.5, 0.3, 1.0, 0.1)])
def test_the_coefficient_is_that_of_the_authors_controller(settings):
    rng, policy = np.random.default_rng(0), make_module()
    adaptive, theirs = AdaptiveEntropy(*settings), Controller(*settings)
    adaptive.on_train_start(None, policy)
    coefficients = [policy.loss.entropy_coef]
    for entropy in np.concatenate([rng.uniform(0, 0.4, 40), np.full(80, 0.1), rng.uniform(0, 1.0, 40)]):
        adaptive.on_train_batch_end(None, policy, None, batch_of([-entropy / 2] * 3, [-entropy * 2.5]), 0)
        theirs.update(entropy)
        assert policy.loss.entropy_coef == pytest.approx(theirs.value * theirs.enabled, abs=1e-9)
        assert policy.logged[-1]["adaptive_entropy/entropy"] == pytest.approx(entropy, abs=1e-6)
        assert policy.logged[-1]["adaptive_entropy/coef"] == policy.loss.entropy_coef
        coefficients.append(policy.loss.entropy_coef)
    assert coefficients[0] == min(coefficients) == 0.0
    assert max(coefficients) == pytest.approx(min(settings[2], 120 * settings[1]), rel=0.5)


def test_a_resumed_run_goes_on_with_the_coefficient():
    policy, resumed = make_module(), make_module()
    first = AdaptiveEntropy(target=1.0, step=0.25, most=0.6)
    for _ in range(2):
        first.on_train_batch_end(None, policy, None, batch_of([-0.5]), 0)
    second = AdaptiveEntropy(target=1.0, step=0.25, most=0.6)
    second.load_state_dict(first.state_dict())
    second.on_train_start(None, resumed)
    assert resumed.loss.entropy_coef == policy.loss.entropy_coef == 0.5
    for adaptive, one in ((first, policy), (second, resumed)):
        adaptive.on_train_batch_end(None, one, None, batch_of([-0.5]), 0)
        assert one.loss.entropy_coef == 0.6
        adaptive.on_train_batch_end(None, one, None, batch_of([-2.0]), 0)
        assert one.loss.entropy_coef == 0.0
    again, third = make_module(), AdaptiveEntropy(target=1.0, step=0.25, most=0.6)
    third.load_state_dict(second.state_dict())
    third.on_train_start(None, again)
    assert again.loss.entropy_coef == 0.0, "it is switched off, whatever γ is"
    for adaptive, one in ((first, policy), (third, again)):
        adaptive.on_train_batch_end(None, one, None, batch_of([-0.5]), 0)
        assert one.loss.entropy_coef == pytest.approx(0.6), "0.35 and 0.25 more"


def test_unset_options_are_those_of_the_authors():
    options = vars(AdaptiveEntropy())
    assert {name: options[name] for name in ("target", "step", "most", "least")} == {
        "target": 0.2, "step": 1e-4, "most": 5e-3, "least": 0.0,
    }  # fmt: skip


def test_an_entropy_at_the_target_is_not_below_it_and_bounds_may_meet():
    policy, adaptive = make_module(), AdaptiveEntropy(target=0.5, step=0.25, most=0.125, least=0.125)
    for logprob, coefficient in ((-0.5, 0.0), (-0.25, 0.125)):
        adaptive.on_train_batch_end(None, policy, None, batch_of([logprob]), 0)
        assert policy.loss.entropy_coef == coefficient


def test_the_entropy_is_that_of_all_ranks(monkeypatch):
    other = {"logprobs": -9.0, "tokens": 3.0}
    monkeypatch.setattr(
        module, "sum_over_ranks", lambda sums: {name: value + other[name] for name, value in sums.items()}
    )
    policy = make_module()
    AdaptiveEntropy().on_train_batch_end(None, policy, None, batch_of([-1.0]), 0)
    assert policy.logged[-1]["adaptive_entropy/entropy"] == 2.5


def test_impossible_options_are_refused():
    for options in ({"step": 0.0}, {"least": -1.0}, {"least": 1.0, "most": 0.5}):
        with pytest.raises(ValueError, match="0 ≤ least ≤ most .*step > 0"):
            AdaptiveEntropy(**options)
