"""UCPO against the authors' function, written anew in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.ucpo.advantage import UniformCorrectAdvantage
from tagrpo.modules.advantages import GroupAdvantage


def by_the_authors(scores, logprobs, lengths, tau, epsilon):
    """compute_dgrpo_advantage_outcome_invq_l of AnamikaLochab/UCPO at 93ce506, core_algos.py, for one question."""
    advantages = (scores - scores.mean()) / (scores.std(ddof=1) + epsilon)
    right = scores > 0
    if right.sum() > 1:
        logits = logprobs[right] / lengths[right]
        q = np.exp(logits - np.log(np.exp(logits).sum()))
        target = 1 / np.maximum(q, 1e-6)
        blended = (1 - tau) / right.sum() + tau * target / target.sum()
        advantages[right] = advantages[right][0] * blended * right.sum()
    return advantages


def with_logprobs(groups, seed, spread=5.0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, len(groups.rewards))
    logprob = -rng.exponential(spread, len(lengths)) * lengths
    return replace(groups, logprob=torch.from_numpy(logprob), lengths=torch.from_numpy(lengths))


@pytest.mark.parametrize("tau", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("spread", [0.2, 5.0, 40.0])
def test_advantages_are_those_of_the_authors_function(pools, tau, spread):
    groups = with_logprobs(pools((3, 5), (1, 7), (8, 0), (0, 8), (7, 1)), seed=1, spread=spread)
    groups = replace(groups, rewards=groups.rewards.double())
    found = UniformCorrectAdvantage(GroupAdvantage(epsilon=1e-8), tau)(groups).view(5, 8).numpy()
    columns = [getattr(groups, name).view(5, 8).numpy() for name in ("rewards", "logprob", "lengths")]
    for row, (scores, logprobs, lengths) in enumerate(zip(*columns, strict=True)):
        np.testing.assert_allclose(
            found[row], by_the_authors(scores, logprobs, lengths, tau, 1e-8), atol=1e-6
        )


def test_the_sum_over_correct_responses_stays_and_the_unlikely_one_gains(pools):
    groups = replace(
        pools((3, 3)), logprob=torch.tensor([-2.0, -8, -4, -1, -1, -1]), lengths=torch.full((6,), 2)
    )
    base = GroupAdvantage()(groups)
    found = UniformCorrectAdvantage(GroupAdvantage(), 0.5)(groups)
    assert float(found[:3].sum()) == pytest.approx(float(base[:3].sum()))
    assert found[1] > found[2] > found[0] > 0
    torch.testing.assert_close(found[3:], base[3:])
    # Inverse to q, which is e^-1, e^-4 and e^-2 of their sum.
    full = UniformCorrectAdvantage(GroupAdvantage(), 1.0)(groups)[:3]
    torch.testing.assert_close(full / full[0], torch.tensor([0.0, 3.0, 1.0]).exp())


def test_pools_are_questions_or_prompts(pools):
    groups = replace(with_logprobs(pools((2, 2), (2, 2)), seed=0), question=torch.zeros(8, dtype=torch.long))
    one, two = (
        UniformCorrectAdvantage(GroupAdvantage(pool), 1.0, pool)(groups) for pool in ("question", "prompt")
    )
    per_prompt = two.view(2, 4)[:, :2].sum(1)
    torch.testing.assert_close(per_prompt[0], per_prompt[1])
    assert not torch.allclose(one.view(2, 4)[:, :2].sum(1), per_prompt)
    torch.testing.assert_close(one[groups.correct].sum(), per_prompt.sum(), rtol=0.2, atol=0)


def test_log_probs_are_needed(pools):
    for lacking in ({}, {"logprob": torch.zeros(4)}, {"lengths": torch.ones(4)}):
        with pytest.raises(ValueError, match=r"RewardGroups\.logprob"):
            UniformCorrectAdvantage(GroupAdvantage())(replace(pools((1, 3)), **lacking))
    assert UniformCorrectAdvantage(GroupAdvantage()).needs_logprobs


def test_impossible_options_are_refused():
    for options, name in (({"tau": -0.1}, "tau"), ({"tau": 1.1}, "tau"), ({"group_by": "rank"}, "group_by")):
        with pytest.raises(ValueError, match=rf"advantage\.{name}"):
            UniformCorrectAdvantage(GroupAdvantage(), **options)
