"""Entropy-shaped advantages against Eq. 5 and 6 of their paper, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tagrpo.contrib.entropy_shaped.credit import EntropyShapedCredit


@pytest.mark.parametrize(("alpha", "kappa"), [(0.4, 2.0), (0.1, 5.0), (30.0, 1.5)])
def test_advantages_are_those_of_the_equations(make_inputs, alpha, kappa):
    inputs = make_inputs(advantages=(1.5, -0.7, 0.2, 0.0), scale=2.0)
    found = EntropyShapedCredit(alpha, kappa)(inputs)
    expected = []
    for row, entropy in zip(inputs.response.tolist(), inputs.entropy.tolist(), strict=True):
        advantage = float(inputs.advantages[row])
        expected.append(advantage + min(alpha * entropy, abs(advantage) / kappa))
    np.testing.assert_allclose(found.advantages.numpy(), expected, atol=1e-6)
    assert not found.terms


def test_the_bound_binds_and_no_sign_turns(make_inputs):
    inputs = make_inputs(advantages=(1.0, -1.0, 0.0, -0.1), scale=100.0)
    found = EntropyShapedCredit(alpha=50.0)(inputs).advantages
    torch.testing.assert_close(found, torch.tensor([1.5, -0.5, 0.0, -0.05])[inputs.response])


def test_where_the_policy_is_certain_nothing_changes(make_inputs):
    inputs = make_inputs(scale=0.0)
    torch.testing.assert_close(EntropyShapedCredit()(inputs).advantages, inputs.advantages[inputs.response])


def test_unset_options_are_those_of_the_paper():
    assert vars(EntropyShapedCredit()) == {"alpha": 0.4, "kappa": 2.0}


def test_a_rank_without_responses_has_no_credit(make_inputs):
    assert len(EntropyShapedCredit()(make_inputs(counted=(False,) * 4)).advantages) == 0


def test_impossible_options_are_refused():
    for options in ({"alpha": 0.0}, {"kappa": 1.0}):
        with pytest.raises(ValueError, match=r"credit\.alpha > 0 and credit\.kappa > 1"):
            EntropyShapedCredit(**options)
