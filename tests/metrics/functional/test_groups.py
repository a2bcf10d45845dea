"""Group metrics against loops over groups; why questions give no gradient, one hand-made question per cause."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

from tagrpo.metrics.functional import (
    CAUSES,
    answer_diversity,
    mean_pairwise_distance,
    uniform_groups,
    uniform_subset_probability,
    zero_gradient_causes,
    zero_gradient_percentage,
    zero_gradient_probability,
)


def random_groups(seed, size=40):
    rng = np.random.default_rng(seed)
    return rng, torch.tensor(rng.choice([-5, 3, 8, 100], size))


def test_uniform_rewards_are_counted_per_group():
    for seed in range(5):
        rng, group = random_groups(seed, 9)
        rewards = torch.tensor(rng.choice([0.0, 1.0], 9))
        uniform = [len(set(rewards[group == g].tolist())) == 1 for g in group.unique()]
        assert uniform_groups(rewards, group).tolist() == uniform


def test_questions_without_gradient_are_those_whose_advantages_are_all_zero():
    for seed in range(5):
        rng, group = random_groups(seed, 9)
        advantages = torch.tensor(rng.choice([0.0, 0.0, -0.5, 0.5], 9))
        without = [not any(advantages[group == g].tolist()) for g in group.unique()]
        assert zero_gradient_percentage(advantages, group).item() == pytest.approx(100 * np.mean(without))


@pytest.mark.parametrize("seed", range(5))
def test_uniform_subsets_are_counted_by_drawing_them_all(seed):
    rng, group = random_groups(seed, 18)
    rewards = torch.tensor(rng.choice([0.0, 0.5, 1.0], 18, p=[0.2, 0.1, 0.7]))
    sizes = torch.tensor(rng.integers(1, 5, len(group.unique())))
    expected = []
    for g, size in zip(group.unique(), sizes.tolist(), strict=True):
        subsets = list(combinations(rewards[group == g].tolist(), size))
        expected.append(np.mean([len(set(subset)) == 1 for subset in subsets]) if subsets else np.nan)
    found = uniform_subset_probability(rewards, group, sizes)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_distance_is_the_mean_over_pairs():
    rng, group = random_groups(1)
    embeddings = torch.tensor(rng.normal(size=(40, 6)))
    expected = []
    for g in group.unique():
        rows = embeddings[group == g].numpy()
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(rows, 2)]
        expected.append(1 - np.mean(cosines))
    np.testing.assert_allclose(mean_pairwise_distance(embeddings, group).numpy(), expected, atol=1e-12)


def test_distance_of_a_single_response_is_undefined():
    assert mean_pairwise_distance(torch.ones(1, 2), torch.tensor([0])).isnan().tolist() == [True]


def test_distance_expects_the_same_whatever_the_size_of_the_pool():
    generator = torch.Generator().manual_seed(0)
    means = []
    for size in (3, 24):
        embeddings = torch.randn(400 * size, 4, generator=generator) + torch.tensor([1.0, 0, 0, 0])
        means.append(
            float(mean_pairwise_distance(embeddings, torch.arange(400).repeat_interleave(size)).mean())
        )
    assert abs(means[0] - means[1]) < 0.03


def test_only_distinct_wrong_answers_count():
    answers = ["1", "2", "2", None, "3", "3"]
    correct = torch.tensor([True, False, False, False, False, False])
    assert answer_diversity(answers, correct, torch.tensor([0, 0, 0, 0, 7, 7])).tolist() == [1, 1]
    assert answer_diversity(["1"], torch.tensor([True]), torch.tensor([0])).tolist() == [0]


@pytest.mark.parametrize("samples", [2, [1, 3, 2]])
def test_the_probability_of_no_gradient_is_that_of_all_equal_reward_vectors(samples):
    rates = np.array([0.1, 0.5, 0.95])
    counts = np.broadcast_to(samples, 3)
    prompt = np.repeat(np.arange(3), counts)
    pooled, own = 0.0, np.zeros(3)
    for rewards in product((0, 1), repeat=len(prompt)):
        probability = np.where(np.array(rewards) == 1, rates[prompt], 1 - rates[prompt]).prod()
        pooled += probability * (len(set(rewards)) == 1)
        own += probability * np.array(
            [len({r for r, p in zip(rewards, prompt, strict=True) if p == n}) == 1 for n in range(3)]
        )
    found = [
        zero_gradient_probability(torch.tensor(rates), torch.tensor(samples), pooled=p) for p in (True, False)
    ]
    assert [f.dtype for f in found] == [torch.float64] * 2
    assert float(found[0]) == pytest.approx(pooled, rel=1e-13)
    np.testing.assert_allclose(found[1].numpy(), own, rtol=1e-13)


def test_the_predicted_share_of_questions_without_gradient_is_measured():
    generator = torch.Generator().manual_seed(0)
    rates = torch.tensor([0.02, 0.1, 0.3], dtype=torch.float64)
    rewards = (torch.rand(20_000, 3, 4, generator=generator) < rates[:, None]).double()
    group = torch.arange(20_000)[:, None].expand(-1, 12)
    predicted = float(zero_gradient_probability(rates, 4))
    measured = float(uniform_groups(rewards.flatten(), group.flatten()).double().mean())
    assert abs(measured - predicted) < 4 * np.sqrt(predicted * (1 - predicted) / 20_000)


@pytest.mark.parametrize(("rate", "samples"), [(1.5, 2), (-0.1, 2), (float("nan"), 2), (0.5, 0)])
def test_impossible_rates_and_samples_have_no_probability(rate, samples):
    with pytest.raises(ValueError, match="success rates"):
        zero_gradient_probability(torch.tensor([rate]), samples)


def test_distances_stay_in_their_range_and_one_response_has_none():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(200, 5, generator=generator)
    ids = torch.arange(200)
    equal = mean_pairwise_distance(vectors.repeat(3, 1), ids.repeat(3))
    assert equal.min() >= 0
    assert equal.max() < 1e-12
    opposite = mean_pairwise_distance(torch.cat([vectors, -vectors]), ids.repeat(2))
    assert opposite.max() <= 2
    assert opposite.min() > 2 - 1e-12
    assert mean_pairwise_distance(vectors, ids).isnan().all()
    assert mean_pairwise_distance(torch.eye(2), torch.zeros(2)).tolist() == [1.0]


def test_certain_success_and_certain_failure_are_probabilities():
    assert zero_gradient_probability(torch.tensor([0.0, 1.0]), 3, pooled=False).tolist() == [1.0, 1.0]
    assert float(zero_gradient_probability(torch.tensor([0.0, 1.0]), 1)) == 0.0
    for success, samples in ((1.01, 1), (-0.01, 1), (0.5, 0)):
        with pytest.raises(ValueError, match="success rates"):
            zero_gradient_probability(torch.tensor([success]), samples)


# (rewards, correct, advantages, truncated, prompt, masked, clipped) of the responses to one question.
QUESTIONS = {
    "all_right": ([1, 1], [1, 1], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]),
    "all_wrong": ([0, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 1], [0, 0]),
    "truncated": ([0, 0], [0, 0], [0, 0], [1, 1], [0, 0], [0, 0], [0, 0]),
    "unpooled": ([1, 1, 0, 0], [1, 1, 0, 0], [0] * 4, [0] * 4, [0, 0, 1, 1], [0] * 4, [0] * 4),
    "masked": ([1, 0, 0], [1, 0, 0], [0, 1, -1], [0, 1, 1], [0, 0, 0], [0, 1, 1], [0, 0, 0]),
    "clipped": ([1, 0, 0], [1, 0, 0], [1, -1, -1], [0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1]),
    "other": ([1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    "none": ([1, 0], [1, 0], [1, -1], [0, 0], [0, 0], [0, 0], [1, 0.9]),
    "shaped": ([0.5, 0.5], [1, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]),
}


def causes_of(names, **left_out):
    columns = list(zip(*(QUESTIONS[name] for name in names), strict=True))
    rewards, correct, advantages, truncated, prompt, masked, clipped = (
        torch.tensor([x for part in column for x in part], dtype=torch.float32) for column in columns
    )
    sizes = torch.tensor([len(QUESTIONS[name][0]) for name in names])
    group = (100 - torch.arange(len(names))).repeat_interleave(sizes)  # descending ids
    options = {"masked": masked.bool(), "clipped": clipped} | left_out
    found = zero_gradient_causes(
        advantages, rewards, correct.bool(), truncated.bool(), group, group * 10 + prompt.long(), **options
    )
    assert tuple(found) == CAUSES
    flags = torch.stack(list(found.values()))
    assert flags.sum(0).max() <= 1, "a question has one cause at most"
    return [[name for name, f in found.items() if f[i]] for i in reversed(range(len(names)))]


def test_each_cause_is_told_from_the_others():
    names = list(QUESTIONS)
    expected = [[name] for name in names[:-2]] + [[], ["other"]]
    assert causes_of(names) == expected
    assert [causes_of([name])[0] for name in names] == expected, (
        "a question's cause does not depend on the others"
    )


@pytest.mark.parametrize("name", ["masked", "clipped"])
def test_what_the_module_does_not_return_counts_as_nothing(name):
    assert causes_of([name], masked=None, clipped=None) == [[]]
    assert causes_of(["clipped"], clipped=torch.tensor([float("nan")] * 3)) == [[]]
