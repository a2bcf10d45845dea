"""80/20 against Eq. 6 of its paper, written anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.high_entropy_tokens.credit import HighEntropyCredit
from tagrpo.modules.losses import PolicyLoss
from tagrpo.types import LossInputs


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_loss_is_that_of_equation_6(make_inputs, share):
    inputs = make_inputs(advantages=(0.7, -1.1, 0.0, 0.4))
    token_advantages = HighEntropyCredit(share)(inputs).advantages
    rng = np.random.default_rng(0)
    ratio = np.exp(rng.normal(scale=0.3, size=len(inputs.response)))
    old = inputs.logprobs
    found = PolicyLoss(clip_high=0.28, aggregation="token_mean", kl_coef=0.0)(
        LossInputs(
            logprobs=old + torch.from_numpy(np.log(ratio)), old_logprobs=old, reference_logprobs=None, entropy=None,
            advantages=inputs.advantages, response=inputs.response, lengths=inputs.groups.lengths, num_responses=4,
            num_tokens=len(ratio), token_advantages=token_advantages,
        )
    ).loss  # fmt: skip
    entropy = inputs.entropy.numpy()
    threshold = np.sort(entropy)[::-1][int(np.ceil(share * len(entropy))) - 1]
    chosen = entropy >= threshold
    advantages = inputs.advantages.numpy()[inputs.response.numpy()]
    terms = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.28) * advantages)
    assert float(found) == pytest.approx(-terms[chosen].sum() / chosen.sum(), rel=1e-5)


def test_all_tokens_are_the_plain_method_and_equal_entropies_go_together(make_inputs):
    inputs = make_inputs()
    plain = inputs.advantages[inputs.response]
    torch.testing.assert_close(HighEntropyCredit(1.0)(inputs).advantages, plain)
    same = replace(inputs, entropy=torch.full_like(inputs.entropy, 0.3))
    torch.testing.assert_close(HighEntropyCredit(0.2)(same).advantages, plain)


def test_a_rank_without_responses_has_no_credit_and_raises_nothing(make_inputs):
    assert len(HighEntropyCredit()(make_inputs(counted=(False,) * 4)).advantages) == 0


def test_an_impossible_share_is_refused():
    with pytest.raises(ValueError, match=r"credit\.share.*0"):
        HighEntropyCredit(0)
