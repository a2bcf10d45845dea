"""The loss against a plain loop over responses and tokens, and against padded formulas of each method."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace

import pytest
import torch

from tagrpo.modules import losses
from tagrpo.modules.losses import MAX_LOG_RATIO, PolicyLoss, bounded_exp, token_kl
from tagrpo.types import LossInputs


def make_inputs(lengths=(3, 1, 5, 2), seed=0, dtype=torch.float64, **fields):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)

    def draw(scale):
        return torch.randn(total, generator=generator, dtype=dtype) * scale

    old = -draw(1.0).abs()
    lengths = torch.tensor(lengths, dtype=torch.long)
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


def test_credit_per_token_stands_for_the_advantage_and_its_terms_are_added():
    inputs = make_inputs()
    credit = torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)
    penalty = torch.tensor([0.0, 0.7, 0.3] * 3 + [0.0, 1.1], dtype=torch.float64)
    share = penalty.flip(0)
    weights = torch.linspace(0.5, 1.5, 11, dtype=torch.float64)
    found = PolicyLoss(0.2, 0.28, kl_coef=0.0)(
        replace(
            inputs, token_advantages=credit, token_terms={"log_ratio": penalty, "nll": share}, weights=weights
        )
    ).loss
    expected = 0.0
    for t, response in enumerate(inputs.response.tolist()):
        d = float(inputs.logprobs[t].detach() - inputs.old_logprobs[t])
        bound = min(max(math.exp(d), 0.8), 1.28)
        term = -float(weights[t]) * min(math.exp(d) * float(credit[t]), bound * float(credit[t]))
        term += float(penalty[t]) * abs(d) - float(share[t]) * float(inputs.logprobs[t].detach())
        expected += term / (4 * int(inputs.lengths[response]))
    assert float(found.detach()) == pytest.approx(expected, abs=1e-10)
    with pytest.raises(ValueError, match=r"Expected credit\.terms.*log_ratio.*'hope'"):
        PolicyLoss(kl_coef=0.0)(replace(inputs, token_terms={"hope": share}))


def padded(values, lengths):
    """[R, longest] rows of a packed [T] tensor, zeros behind."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(lengths.tolist())), batch_first=True)


def method_by_rows(method, logprobs, inputs, low, high, dual=math.inf):
    """[R] policy term of each response, its mean over tokens: the papers' formulas on padded rows."""
    x, old = padded(logprobs, inputs.lengths), padded(inputs.old_logprobs, inputs.lengths)
    advantages, count = inputs.advantages[:, None], inputs.lengths
    mask = torch.arange(x.shape[1])[None] < count[:, None]

    def mean(values):
        return torch.where(mask, values, 0.0).sum(1) / count

    def clip(ratio):
        value = torch.minimum(ratio * advantages, torch.clip(ratio, 1 - low, 1 + high) * advantages)
        return torch.where(advantages < 0, torch.maximum(value, torch.tensor(dual) * advantages), value)

    if method == "token":
        return mean(clip((x - old).exp()))
    if method == "sequence":  # the paper's token form: sg[s] · π / sg[π]
        sequence = mean(x - old).exp()[:, None]
        return mean(clip(sequence.detach() * (x - x.detach()).exp()))
    if method == "cispo":
        weight = torch.clip((x - old).exp(), 1 - low, 1 + high).detach()
        return mean(weight * advantages * x)
    assert (
        method == "geometric"
    )  # sign(A) · (Π |min(ρ A, clip(ρ) A)|)^(1/|o|), the range being (e^−low, e^high)
    bounds = math.exp(-low), math.exp(high)
    ratio = (x - old).exp()
    term = torch.minimum(ratio * advantages, torch.clip(ratio, *bounds) * advantages).abs()
    return advantages[:, 0].sign() * torch.where(mask, term, 1.0).prod(1) ** (1 / count.double())


METHODS = {
    "token": {},
    "sequence": {"ratio": "sequence"},
    "geometric": {"ratio": "geometric"},
    "cispo": {"objective": "cispo"},
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_its_papers_formula(method, seed):
    inputs = make_inputs(seed=seed)
    outputs = PolicyLoss(0.3, 0.5, kl_coef=0.0, **METHODS[method])(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    logprobs = inputs.logprobs.detach().requires_grad_()
    expected = -method_by_rows(method, logprobs, inputs, 0.3, 0.5).mean()
    torch.testing.assert_close(outputs.loss, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logprobs)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("method", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token_mean", "constant"])
def test_the_sequence_ratio_has_the_gradient_of_its_token_form_under_every_aggregation(method, aggregation):
    inputs = make_inputs(seed=3)
    max_length = 9 if aggregation == "constant" else None
    loss = PolicyLoss(kl_coef=0.0, aggregation=aggregation, max_length=max_length, **METHODS[method])(
        inputs
    ).loss
    logprobs = inputs.logprobs.detach().requires_grad_()
    sums = method_by_rows(method, logprobs, inputs, 0.2, 0.2) * inputs.lengths
    expected = -sums.sum() / (inputs.num_tokens if aggregation == "token_mean" else 9 * inputs.num_responses)
    gradients = [torch.autograd.grad(loss, inputs.logprobs)[0], torch.autograd.grad(expected, logprobs)[0]]
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


@pytest.mark.parametrize("method", ["token", "sequence"])
def test_dual_clip_bounds_the_loss_of_bad_responses(method):
    inputs = make_inputs(seed=1, advantages=torch.tensor([-1.0, -2.0, 1.0, -0.5], dtype=torch.float64))
    inputs = replace(inputs, logprobs=(inputs.old_logprobs + 1.0).requires_grad_())  # every ratio is e
    outputs = PolicyLoss(kl_coef=0.0, dual_clip=1.5, **METHODS[method])(inputs)
    expected = -method_by_rows(method, inputs.logprobs, inputs, 0.2, 0.2, dual=1.5).mean()
    torch.testing.assert_close(outputs.loss, expected, atol=1e-12, rtol=0)
    # (1.5 · 1 + 1.5 · 2 − 1.2 · 1 + 1.5 · 0.5) / 4, and no token is left with a gradient.
    assert float(outputs.loss.detach()) == pytest.approx(4.05 / 4)
    assert not torch.autograd.grad(outputs.loss, inputs.logprobs)[0].any()
    assert (float(outputs.sums["clip_dual"]), float(outputs.sums["clip_high"])) == (3 + 1 + 2, 5)


@pytest.mark.parametrize("method", METHODS)
def test_without_bounds_nothing_is_clipped(method):
    inputs = make_inputs(seed=2)
    inputs = replace(
        inputs, logprobs=(inputs.old_logprobs + 3 * inputs.advantages[inputs.response]).requires_grad_()
    )
    outputs = PolicyLoss(None, None, kl_coef=0.0, **METHODS[method])(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    logprobs = inputs.logprobs.detach().requires_grad_()
    means = torch.stack(
        [part.mean() for part in (logprobs - inputs.old_logprobs).split(inputs.lengths.tolist())]
    )
    ratios = {
        "token": torch.stack([p.exp().mean() for p in (logprobs - inputs.old_logprobs).split(inputs.lengths.tolist())]),
        "cispo": torch.stack([
            (p.exp().detach() * x).mean()
            for p, x in zip((logprobs - inputs.old_logprobs).split(inputs.lengths.tolist()),
                            logprobs.split(inputs.lengths.tolist()), strict=True)
        ]),
    }  # fmt: skip
    expected = -(ratios.get(method, means.exp()) * inputs.advantages).mean()
    torch.testing.assert_close(outputs.loss, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logprobs)[0], atol=1e-12, rtol=1e-12)
    assert not outputs.sums["clip_low"] + outputs.sums["clip_high"] + outputs.sums["clipped"]


def test_one_bound_leaves_the_other_side_free():
    inputs = make_inputs(
        (1, 1), logprobs=torch.tensor([1.0, -1.0]), old_logprobs=torch.zeros(2), entropy=None
    )
    inputs = replace(inputs, reference_logprobs=None, advantages=torch.tensor([1.0, -1.0]))
    low, high = (PolicyLoss(*c, kl_coef=0.0)(inputs) for c in ((0.2, None), (None, 0.2)))
    assert float(low.loss) == pytest.approx(-(math.e - 0.8) / 2)
    assert float(high.loss) == pytest.approx(-(1.2 - math.exp(-1)) / 2)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_the_entropy_term_may_be_a_token_mean_beside_any_aggregation(aggregation):
    inputs = make_inputs(seed=6)
    inputs = replace(inputs, entropy=inputs.entropy.requires_grad_())
    options = {
        "kl_coef": 0.3,
        "aggregation": aggregation,
        "max_length": 8 if aggregation == "constant" else None,
    }
    value = PolicyLoss(**options, entropy_coef=0.1, entropy_aggregation="token_mean")(inputs).loss
    expected = loop(inputs, 0.2, 0.2, 0.3, aggregation, options["max_length"]) - 0.1 * float(
        inputs.entropy.mean()
    )
    assert float(value.detach()) == pytest.approx(expected, abs=1e-12)
    (gradient,) = torch.autograd.grad(value, inputs.entropy)
    torch.testing.assert_close(gradient, torch.full_like(gradient, -0.1 / 11), atol=1e-15, rtol=0)


def test_cispo_keeps_the_gradient_of_every_token():
    inputs = make_inputs(
        (1, 1, 1, 1),
        logprobs=torch.tensor([0.5, 0.5, -0.5, -0.5]).requires_grad_(),
        old_logprobs=torch.zeros(4),
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]),
        reference_logprobs=None,
    )
    outputs = PolicyLoss(objective="cispo", kl_coef=0.0)(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    # −clip(ρ) A / 4 with ρ = e^±0.5 clipped to 1.2 and 0.8.
    torch.testing.assert_close(gradient, torch.tensor([-0.3, 0.3, -0.2, 0.2]))
    assert (float(outputs.sums["clip_high"]), float(outputs.sums["clip_low"])) == (2, 2)


@pytest.mark.parametrize("method", METHODS)
def test_the_first_mini_batch_has_a_ratio_of_one_and_the_plain_policy_gradient(method):
    inputs = make_inputs(dtype=torch.float32)
    inputs = replace(inputs, old_logprobs=inputs.logprobs.detach())
    outputs = PolicyLoss(kl_coef=0.0, **METHODS[method])(inputs)
    assert float(outputs.sums["ratio"]) == inputs.num_tokens
    assert (float(outputs.sums["clip_low"]), float(outputs.sums["clip_high"])) == (0, 0)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    expected = -(inputs.advantages / inputs.lengths / inputs.num_responses)[inputs.response]
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("method", "aggregation"),
    [("geometric", "sequence_mean")]
    + [(m, a) for m in ("token", "sequence", "cispo") for a in ("sequence_mean", "token_mean", "constant")],
)
def test_micro_batches_add_up_to_the_whole(method, aggregation, dtype):
    inputs = make_inputs(dtype=dtype)
    max_length = 9 if aggregation == "constant" else None
    loss = PolicyLoss(
        aggregation=aggregation, kl_coef=0.2, entropy_coef=0.1, max_length=max_length, **METHODS[method]
    )
    whole_outputs = loss(inputs)
    (whole,) = torch.autograd.grad(whole_outputs.loss, inputs.logprobs)
    parts, total, sums = [], 0.0, dict.fromkeys(whole_outputs.sums, 0.0)
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
        sums = {name: sums[name] + float(value) for name, value in outputs.sums.items()}
        parts.append(torch.autograd.grad(outputs.loss, part.logprobs)[0])
    tolerance = 1e-12 if dtype is torch.float64 else 1e-6
    assert total == pytest.approx(float(whole_outputs.loss.detach()), abs=tolerance)
    assert sums == pytest.approx({name: float(value) for name, value in whole_outputs.sums.items()}, abs=1e-4)
    torch.testing.assert_close(torch.cat(parts), whole, atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_token_losses_add_up_over_parts_that_split_responses(method):
    inputs = make_inputs()
    inputs = replace(
        inputs, weights=inputs.old_logprobs.exp(), replayed=torch.tensor([False, True, False, False])
    )
    loss = PolicyLoss(**METHODS[method], kl_coef=0.3, entropy_coef=0.1)
    assert loss.by_token == (loss.ratio == "token")
    whole = loss(inputs)
    (gradient,) = torch.autograd.grad(whole.loss, inputs.logprobs)
    by_token = ("logprobs", "old_logprobs", "reference_logprobs", "entropy", "response", "weights")
    parts = [
        loss(replace(inputs, **{name: getattr(inputs, name)[part] for name in by_token}))
        for part in (slice(0, 2), slice(2, 6), slice(6, 11))
    ]
    (in_parts,) = torch.autograd.grad(sum(part.loss for part in parts), inputs.logprobs)
    assert torch.allclose(in_parts, gradient, atol=1e-12) == loss.by_token
    if loss.by_token:
        assert float(sum(part.loss for part in parts)) == pytest.approx(float(whole.loss), abs=1e-12)
        for name, values in whole.response_sums.items():
            torch.testing.assert_close(sum(part.response_sums[name] for part in parts), values)
            torch.testing.assert_close(sum(part.sums[name] for part in parts), whole.sums[name])


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


@pytest.mark.parametrize("method", METHODS)
def test_replayed_responses_are_shaped_and_never_clipped(method):
    inputs = make_inputs(seed=4, replayed=torch.tensor([True, False, True, False]))
    outputs = PolicyLoss(0.1, 0.1, kl_coef=0.0, replay_shaping=0.3, **METHODS[method])(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    logprobs = inputs.logprobs.detach().requires_grad_()
    ratio = torch.exp(logprobs - inputs.old_logprobs)
    shaped = [part.mean() for part in (ratio / (ratio + 0.3)).split(inputs.lengths.tolist())]
    own = method_by_rows(method, logprobs, inputs, 0.1, 0.1)
    terms = [shaped[r] * inputs.advantages[r] if inputs.replayed[r] else own[r] for r in range(4)]
    expected = -sum(terms) / 4
    torch.testing.assert_close(outputs.loss, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logprobs)[0], atol=1e-12, rtol=0)
    clipped = outputs.response_sums["clip_low"] + outputs.response_sums["clip_high"]
    assert not clipped[inputs.replayed].any()
    assert clipped[~inputs.replayed].any()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("method", METHODS)
def test_extreme_log_ratios_leave_the_gradient_finite(method, estimator, sign):
    inputs = make_inputs(
        (1, 1, 2),
        logprobs=torch.tensor([0.0, -2000.0, -1.0, -1.0]).requires_grad_(),
        old_logprobs=torch.tensor([-2000.0, 0.0, -1e30, -1.0]),
        reference_logprobs=torch.tensor([-2000.0, 0.0, -1.0, -1e5]),
        entropy=None,
        advantages=sign * torch.tensor([-1.0, 1.0, 1.0]),
    )
    outputs = PolicyLoss(kl_coef=1.0, kl_estimator=estimator, **METHODS[method])(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    assert torch.isfinite(outputs.loss)
    assert torch.isfinite(gradient).all()
    assert all(torch.isfinite(value) for value in outputs.sums.values())


def test_the_ratio_is_bounded_only_far_outside_any_clip_range():
    inputs = make_inputs((1, 1), logprobs=torch.zeros(2), old_logprobs=torch.tensor([-19.0, -2000.0]))
    inputs = replace(inputs, reference_logprobs=None)
    ratio = float(PolicyLoss(kl_coef=0.0)(inputs).sums["ratio"])
    assert ratio == pytest.approx(math.exp(19) + math.exp(MAX_LOG_RATIO), rel=1e-6)


def test_k3_never_pushes_a_token_further_from_the_reference():
    logprobs = torch.linspace(-30, 30, 121, dtype=torch.float64).requires_grad_()
    inputs = make_inputs((121,), logprobs=logprobs, reference_logprobs=torch.zeros(121, dtype=torch.float64))
    kl = token_kl(inputs, "k3")
    (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
    within = logprobs.detach() > -MAX_LOG_RATIO
    assert (gradient * logprobs.detach() >= 0).all()
    assert (
        gradient[within & (logprobs.detach() < 0)] < 0
    ).all()  # kept where verl's clamp at 10 would drop it
    exact = torch.exp(-logprobs.detach()) - 1 + logprobs.detach()
    torch.testing.assert_close(kl.detach()[within], exact[within], rtol=1e-12, atol=1e-12)


def test_k3_keeps_its_digits_near_the_reference():
    difference = torch.tensor([1e-4, -1e-4])
    inputs = make_inputs((2,), logprobs=torch.zeros(2), reference_logprobs=difference, dtype=torch.float32)
    # d²/2 + d³/6; exp(d) − 1 − d in float32 would be off by half.
    torch.testing.assert_close(
        token_kl(inputs, "k3"), torch.tensor([5.0002e-9, 4.9998e-9]), rtol=2e-3, atol=0
    )


def test_missing_inputs_are_named():
    inputs = make_inputs(reference_logprobs=None, entropy=None)
    with pytest.raises(ValueError, match="reference_logprobs"):
        PolicyLoss(kl_coef=0.1)(inputs)
    with pytest.raises(ValueError, match="entropy"):
        PolicyLoss(kl_coef=0.0, entropy_coef=0.1)(inputs)


def test_impossible_options_are_refused():
    for options, message in (
        ({"clip_low": 1.5}, "clip_low"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        ({"kl_coef": -1.0}, "kl_coef"),
        ({"aggregation": "constant"}, "max_length"),
        ({"max_length": 10}, "max_length"),
        ({"aggregation": "constant", "max_length": 0}, "max_length"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"replay_shaping": 0.0}, "replay_shaping"),
        ({"ratio": "word"}, "ratio"),
        ({"objective": "ppo"}, "objective"),
        ({"entropy_aggregation": "sequence_mean"}, "entropy_aggregation"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"ratio": "geometric", "aggregation": "token_mean"}, "sequence_mean"),
        ({"ratio": "geometric", "dual_clip": 3.0}, "dual_clip"),
        ({"objective": "cispo", "dual_clip": 3.0}, "dual_clip"),
        ({"objective": "cispo", "ratio": "sequence"}, "ratio=token"),
    ):
        with pytest.raises(ValueError, match=message):
            PolicyLoss(**options)


def test_the_documented_numbers_are_right():
    assert doctest.testmod(losses).failed == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("ratio", ["token", "sequence", "geometric"])
def test_what_counts_as_clipped_is_what_has_lost_its_gradient(ratio, dual_clip, seed):
    if ratio == "geometric" and dual_clip:
        return
    inputs = make_inputs(seed=seed, lengths=(9, 1, 5, 8, 7, 3))
    signs = torch.tensor([1.0, -1.0, 0.0, -1.0, 0.4, 1.0], dtype=torch.float64)
    inputs = replace(inputs, advantages=signs * inputs.advantages.abs().clamp(max=0.9))
    loss = PolicyLoss(clip_low=0.1, clip_high=0.2, ratio=ratio, kl_coef=0.0, dual_clip=dual_clip)
    outputs = loss(inputs)
    outputs.loss.backward()
    advantage = inputs.advantages[inputs.response]
    silent = (inputs.logprobs.grad == 0) & (advantage != 0)
    counts = [int(silent[inputs.response == row].sum()) for row in range(6)]
    assert outputs.response_sums["clipped"].tolist() == counts
    assert sum(counts) == float(outputs.sums["clipped"]) > 0


def test_flags_of_the_clip_range_token_by_token():
    log_ratios = torch.tensor([-0.7, 0.0, 0.7] * 4, dtype=torch.float64)
    advantages = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    old = -torch.ones(12, dtype=torch.float64)
    inputs = make_inputs(
        (3, 3, 3, 3),
        logprobs=old + log_ratios,
        old_logprobs=old,
        advantages=advantages,
        reference_logprobs=None,
    )
    # Bounds of zero: a ratio of exactly 1 lies within them.
    for options, low, high in (
        ({}, [0, 0, 0, 1], [1, 1, 0, 0]),
        ({"ratio": "geometric"}, [0, 0, 0, 1], [1, 1, 0, 0]),
        ({"objective": "cispo"}, [1, 1, 1, 1], [1, 1, 1, 1]),
        ({"ratio": "sequence"}, [0, 0, 0, 0], [0, 0, 0, 0]),
    ):
        outputs = PolicyLoss(clip_low=0.0, clip_high=0.0, kl_coef=0.0, **options)(inputs)
        assert outputs.response_sums["clip_low"].tolist() == low, options
        assert outputs.response_sums["clip_high"].tolist() == high, options
        clipped = [0] * 4 if "objective" in options else [a + b for a, b in zip(low, high, strict=True)]
        assert outputs.response_sums["clipped"].tolist() == clipped, options


def test_dual_clip_leaves_good_responses_alone_and_includes_its_bound():
    old = -torch.ones(3, dtype=torch.float64)
    bound = float(torch.tensor(0.7, dtype=torch.float64).exp())
    inputs = make_inputs(
        (1, 1, 1), logprobs=old + torch.tensor([0.1, 0.7, 0.7001]), old_logprobs=old, reference_logprobs=None,
        advantages=torch.tensor([0.5, -1.0, -1.0], dtype=torch.float64),
    )  # fmt: skip
    outputs = PolicyLoss(kl_coef=0.0, dual_clip=bound)(
        replace(inputs, logprobs=old + torch.tensor([0.1, 0.7, 0.71], dtype=torch.float64))
    )
    assert outputs.response_sums["clip_dual"].tolist() == [0, 0, 1]
    assert outputs.response_sums["clipped"].tolist() == [0, 0, 1]
    assert float(outputs.loss) == pytest.approx((-0.5 * math.exp(0.1) + 2 * bound) / 3)


def test_defaults_and_the_ends_of_ranges():
    loss = PolicyLoss()
    assert (loss.clip_low, loss.clip_high, loss.kl_coef, loss.replay_shaping) == (0.2, 0.2, 0.001, 0.1)
    assert MAX_LOG_RATIO == 20.0
    assert loss != PolicyLoss()  # an object, to be told from others
    assert len({loss, PolicyLoss()}) == 2
    PolicyLoss(clip_low=1.0, clip_high=0.0)
    PolicyLoss(aggregation="constant", max_length=1)
    for refused in ({"clip_low": -0.01}, {"clip_high": -0.01}, {"clip_low": 1.01}):
        with pytest.raises(ValueError, match="loss.clip_low"):
            PolicyLoss(**refused)


@pytest.mark.parametrize("sign", [1, -1])
def test_log_ratios_are_bounded_at_20(sign):
    far = bounded_exp(torch.tensor([1000.0 * sign, 19.9 * sign], dtype=torch.float64))
    assert far.tolist() == pytest.approx([math.exp(20 * sign), math.exp(19.9 * sign)])


LIMITS = [
    {"aggregation": "sequence_mean"}, {"aggregation": "token_mean"}, {"aggregation": "constant", "max_length": 8},
    {"ratio": "sequence"}, {"ratio": "geometric"}, {"objective": "cispo", "aggregation": "token_mean"},
    {"entropy_coef": 0.1, "entropy_aggregation": "token_mean"}, {"dual_clip": 3.0},
]  # fmt: skip


@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.parametrize("lengths", [(), (3, 1), (0, 2, 0), (0,)])
def test_a_batch_in_which_nothing_counts_has_a_loss_and_a_gradient_of_zero(options, lengths):
    inputs = make_inputs(lengths, num_responses=0, num_tokens=0)
    outputs = PolicyLoss(kl_coef=0.3, **options)(inputs)
    assert outputs.loss.item() == 0.0
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.logprobs)
    assert gradient.tolist() == [0.0] * sum(lengths)
    assert all(torch.isfinite(value) for value in outputs.sums.values())


@pytest.mark.parametrize("options", LIMITS, ids=str)
def test_responses_without_tokens_change_nothing(options):
    """They count in the normalisers alone, which are arguments."""
    inputs = make_inputs((3, 2), num_responses=4, num_tokens=5)
    more = replace(
        inputs,
        lengths=torch.tensor([0, 3, 0, 2]),
        response=torch.tensor([1, 1, 1, 3, 3]),
        advantages=inputs.advantages[torch.tensor([0, 0, 0, 1])],
    )
    loss = PolicyLoss(kl_coef=0.3, **options)
    assert loss(more).loss.item() == loss(inputs).loss.item()


def a_loss(inputs, **changes):
    return replace(PolicyLoss(kl_coef=0.0)(inputs), **changes)


class MyLoss(PolicyLoss):
    """Its name is what errors have to say."""


@pytest.mark.parametrize(
    "outputs",
    [
        lambda inputs: None,
        lambda inputs: inputs.logprobs.sum(),
        lambda inputs: (inputs.logprobs.sum(), {}),
        lambda inputs: a_loss(inputs, loss=1.0),
        lambda inputs: a_loss(inputs, loss=inputs.logprobs),
        lambda inputs: a_loss(inputs, loss=inputs.logprobs.sum()[None]),
        lambda inputs: a_loss(inputs, loss=torch.zeros((), dtype=torch.float64)),
        lambda inputs: a_loss(inputs, loss=inputs.logprobs.sum().detach()),
        lambda inputs: a_loss(inputs, loss=torch.tensor(3)),
        lambda inputs: a_loss(inputs, sums={"mine": 1.0}),
        lambda inputs: a_loss(inputs, sums={"mine": torch.ones(2)}),
        lambda inputs: a_loss(inputs, response_sums={"mine": torch.ones(())}),
        lambda inputs: a_loss(inputs, response_sums={"mine": torch.ones(len(inputs.logprobs))}),
    ],
)
def test_a_loss_that_returns_no_scalar_with_gradient_and_sums_is_named(outputs):
    inputs = make_inputs()
    with pytest.raises((TypeError, ValueError), match=r"MyLoss \(loss\)"):
        losses.check_outputs(outputs(inputs), inputs, MyLoss(kl_coef=0.0))


def test_a_sound_loss_is_returned_as_it_is():
    inputs = make_inputs()
    outputs = PolicyLoss(kl_coef=0.3)(inputs)
    assert losses.check_outputs(outputs, inputs, MyLoss()) is outputs


def spread_inputs():
    """Two responses whose tokens have ratios 1.5 and 0.8, and 2, under references of their own."""
    return LossInputs(
        logprobs=torch.tensor([1.5, 0.8, 2.0], dtype=torch.float64).log().requires_grad_(),
        old_logprobs=torch.zeros(3, dtype=torch.float64),
        reference_logprobs=torch.tensor([0.1, -0.3, 0.2], dtype=torch.float64),
        entropy=None,
        advantages=torch.tensor([2.0, -1.0], dtype=torch.float64),
        response=torch.tensor([0, 0, 1]),
        lengths=torch.tensor([2, 1]),
        num_responses=2,
        num_tokens=3,
    )


def test_a_product_ratio_is_that_of_the_whole_response():
    inputs = spread_inputs()
    loss = PolicyLoss(ratio="product", clip_low=0.5, clip_high=0.5, kl_coef=0.0)(inputs).loss
    # 1.5 · 0.8 = 1.2 is within the range; min(2 · −1, 1.5 · −1) = −2
    assert float(loss) == pytest.approx(-(1.2 * 2 - 2.0) / 2)
    (gradient,) = torch.autograd.grad(loss, inputs.logprobs)
    torch.testing.assert_close(gradient, torch.tensor([-1.2, -1.2, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("ratio", ["token", "sequence", "product"])
def test_a_divergence_times_the_ratio_is_that_of_a_formula(ratio):
    inputs = spread_inputs()
    found = PolicyLoss(ratio=ratio, kl_coef=0.3, kl_ratio=True)(inputs).loss
    without = PolicyLoss(ratio=ratio, kl_coef=0.0)(inputs).loss
    gap = inputs.reference_logprobs - inputs.logprobs
    estimate = gap.exp() - 1 - gap
    first, second, third = inputs.logprobs
    ratios = {
        "token": torch.stack([first, second, third]).exp(),
        "sequence": torch.stack([(first + second) / 2, (first + second) / 2, third]).exp(),
        "product": torch.stack([first + second, first + second, third]).exp(),
    }[ratio]
    terms = estimate * ratios
    expected = without + 0.3 * (terms[:2].mean() + terms[2]) / 2
    assert float(found) == pytest.approx(float(expected))
    gradients = [
        torch.autograd.grad(value, inputs.logprobs, retain_graph=True)[0] for value in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_the_expected_gradient_of_the_divergence_times_the_ratio_is_that_of_the_reverse_divergence():
    logits = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.7, -0.2], dtype=torch.float64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    total = torch.zeros_like(logits)
    for token in range(3):
        inputs = LossInputs(
            logprobs=logprobs[token : token + 1],
            old_logprobs=logprobs[token : token + 1].detach(),
            reference_logprobs=reference[token : token + 1],
            entropy=None,
            advantages=torch.zeros(1, dtype=torch.float64),
            response=torch.tensor([0]),
            lengths=torch.tensor([1]),
            num_responses=1,
            num_tokens=1,
        )
        loss = PolicyLoss(kl_coef=1.0, kl_ratio=True)(inputs).loss
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        total += float(logprobs[token].exp()) * gradient
    torch.testing.assert_close(total, expected)


def test_a_divergence_times_a_geometric_ratio_is_refused():
    with pytest.raises(ValueError, match=r"loss\.kl_ratio"):
        PolicyLoss(ratio="geometric", kl_ratio=True)
