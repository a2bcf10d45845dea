"""Rewards by lot, and rephrasings of which a known share is wrong."""

from __future__ import annotations

import math

import pytest
import torch

from studies.second.controls import RandomReward, WrongRephrasings

OPTIONS = {"split": "train", "regime": "easy", "size": 300, "num_rephrasings": 3, "seed": 3}
OF = "tagrpo.datamodules.sources.countdown.CountdownSource"


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_that_share_of_the_rephrasings_asks_another_question(wrong):
    source = WrongRephrasings(OF, wrong, **OPTIONS)
    right, found = source.source.load(), source.load()
    assert found == source.load()
    assert [group.question for group in found] == [group.question for group in right]
    assert [group.answer for group in found] == [group.answer for group in right]
    texts = [[text for group in groups for text in group.rephrasings] for groups in (found, right)]
    pairs = list(zip(*texts, strict=True))
    exchanged = [a != b for a, b in pairs]
    deviation = (900 * wrong * (1 - wrong)) ** 0.5
    assert abs(sum(exchanged) - 900 * wrong) <= 4 * deviation
    owners = {text: group.answer for group in right for text in group.rephrasings}
    assert all(owners[a] != owners[b] for a, b in pairs if a != b)


def test_random_rewards_do_not_know_the_verdict(make_batch):
    batch = make_batch([[[1.0, 0.0] * 5000]])
    term = RandomReward(seed=0)(batch.rollouts, batch.groups)
    rewards = batch.rollouts.correct.float() + term
    assert set(rewards.tolist()) == {0.0, 1.0}
    for verdict in (batch.rollouts.correct, ~batch.rollouts.correct):
        assert abs(float(rewards[verdict].sum()) - 2500) < 3.5 * math.sqrt(1250)
    assert torch.equal(RandomReward(seed=0)(batch.rollouts, batch.groups), term)
    assert not torch.equal(RandomReward(seed=1)(batch.rollouts, batch.groups), term)
