"""Pass@k against enumeration of all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from tagrpo.metrics.functional import pass_at_k


@pytest.mark.parametrize("n", range(1, 13))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n):
    for k in range(1, n + 1):
        counts = list(range(n + 1))
        subsets = list(combinations(range(n), k))
        # With c correct samples, say the first c, a subset passes when it holds one of them.
        expected = [sum(min(subset) < c for subset in subsets) / len(subsets) for c in counts]
        torch.testing.assert_close(pass_at_k(n, torch.tensor(counts), k), torch.tensor(expected, dtype=torch.float64))


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
