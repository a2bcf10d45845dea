"""Clip-Cov and KL-Cov against the formulas of the authors' code on padded batches, written anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.entropy_mechanism.credit import ClipCovCredit, KLCovCredit


def by_hand(inputs):
    """Covariances token by token: the two means are those over all tokens, a response's advantage standing at each."""
    advantages = inputs.advantages.numpy().astype(float)[inputs.response.numpy()]
    logprobs = inputs.logprobs.numpy().astype(float)
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_kl_cov_penalises_as_many_tokens_as_its_share_those_of_the_largest_covariance(make_inputs, share):
    inputs = make_inputs()
    credit = KLCovCredit(share=share, coef=0.7)(inputs)
    covariances = by_hand(inputs)
    count = max(1, int(len(covariances) * share))
    expected = np.zeros(len(covariances))
    expected[np.argsort(-covariances)[:count]] = 0.7
    np.testing.assert_allclose(credit.terms["log_ratio"].numpy(), expected, rtol=1e-6)
    assert torch.equal(credit.advantages, inputs.advantages[inputs.response])


@pytest.mark.parametrize(("share", "count"), [(1e-4, 1), (0.1, 2), (0.25, 5), (1.0, None)])
def test_clip_cov_silences_tokens_of_its_range_alone_as_many_as_its_share(make_inputs, share, count):
    inputs = make_inputs(scale=1.5)
    covariances = by_hand(inputs)
    candidates = set(np.nonzero((covariances > 0.1) & (covariances < 1.0))[0].tolist())
    assert 5 <= len(candidates) < 15, "the range must matter for the test to say anything"
    credit = ClipCovCredit(share=share, low=0.1, high=1.0, seed=3)(inputs)
    before = inputs.advantages[inputs.response]
    silenced = set((credit.advantages != before).nonzero()[:, 0].tolist())
    assert silenced <= candidates
    assert len(silenced) == (len(candidates) if count is None else count)
    assert not credit.advantages[list(silenced)].any()
    assert credit.terms == {}


def test_the_lots_of_clip_cov_depend_on_seed_and_progress_and_not_on_the_order_of_responses(make_inputs):
    inputs = make_inputs(scale=1.5)

    def draw(given, seed=0):
        return ClipCovCredit(share=0.2, low=0.1, high=1.0, seed=seed)(given).advantages == 0

    assert torch.equal(draw(inputs), draw(inputs))
    assert not torch.equal(draw(inputs), draw(inputs, seed=1))
    later = replace(inputs, groups=replace(inputs.groups, progress=0.5))
    assert not torch.equal(draw(inputs), draw(later))
    steps = [draw(replace(inputs, groups=replace(inputs.groups, progress=step / 10**6))) for step in range(9)]
    assert len({tuple(silenced.tolist()) for silenced in steps}) > 1, "also in a run of a million iterations"
    order = [2, 3, 0, 1]
    tokens = torch.cat([(inputs.response == row).nonzero()[:, 0] for row in order])
    lengths = inputs.groups.lengths[order]
    turned = replace(
        inputs,
        advantages=inputs.advantages[order],
        prompts=[inputs.prompts[row] for row in order],
        responses=[inputs.responses[row] for row in order],
        response=torch.repeat_interleave(lengths),
        logprobs=inputs.logprobs[tokens],
        entropy=inputs.entropy[tokens],
    )
    assert torch.equal(draw(turned), draw(inputs)[tokens])


def test_equal_responses_draw_lots_of_their_own(make_inputs):
    inputs = make_inputs(scale=1.5)
    tokens = torch.tensor([0, 1, 2, 3, 4] * 2)
    twice = replace(
        inputs,
        advantages=torch.tensor([1.0, 1.0]),
        prompts=[inputs.prompts[0]] * 2,
        responses=[inputs.responses[0]] * 2,
        response=torch.tensor([0] * 5 + [1] * 5),
        logprobs=inputs.logprobs[tokens],
        entropy=inputs.entropy[tokens],
    )
    silenced = (ClipCovCredit(share=0.5, low=-1.0, high=1.0)(twice).advantages == 0).nonzero()[:, 0]
    assert len(silenced) == 5


def test_the_ends_of_the_range_and_a_covariance_of_zero_are_left_alone(make_inputs):
    """Two responses of one token each: advantages ±1 and log-probs 1 nat from their mean: covariances of exactly 1."""
    one = torch.ones(2, dtype=torch.long)
    inputs = replace(
        make_inputs(), advantages=torch.tensor([1.0, -1.0]), logprobs=torch.tensor([-1.0, -3.0]),
        entropy=torch.zeros(2), response=torch.arange(2), prompts=[one] * 2, responses=[one[:1]] * 2,
    )  # fmt: skip
    for low, high in ((1.0, 2.0), (0.0, 1.0)):
        assert torch.equal(ClipCovCredit(1.0, low, high)(inputs).advantages, inputs.advantages)
    assert not ClipCovCredit(1.0, 0.5, 1.5)(inputs).advantages.any()
    single = replace(inputs, response=torch.ones(1, dtype=torch.long), logprobs=torch.tensor([-1.0]))
    assert KLCovCredit(1.0)(single).terms["log_ratio"].tolist() == [0.0], "a token is its own mean"


def test_unset_options_are_those_of_the_authors_code():
    assert vars(ClipCovCredit()) == {"share": 2e-4, "low": 1.0, "high": 5.0, "seed": 0}
    assert vars(KLCovCredit()) == {"share": 2e-3, "coef": 1.0}


@pytest.mark.parametrize("method", [ClipCovCredit(), KLCovCredit()])
def test_a_rank_without_responses_has_no_credit_and_raises_nothing(make_inputs, method):
    credit = method(make_inputs(counted=(False,) * 4))
    assert len(credit.advantages) == 0


def test_impossible_options_are_refused():
    for method in (ClipCovCredit, KLCovCredit):
        for share in (0.0, 1.5):
            with pytest.raises(ValueError, match=r"credit\.share"):
                method(share=share)
    for high in (1.0, 2.0):
        with pytest.raises(ValueError, match=r"credit\.low.*credit\.high"):
            ClipCovCredit(low=2.0, high=high)
    with pytest.raises(ValueError, match=r"credit\.coef"):
        KLCovCredit(coef=0.0)
