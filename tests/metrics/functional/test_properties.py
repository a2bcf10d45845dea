"""What every figure of a group is for any values: against plain loops and exact fractions, and under symmetries."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tagrpo.metrics.functional import (
    answer_diversity,
    answer_entropy,
    difficulty_test,
    difficulty_variance,
    exact_pass_at_k,
    majority_vote,
    mean_pairwise_distance,
    pass_at_k,
    support_change,
    t_intervals,
    uniform_groups,
    uniform_subset_probability,
    zero_gradient_causes,
    zero_gradient_probability,
)

quick = settings(max_examples=min(40, settings.default.max_examples))
VALUES = st.sampled_from([0.0, 0.1, 1.0, -1.5])
GROUPED = st.lists(st.tuples(VALUES, st.sampled_from([-3, 0, 7])), min_size=1, max_size=12)
FLAGS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from(["1", "2", "3", None])),
    min_size=1,
    max_size=8,
)
FINITE = st.floats(-1e6, 1e6)
RATES = st.floats(0, 1)


def split(rows):
    """Values and groups as tensors, and group → values in ascending order of the groups."""
    values, groups = zip(*rows, strict=True)
    members = {g: [v for v, other in rows if other == g] for g in sorted(set(groups))}
    return torch.tensor(values, dtype=torch.float64), torch.tensor(groups), members


def answered(rows):
    correct, group, answers = zip(*rows, strict=True)
    return list(answers), torch.tensor(correct), torch.tensor(group)


def pools(correct, group):
    """Numbers of the responses of each group, in ascending order of the groups."""
    return [[i for i in range(len(correct)) if group[i] == g] for g in sorted(set(group.tolist()))]


@given(n=st.integers(1, 40), c=st.integers(0, 40), k=st.integers(1, 40))
@quick
def test_pass_at_k_is_the_fraction_of_its_definition(n, c, k):
    assume(c <= n and k <= n)
    expected = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert float(pass_at_k(n, c, k)) == pytest.approx(float(expected), abs=1e-14)


@given(n=st.integers(2, 30), data=st.data())
@quick
def test_pass_at_k_grows_with_k_and_with_correct_samples_and_pass_at_1_is_the_rate(n, data):
    c, k = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n - 1))
    assert pass_at_k(n, c, k) <= pass_at_k(n, c, k + 1) + 1e-15
    assert pass_at_k(n, c, k) <= pass_at_k(n, c + 1, k) + 1e-15
    assert float(pass_at_k(n, c, 1)) == pytest.approx(c / n)


@given(rows=GROUPED)
@quick
def test_uniform_rewards_are_found_as_a_loop_does(rows):
    values, group, members = split(rows)
    assert uniform_groups(values, group).tolist() == [len(set(own)) == 1 for own in members.values()]


@given(rows=GROUPED, size=st.integers(1, 5))
@quick
def test_the_share_of_uniform_subsets_is_that_of_all_subsets(rows, size):
    values, group, members = split(rows)
    found = uniform_subset_probability(values, group, torch.full((len(members),), size))
    for share, own in zip(found.tolist(), members.values(), strict=True):
        subsets = [len(set(chosen)) == 1 for chosen in combinations(own, size)]
        assert share == pytest.approx(sum(subsets) / len(subsets)) if subsets else math.isnan(share)


@given(rates=st.lists(RATES, min_size=1, max_size=3), samples=st.integers(1, 3))
@quick
def test_the_chance_of_no_gradient_is_the_sum_over_all_outcomes(rates, samples):
    flips = [rate for rate in rates for _ in range(samples)]
    expected = sum(
        math.prod(rate if right else 1 - rate for rate, right in zip(flips, outcome, strict=True))
        for outcome in product([True, False], repeat=len(flips))
        if len(set(outcome)) == 1
    )
    success = torch.tensor(rates, dtype=torch.float64)
    assert float(zero_gradient_probability(success, samples)) == pytest.approx(expected)
    alone = zero_gradient_probability(success, samples, pooled=False)
    assert float(zero_gradient_probability(success, samples)) <= float(alone.min()) + 1e-12, (
        "pooling never hurts"
    )


@given(rows=FLAGS, random=st.randoms())
@quick
def test_entropy_of_answers_is_that_of_their_shares_in_any_order(rows, random):
    answers, correct, group = answered(rows)
    expected = []
    for own in pools(correct, group):
        counts = Counter(answers[i] for i in own).values()
        expected.append(-math.fsum(c / len(own) * math.log(c / len(own)) for c in counts))
    assert answer_entropy(answers, group).tolist() == pytest.approx(expected, abs=1e-12)
    random.shuffle(rows)
    shuffled, _, group = answered(rows)
    assert answer_entropy(shuffled, group).tolist() == pytest.approx(expected, abs=1e-12)


@given(rows=FLAGS)
@quick
def test_wrong_answers_are_counted_once(rows):
    answers, correct, group = answered(rows)
    expected = [len({answers[i] for i in own if not correct[i]} - {None}) for own in pools(correct, group)]
    assert answer_diversity(answers, correct, group).tolist() == expected


@given(rows=FLAGS)
@quick
def test_a_majority_is_that_of_all_votes(rows):
    answers, correct, group = answered(rows)
    for own in pools(correct, group):
        wrong = Counter(answers[i] for i in own if not correct[i] and answers[i])
        votes = Counter(
            "right" if correct[i] else f"wrong {answers[i]}" for i in own if correct[i] or answers[i]
        )
        wins = (
            (votes["right"] == max(votes.values())) / list(votes.values()).count(votes["right"])
            if any(correct[own])
            else 0
        )
        assert majority_vote(int(correct[own].sum()), list(wrong.values())) == pytest.approx(wins)


@given(seed=st.integers(0, 999), size=st.integers(2, 6), factor=st.floats(0.01, 100))
@quick
def test_distances_are_means_over_pairs_and_know_no_length_and_no_rotation(seed, size, factor):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    pairs = [1 - torch.cosine_similarity(a, b, dim=0) for a, b in combinations(vectors, 2)]
    group = torch.zeros(size, dtype=torch.long)
    expected = torch.stack(pairs).mean()[None]
    torch.testing.assert_close(mean_pairwise_distance(vectors, group), expected)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q
    torch.testing.assert_close(mean_pairwise_distance(factor * vectors @ rotation, group), expected)


@given(
    rows=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=24), random=st.randoms()
)
@quick
def test_difficulty_does_not_depend_on_order_names_or_which_verdict_is_called_right(rows, random):
    def found(rows, flip=False, names=(0, 1, 2, 3, 4, 5)):
        correct = torch.tensor([right != flip for right, _ in rows])
        prompt = torch.tensor([names[p] for _, p in rows])
        question = torch.tensor([p % 2 for _, p in rows])
        return difficulty_variance(correct, prompt, question), difficulty_test(correct, prompt, question)

    variance, table = found(rows)
    order = list(rows)
    random.shuffle(order)
    for other in (found(order), found(rows, flip=True), found(rows, names=(9, 11, 4, 2, 0, -1))):
        torch.testing.assert_close(other[0], variance, equal_nan=True)
        assert other[1] == pytest.approx(table, nan_ok=True)


@given(first=st.integers(1, 6), second=st.integers(1, 6), right=st.integers(1, 11))
@quick
def test_the_expected_statistic_of_equal_prompts_is_one_over_all_tables(first, second, right):
    n = first + second
    assume(right < n)
    prompt, question = torch.tensor([0] * first + [1] * second), torch.zeros(n, dtype=torch.long)
    mean = 0.0
    for c in range(max(0, right - second), min(first, right) + 1):
        correct = torch.tensor([i < c for i in range(first)] + [i < right - c for i in range(second)])
        mean += hypergeom(n, right, first).pmf(c) * difficulty_test(correct, prompt, question).statistic
    assert mean == pytest.approx(1)


@given(p=RATES, k=st.integers(1, 200))
@quick
def test_exact_pass_at_k_is_one_minus_the_power(p, k):
    expected = 1 - (1 - Fraction(p)) ** k
    found = float(exact_pass_at_k(torch.tensor([p], dtype=torch.float64), [k]))
    assert found == pytest.approx(float(expected), rel=1e-12)


@given(rates=st.lists(st.tuples(RATES, RATES), min_size=1, max_size=9), level=RATES)
@quick
def test_what_is_gained_one_way_is_lost_the_other_way(rates, level):
    before, after = torch.tensor(rates, dtype=torch.float64).T[:, :, None]
    gained, lost = support_change(before, after, level)
    assert support_change(after, before, level) == (lost, gained)
    had, has = (float((rate >= level).double().mean()) for rate in (before, after))
    assert float(gained - lost) == pytest.approx(has - had)


@given(values=st.lists(RATES, min_size=2, max_size=9), shift=st.floats(-5, 5), factor=st.floats(0.1, 9))
@quick
def test_an_interval_lies_among_its_values_and_moves_and_scales_with_them(values, shift, factor):
    column = torch.tensor(values, dtype=torch.float64)[:, None]
    (plain,) = t_intervals(column)
    assert min(values) - 1e-12 <= plain.low <= plain.high <= max(values) + 1e-12
    (moved,) = t_intervals(factor * column + shift)
    assert moved == pytest.approx([factor * bound + shift for bound in plain], abs=1e-9)


@given(
    rows=st.lists(st.tuples(VALUES, VALUES, *[st.booleans()] * 3, st.integers(0, 3)), min_size=1, max_size=12)
)
@quick
def test_a_question_without_gradient_has_exactly_one_cause_and_others_have_none(rows):
    advantages, rewards, correct, truncated, masked, prompt = zip(*rows, strict=True)
    question = torch.tensor([p // 2 for p in prompt])
    causes = zero_gradient_causes(
        torch.tensor(advantages), torch.tensor(rewards), torch.tensor(correct), torch.tensor(truncated),
        question, torch.tensor(prompt), masked=torch.tensor(masked),
    )  # fmt: skip
    live = torch.tensor(advantages) * ~torch.tensor(masked)
    silent = [not live[question == q].any() for q in sorted(set(question.tolist()))]
    assert torch.stack(list(causes.values())).sum(0).tolist() == silent
