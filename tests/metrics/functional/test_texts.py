"""Weights, n-grams, densities and sums against plain arithmetic."""

from __future__ import annotations

import torch
from scipy import stats

from tagrpo.metrics.functional import (
    distinct_share,
    group_effective_sample_share,
    kernel_density,
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


def test_density_is_scipys_with_its_mass_below_zero_reflected():
    values = torch.rand(200, generator=GENERATOR, dtype=torch.float64) ** 2
    grid = torch.linspace(0, 2, 101, dtype=torch.float64)
    low, high = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64))
    spread = min(float(values.std(correction=0)), float(high - low) / 1.34)
    width = 0.9 * spread * 200**-0.2
    theirs = stats.gaussian_kde(values.numpy(), bw_method=width / float(values.std()))
    expected = theirs(grid.numpy()) + theirs(-grid.numpy())
    torch.testing.assert_close(kernel_density(values, grid), torch.from_numpy(expected), rtol=1e-6, atol=1e-9)


def test_densities_of_other_spreads_are_sums_of_normal_densities():
    grid = torch.linspace(0.5, 2.5, 41, dtype=torch.float64)
    # Equal values: the bandwidth is a hundredth of the grid's 2. A heavy tail: the interquartile range / 1.34 decides.
    tail = torch.tensor([1.0, 1.1, 1.2, 1.3, 2.4], dtype=torch.float64)
    for values, width in (
        (torch.full((7,), 1.5, dtype=torch.float64), 0.02),
        (tail, 0.9 * 0.2 / 1.34 * 5**-0.2),
        (torch.tensor([0.6, 2.4], dtype=torch.float64), 0.9 * 0.9 / 1.34 * 2**-0.2),
    ):
        normal = stats.norm(0, width)
        expected = sum(normal.pdf(grid.numpy() - v) + normal.pdf(grid.numpy() + v) for v in values.tolist()) / len(
            values
        )
        torch.testing.assert_close(kernel_density(values, grid), torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
