"""The overtraining gate: the posterior by integration and by counting, the gate on top of a base."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb

import numpy as np
import pytest
import torch

from tagrpo.contrib.overtraining_gate.advantage import OvertrainingGateAdvantage, marginal_worth
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.types import History


def utility(m, n, k):
    """E[k (1 − p)^(k−1)] under Beta(m + 1, n − m + 1), by the product that the paper's Eq. 8 writes."""
    value = float(k)
    for j in range(1, k):
        value *= (n - m + j) / (n + 1 + j)
    return value


def remembered(groups, *known):
    """The groups, with (samples, correct) of each question."""
    samples, correct = torch.tensor(known).T
    unseen = torch.zeros_like(groups.question)
    return replace(groups, history=History(samples[groups.question], correct[groups.question], unseen))


@pytest.mark.parametrize(("n", "k"), [(0, 4), (1, 1), (8, 2), (8, 16), (24, 256), (2000, 256)])
def test_the_worth_is_the_papers_utility_over_that_of_a_question_never_solved(n, k):
    m = torch.arange(min(n, 12) + 1)
    expected = torch.tensor([utility(int(i), n, k) / utility(0, n, k) for i in m], dtype=torch.float64)
    torch.testing.assert_close(marginal_worth(torch.full_like(m, n), m, k), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 0, 8), (1, 8, 8), (3, 8, 4), (8, 8, 3)])
def test_the_worth_is_the_integral_over_the_posterior(m, n, k):
    p = (np.arange(200_000) + 0.5) / 200_000
    worth = k * (1 - p) ** (k - 1)
    solved, never = p**m * (1 - p) ** (n - m), (1 - p) ** n
    expected = (worth * solved).sum() / solved.sum() / ((worth * never).sum() / never.sum())
    assert float(marginal_worth(torch.tensor(n), torch.tensor(m), k)) == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(comb(n, m) / comb(n + k - 1, m), rel=1e-6)


def test_without_k_only_questions_that_were_never_solved_count(pools):
    groups = remembered(pools((1, 3), (1, 3), (1, 3)), (0, 0), (64, 0), (64, 1))
    base = GroupAdvantage()
    gated = OvertrainingGateAdvantage(base, reference_k=None)(groups)
    assert torch.equal(gated, base(groups) * torch.tensor([1.0] * 8 + [0.0] * 4))
    torch.testing.assert_close(gated, OvertrainingGateAdvantage(base, reference_k=10**9)(groups))


def test_the_base_alone_decides_at_k_1_and_every_gate_is_a_factor(pools):
    groups = remembered(pools((1, 3), (3, 1), (0, 4)), (8, 2), (4, 1), (16, 0))
    base = GroupAdvantage()
    assert torch.equal(OvertrainingGateAdvantage(base, reference_k=1)(groups), base(groups))
    factors = torch.tensor([utility(2, 8, 4) / utility(0, 8, 4), utility(1, 4, 4) / utility(0, 4, 4), 1.0])
    torch.testing.assert_close(
        OvertrainingGateAdvantage(base, reference_k=4)(groups), base(groups) * factors.repeat_interleave(4)
    )
    # C(8, 2) / C(11, 2) and C(4, 1) / C(7, 1)
    assert factors[:2].tolist() == pytest.approx([28 / 55, 4 / 7])
    cut = OvertrainingGateAdvantage(base, reference_k=4, threshold=0.55)(groups)
    assert torch.equal(cut[:4], torch.zeros(4))
    assert torch.equal(cut[4:], OvertrainingGateAdvantage(base, reference_k=4)(groups)[4:])


def test_thresholds_end_where_every_question_counts_or_the_unsolved_alone(pools):
    groups, base = remembered(pools((1, 3), (1, 3)), (8, 0), (8, 7)), GroupAdvantage()
    # 1 / C(16, 7)-th of the advantage is little, and more than nothing.
    assert OvertrainingGateAdvantage(base, reference_k=9, threshold=0.0)(groups).all()
    unsolved = OvertrainingGateAdvantage(base, reference_k=9, threshold=1.0)(groups)
    assert torch.equal(unsolved, base(groups) * torch.tensor([1.0] * 4 + [0.0] * 4)), "a weight of 1 is not below 1"


def test_pass_at_256_is_what_grows_unless_another_is_given(pools):
    groups, base = remembered(pools((1, 3)), (8, 1)), GroupAdvantage()
    found = OvertrainingGateAdvantage(base, threshold=0.0)(groups)
    torch.testing.assert_close(found, base(groups) * 8 / 263)  # C(8, 1) / C(263, 1)


def test_the_expected_gradient_is_the_weight_times_that_of_the_base(pools):
    """Exactly, over all outcomes of four responses: E[A | right] − E[A | wrong], each response with success rate p."""
    p, base = 0.3, GroupAdvantage(scale="none")
    gate, weights = OvertrainingGateAdvantage(base, reference_k=8), []
    for strategy in (base, gate):
        total = 0.0
        for outcome in product((True, False), repeat=4):
            groups = remembered(pools((1, 3)), (8, 1))
            groups = replace(groups, correct=torch.tensor(outcome), rewards=torch.tensor(outcome).float())
            chance = p ** sum(outcome) * (1 - p) ** (4 - sum(outcome))
            score = torch.tensor([1 / p if right else -1 / (1 - p) for right in outcome])
            total += chance * float((strategy(groups) * score).mean())
        weights.append(total)
    assert weights[1] == pytest.approx(weights[0] * 8 / 15)


def test_what_it_can_not_do_is_refused(pools):
    with pytest.raises(ValueError, match=r"RewardGroups\.history.*QuestionMemory"):
        OvertrainingGateAdvantage(GroupAdvantage())(pools((1, 1)))
    with pytest.raises(ValueError, match=r"advantage\.reference_k"):
        OvertrainingGateAdvantage(GroupAdvantage(), reference_k=0)
    for threshold in (-0.5, 1.5):
        with pytest.raises(ValueError, match=r"advantage\.threshold"):
            OvertrainingGateAdvantage(GroupAdvantage(), threshold=threshold)
    with pytest.raises(TypeError, match=r"advantage\.base"):
        OvertrainingGateAdvantage(None)
