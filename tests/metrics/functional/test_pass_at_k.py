"""Pass@k against enumeration of all subsets; exact pass@k against arbitrary-precision arithmetic."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import combinations, product

import pytest
import torch

from tagrpo.metrics.functional import cover_at_tau, exact_pass_at_k, pass_at_k, support_change


@pytest.mark.parametrize("n", range(1, 13))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n):
    for k in range(1, n + 1):
        counts = list(range(n + 1))
        subsets = list(combinations(range(n), k))
        # With c correct samples, say the first c, a subset passes when it holds one of them.
        expected = [sum(min(subset) < c for subset in subsets) / len(subsets) for c in counts]
        torch.testing.assert_close(
            pass_at_k(n, torch.tensor(counts), k), torch.tensor(expected, dtype=torch.float64)
        )


def test_many_samples_lose_no_precision():
    # 1 − C(999, 500) / C(1000, 500) = 1/2 exactly.
    assert float(pass_at_k(1000, 1, 500)) == pytest.approx(0.5, abs=1e-12)


def test_counts_out_of_range_are_refused():
    for arguments in ((4, 1, 5), (4, 1, 0), (torch.tensor([4, 2]), torch.tensor([1, 1]), 3)):
        with pytest.raises(ValueError, match="1 ≤ k ≤ num_samples"):
            pass_at_k(*arguments)
    with pytest.raises(ValueError, match="0 ≤ num_correct"):
        pass_at_k(4, 5, 1)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_counts_outside_of_the_samples_are_refused(wrong):
    with pytest.raises(ValueError, match="0 ≤ num_correct ≤ num_samples"):
        pass_at_k(4, torch.tensor([1, wrong]), 1)


@pytest.mark.parametrize("p", [0.0, 1e-12, 1e-6, 0.01, 0.5, 0.999, 1.0])
def test_exact_pass_at_k_is_that_of_fractions(p):
    ks = [1, 2, 10, 1000]
    expected = [float(1 - (1 - Fraction(p)) ** k) for k in ks]
    assert exact_pass_at_k(torch.tensor([p], dtype=torch.float64), ks)[0].tolist() == pytest.approx(
        expected, rel=1e-13
    )


def test_small_p_and_large_k_lose_no_digits():
    # 1 − (1 − 1e-15)^(10^6) = 1e-9 (1 − 5e-10 …); the naive formula gives 1.11e-9.
    curve = exact_pass_at_k(torch.tensor([1e-15], dtype=torch.float64), [10**6])
    assert curve.item() == pytest.approx(1e-9, rel=1e-8)


def test_it_is_the_expectation_of_the_unbiased_estimator():
    n, k, p = 6, 3, 0.3
    outcomes = torch.tensor(list(product([0, 1], repeat=n)))
    correct = outcomes.sum(1)
    chance = (p**correct * (1 - p) ** (n - correct)).double()
    expected = (chance * pass_at_k(n, correct, k)).sum().item()
    assert exact_pass_at_k(torch.tensor([p]), [k]).item() == pytest.approx(expected, rel=1e-7)


def test_what_is_no_probability_or_no_k_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        exact_pass_at_k(torch.tensor([0.5, float("nan")]), [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        exact_pass_at_k(torch.tensor([1.0001]), [1])
    outside = torch.tensor([0.0, -0.25, 1.5, 0.5, 1.0, -2.0, 3.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=re.escape("got tensor([-0.2500,  1.5000, -2.0000], dtype")):
        exact_pass_at_k(outside, [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        exact_pass_at_k(torch.tensor([-0.25]), [1])
    for ks in ([], [0]):
        with pytest.raises(ValueError, match="at least 1"):
            exact_pass_at_k(torch.tensor([0.5]), ks)


def test_cover_is_the_share_of_questions_at_or_above_each_threshold():
    correct, samples = torch.tensor([0, 1, 3, 7, 10]), 10
    taus = [n / 10 for n in range(1, 11)]
    expected = [sum(10 * c >= 10 * n for c in correct.tolist()) / 5 for n in range(1, 11)]
    for kind in (torch.float32, torch.float64):
        assert cover_at_tau(correct.to(kind) / samples, taus).mean(0).tolist() == pytest.approx(expected)
    assert cover_at_tau(torch.tensor([0.3, math.nextafter(0.3, 0)], dtype=torch.float64), [0.3]).tolist() == [
        [1],
        [0],
    ]


def test_pass_at_k_is_a_mean_of_cover_over_thresholds():
    p, k = torch.tensor([0.02, 0.3, 0.3, 0.85], dtype=torch.float64), 4
    places = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    cover = cover_at_tau(p, places.tolist()).mean(0)
    integral = (k * (1 - places) ** (k - 1) * cover).mean()
    assert float(integral) == pytest.approx(float(exact_pass_at_k(p, [k]).mean()), abs=1e-5)


def test_what_is_no_probability_or_no_threshold_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        cover_at_tau(torch.tensor([0.5, float("nan")]), [0.5])
    for taus in ([-0.1], [0.5, 1.1]):
        with pytest.raises(ValueError, match="taus between 0 and 1"):
            cover_at_tau(torch.tensor([0.5]), taus)


def test_support_is_gained_and_lost_at_each_budget():
    before = exact_pass_at_k(torch.tensor([0.4, 0.6, 0.01, 0.01]), [1, 100])  # reach: 1 of 4, then 4 of 4
    after = exact_pass_at_k(torch.tensor([0.6, 0.4, 0.6, 0.001]), [1, 100])
    gained, lost = support_change(before, after)
    assert gained.tolist() == [2 / 4, 0]
    assert lost.tolist() == [1 / 4, 1 / 4]


def test_a_question_at_the_level_itself_is_within_reach():
    at, below = torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[0.4]], dtype=torch.float64)
    for before, after, expected in ((at, at, (0, 0)), (below, at, (1, 0)), (at, below, (0, 1))):
        assert tuple(float(share) for share in support_change(before, after)) == expected
