"""The unlikeliness reward against the authors' double argsort, written anew in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.unlikeliness.advantage import UnlikelinessAdvantage
from tagrpo.modules.advantages import GroupAdvantage

PLAIN = GroupAdvantage(baseline="none", scale="none")
"""Shows the rewards as they were shaped, but for pools of equal ones."""


def with_logprobs(groups, seed=0):
    rng = np.random.default_rng(seed)
    count = len(groups.rewards)
    return replace(
        groups,
        logprob=torch.from_numpy(-rng.exponential(5.0, count)),
        lengths=torch.from_numpy(rng.integers(1, 9, count)),
        prompt=torch.from_numpy(rng.integers(0, 3, count)),
    )


@pytest.mark.parametrize("ranked_by", ["sequence", "token"])
@pytest.mark.parametrize("group_by", ["question", "prompt", "batch"])
def test_advantages_are_those_of_the_authors_rewards(pools, ranked_by, group_by):
    groups = with_logprobs(pools((3, 5), (1, 7), (6, 2)))
    base = GroupAdvantage(group_by)
    found = UnlikelinessAdvantage(base, 0.25, ranked_by, group_by)(groups).numpy()
    names = np.zeros(24) if group_by == "batch" else getattr(groups, group_by).numpy()
    logprobs = groups.logprob.numpy() / (groups.lengths.numpy() if ranked_by == "token" else 1)
    for name in np.unique(names):
        own = names == name
        rank = np.argsort(np.argsort(logprobs[own])) / own.sum()
        rewards = groups.rewards.numpy()[own].astype(float)
        mixed = rewards.min() != rewards.max()
        rewards = rewards * (1 - 0.25 * rank) if mixed else rewards
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6) if mixed else 0 * rewards
        np.testing.assert_allclose(found[own], expected, atol=2e-5)


def test_equal_responses_share_the_mean_of_their_ranks(pools):
    groups = pools((3, 1))
    groups = replace(groups, logprob=torch.tensor([-1.0, -1.00001, -9.0, -2.0]), lengths=torch.ones(4))
    found = UnlikelinessAdvantage(PLAIN, 0.4)(groups)
    # Ranks 2.5, 2.5 and 0 of 4; the wrong response has the rank 1 and nothing to lose.
    torch.testing.assert_close(found, torch.tensor([0.75, 0.75, 1.0, 0.0]).to(found), atol=1e-6, rtol=0)
    apart = replace(groups, logprob=torch.tensor([-1.0, -1.5, -9.0, -2.0]))
    at_bound = UnlikelinessAdvantage(PLAIN, 0.4, tolerance=0.5)(apart)
    # The second is 0.5 from the first and from the wrong one, and shares its rank with both: 2.5, 2, 0 of 4.
    torch.testing.assert_close(at_bound, torch.tensor([0.75, 0.8, 1.0, 0.0]).to(found), atol=1e-6, rtol=0)


def test_means_per_token_are_equal_by_the_nats_of_a_whole_response(pools):
    # 500 tokens each: 0.01 nats apart, which are 2e-5 per token, then 5e-5 nats, which is rounding.
    groups = replace(
        pools((3, 1)),
        logprob=torch.tensor([-150.0, -150.01, -150.01005, -90.0]).double(),
        lengths=torch.full((4,), 500),
    )
    found = UnlikelinessAdvantage(PLAIN, 0.4, "token")(groups)
    torch.testing.assert_close(
        found, torch.tensor([0.8, 0.95, 0.95, 0.0]).to(found), atol=1e-6, rtol=0
    )  # 2, ½, ½ of 4
    # Of different lengths the longer one counts: −0.3 and −0.29999 per token are apart, since 1e-5 · 500 > 1e-4.
    groups = replace(
        groups,
        logprob=torch.tensor([-149.995, -1.5, -3.0, -90.0]).double(),
        lengths=torch.tensor([500, 5, 5, 5]),
    )
    found = UnlikelinessAdvantage(PLAIN, 0.4, "token")(groups)
    torch.testing.assert_close(
        found, torch.tensor([0.7, 0.8, 0.9, 0.0]).to(found), atol=1e-6, rtol=0
    )  # 3, 2, 1 of 4


def test_beta_ranges_from_nothing_to_all_of_a_rank(pools):
    groups = replace(pools((2, 2)), logprob=torch.tensor([-1.0, -9.0, -5.0, -6.0]), lengths=torch.ones(4))
    assert UnlikelinessAdvantage(PLAIN, 0.0)(groups).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert UnlikelinessAdvantage(PLAIN, 1.0)(groups).tolist() == [0.25, 1.0, 0.0, 0.0]


def test_pools_of_equal_rewards_have_no_advantage(pools):
    groups = with_logprobs(pools((8, 0), (0, 8)))
    assert not UnlikelinessAdvantage(GroupAdvantage())(groups).any()


def test_log_probs_are_needed(pools):
    with pytest.raises(ValueError, match=r"RewardGroups\.logprob"):
        UnlikelinessAdvantage(PLAIN)(pools((1, 3)))
    for lacking in ({"logprob": torch.zeros(4)}, {"lengths": torch.ones(4)}):
        with pytest.raises(ValueError, match=r"RewardGroups\.logprob"):
            UnlikelinessAdvantage(PLAIN)(replace(pools((1, 3)), **lacking))


def test_impossible_options_are_refused(pools):
    for options, message in (
        ({"beta": 1.5}, r"advantage\.beta"),
        ({"beta": -0.5}, r"advantage\.beta"),
        ({"ranked_by": "length"}, r"advantage\.ranked_by"),
        ({"group_by": "rank"}, r"advantage\.group_by"),
    ):
        with pytest.raises(ValueError, match=message):
            UnlikelinessAdvantage(PLAIN, **options)
    groups = with_logprobs(pools((1, 3)))
    with pytest.raises(ValueError, match="rewards .* got -1"):
        UnlikelinessAdvantage(PLAIN)(replace(groups, rewards=groups.rewards - 1))
