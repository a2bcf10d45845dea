"""PSR, NSR and W-REINFORCE against the authors' three branches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.negative_reinforcement.advantage import VerdictAdvantage


def by_branch(correct, method, weight=0.1):
    """The authors' returns are 1 and 0; they keep them, take 1 off, or take 1 off the wrong and weigh the correct."""
    returns = correct.astype(float)
    if method == "psr":
        return returns
    if method == "nsr":
        return returns - 1
    return np.where(correct, weight * returns, returns - 1)


@pytest.mark.parametrize(
    ("method", "correct", "wrong"), [("psr", 1, 0), ("nsr", 0, -1), ("w_reinforce", 0.1, -1)]
)
def test_weights_of_the_verdicts_are_the_authors_branches(method, correct, wrong, pools):
    groups = pools((3, 5), (8, 0), (0, 8))  # uniform questions count as any other
    expected = by_branch(groups.correct.numpy(), method)
    np.testing.assert_allclose(VerdictAdvantage(correct, wrong)(groups).numpy(), expected, rtol=1e-7)


def test_shaped_rewards_have_no_part_in_it(pools):
    groups = pools((1, 1))
    shaped = replace(groups, rewards=torch.tensor([0.3, 2.0]))
    assert torch.equal(VerdictAdvantage()(shaped), torch.tensor([1.0, -1.0]))


def test_wrong_responses_are_never_preferred():
    with pytest.raises(ValueError, match=r"advantage\.correct.*advantage\.wrong.*0\.0"):
        VerdictAdvantage(correct=0.0, wrong=0.0)
