"""Weights, n-grams and sums against plain arithmetic."""

from __future__ import annotations

import torch

from tagrpo.metrics.functional import (
    distinct_share,
    group_effective_sample_share,
)

GENERATOR = torch.Generator().manual_seed(0)


def test_effective_samples_of_groups_are_those_of_each_alone():
    logs = torch.randn(12, generator=GENERATOR, dtype=torch.float64) * 3
    group = torch.tensor([4, 4, 4, 4, 4, 9, 9, 9, 9, 9, 9, 1])
    weights = [logs[group == g].exp() for g in (1, 4, 9)]
    expected = torch.stack([w.sum() ** 2 / w.square().sum() / len(w) for w in weights])
    torch.testing.assert_close(group_effective_sample_share(logs, group), expected)
    torch.testing.assert_close(group_effective_sample_share(logs + 1000, group), expected, msg="only differences count")
    assert group_effective_sample_share(torch.tensor([0.0, -torch.inf]), torch.tensor([0, 0])) == 0.5


def test_unknown_weights_are_left_out():
    logs = torch.tensor([0.0, float("nan"), 0.0, float("nan")])
    found = group_effective_sample_share(logs, torch.tensor([0, 0, 0, 1]))
    assert found[0] == 1
    assert found[1].isnan()


def test_the_share_of_distinct_items_is_counted_in_each_group():
    assert distinct_share(["a", "a", "b"], torch.tensor([1, 1, 0])).tolist() == [1.0, 0.5]
