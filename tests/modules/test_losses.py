"""The loss against a plain loop over responses and tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tagrpo.modules.losses import MAX_LOG_RATIO, PolicyLoss
from tagrpo.types import LossInputs


def make_inputs(lengths=(3, 1, 5, 2), seed=0, dtype=torch.float64, **fields):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)

    def draw(scale):
        return torch.randn(total, generator=generator, dtype=dtype) * scale

    old = -draw(1.0).abs()
    lengths = torch.tensor(lengths)
    return LossInputs(
        **{
            "logprobs": (old + draw(0.4)).requires_grad_(),
            "old_logprobs": old,
            "reference_logprobs": old + draw(0.3),
            "entropy": draw(1.0).abs(),
            "advantages": torch.randn(len(lengths), generator=generator, dtype=dtype),
            "response": torch.repeat_interleave(lengths),
            "lengths": lengths,
            "num_responses": len(lengths),
            "num_tokens": total,
        }
        | fields
    )


def loop(inputs, low, high, beta, aggregation, max_length=None, gamma=0.0, estimator="k3"):
    """The formula of the docstring, token by token, in Python floats."""
    total, start = 0.0, 0
    for r, length in enumerate(inputs.lengths.tolist()):
        advantage = float(inputs.advantages[r])
        for t in range(start, start + length):
            logprob = float(inputs.logprobs[t].detach())
            ratio = math.exp(logprob - float(inputs.old_logprobs[t]))
            term = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            d = float(inputs.reference_logprobs[t]) - logprob
            term += beta * {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[estimator]
            term -= gamma * float(inputs.entropy[t])
            divisor = {
                "sequence_mean": length * inputs.num_responses,
                "token_mean": inputs.num_tokens,
                "constant": (max_length or 1) * inputs.num_responses,
            }[aggregation]
            total += term / divisor
        start += length
    return total


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.28)])
def test_the_loss_is_the_formula(aggregation, clip, estimator):
    inputs = make_inputs()
    max_length = 8 if aggregation == "constant" else None
    loss = PolicyLoss(
        *clip,
        aggregation=aggregation,
        kl_coef=0.3,
        kl_estimator=estimator,
        entropy_coef=0.1,
        max_length=max_length,
    )
    expected = loop(inputs, *clip, 0.3, aggregation, max_length, gamma=0.1, estimator=estimator)
    assert float(loss(inputs).loss.detach()) == pytest.approx(expected, abs=1e-10)


def test_the_gradient_is_the_numerical_one():
    inputs = make_inputs()
    loss = PolicyLoss(0.2, 0.28, kl_coef=0.3)
    (gradient,) = torch.autograd.grad(loss(inputs).loss, inputs.logprobs)
    for t in range(len(gradient)):
        values = []
        for step in (1e-6, -1e-6):
            moved = inputs.logprobs.detach().clone()
            moved[t] += step
            values.append(float(loss(replace(inputs, logprobs=moved)).loss))
        assert float(gradient[t]) == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_micro_batches_add_up_to_the_whole(aggregation):
    inputs = make_inputs()
    loss = PolicyLoss(aggregation=aggregation, kl_coef=0.2, max_length=9 if aggregation == "constant" else None)
    (whole,) = torch.autograd.grad(loss(inputs).loss, inputs.logprobs)
    parts, total = [], 0.0
    for rows in ([0, 1], [2], [3]):
        tokens = torch.isin(inputs.response, torch.tensor(rows))
        part = replace(
            inputs,
            logprobs=inputs.logprobs.detach()[tokens].requires_grad_(),
            old_logprobs=inputs.old_logprobs[tokens],
            reference_logprobs=inputs.reference_logprobs[tokens],
            entropy=inputs.entropy[tokens],
            advantages=inputs.advantages[rows],
            response=inputs.response[tokens] - rows[0],
            lengths=inputs.lengths[rows],
        )
        outputs = loss(part)
        total += float(outputs.loss.detach())
        parts.append(torch.autograd.grad(outputs.loss, part.logprobs)[0])
    assert total == pytest.approx(float(loss(inputs).loss.detach()), abs=1e-12)
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-12, rtol=0)


def test_clipped_tokens_have_no_gradient_and_are_counted_by_side():
    inputs = make_inputs(
        (1, 1, 1, 1),
        logprobs=torch.tensor([0.5, 0.5, -0.5, -0.5]).requires_grad_(),
        old_logprobs=torch.zeros(4),
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]),
        reference_logprobs=None,
    )
    outputs = PolicyLoss(kl_coef=0.0)(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    # Only a ratio that has already moved the way its advantage pulls is clipped.
    assert (gradient == 0).tolist() == [True, False, False, True]
    assert (float(outputs.sums["clip_high"]), float(outputs.sums["clip_low"])) == (1, 1)


def test_importance_weights_multiply_the_policy_term_alone():
    inputs = make_inputs()
    weighted = replace(inputs, weights=torch.full_like(inputs.old_logprobs, 2.0))
    only_kl = replace(inputs, advantages=torch.zeros_like(inputs.advantages))
    loss = PolicyLoss(kl_coef=0.5)
    plain, doubled, kl = (float(loss(x).loss.detach()) for x in (inputs, weighted, only_kl))
    assert doubled - kl == pytest.approx(2 * (plain - kl), abs=1e-12)


def test_extreme_log_ratios_leave_the_gradient_finite():
    inputs = make_inputs(
        (1, 1),
        logprobs=torch.tensor([0.0, -2000.0]).requires_grad_(),
        old_logprobs=torch.tensor([-2000.0, 0.0]),
        reference_logprobs=torch.tensor([-2000.0, 0.0]),
        advantages=torch.tensor([-1.0, 1.0]),
    )
    outputs = PolicyLoss(kl_coef=1.0)(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    assert torch.isfinite(outputs.loss)
    assert torch.isfinite(gradient).all()
    assert float(outputs.sums["ratio"]) == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-6)


def test_impossible_options_are_refused():
    for options, message in (
        ({"clip_low": 1.5}, "clip_low"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        ({"kl_coef": -1.0}, "kl_coef"),
        ({"aggregation": "constant"}, "max_length"),
        ({"max_length": 10}, "max_length"),
    ):
        with pytest.raises(ValueError, match=message):
            PolicyLoss(**options)
