"""The damping of SEED-GRPO against plain numpy and scipy's entropy of the counts of answers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from tagrpo.contrib.seed_grpo.advantage import SemanticEntropyAdvantage, semantic_entropy
from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.types import RewardGroups

BASE = GroupAdvantage(scale="none")
FORMULAS = {
    "linear": lambda x: 1 - x,
    "exponential": lambda x: math.exp(-x),
    "reciprocal": lambda x: 1 / (1 + x),
}
# Answers to four questions, and the sizes of their clusters. Responses without an answer agree with nobody.
ANSWERS = ["1", "1", "2", "2", "2", "3", None, None] + ["1"] * 8 + [None] * 8 + list("abcdefgh")
CLUSTERS = [[2, 3, 1, 1, 1], [8], [1] * 8, [1] * 8]


def uncertainty_in_numpy(answers):
    """SE / SE_max of one question, response by response; 0 for a single response."""
    if len(answers) == 1:
        return 0.0
    total = 0.0
    for answer in answers:
        size = 1 if answer is None else answers.count(answer)
        total -= np.log(size / len(answers)) / len(answers)
    return total / np.log(len(answers))


@pytest.fixture
def groups(pools):
    """Four questions with three correct responses of eight each."""
    return replace(pools(*[(3, 5)] * 4), answers=ANSWERS)


def test_the_entropy_is_that_of_the_sizes_of_clusters(groups):
    expected = [entropy(sizes) for sizes in CLUSTERS]
    assert semantic_entropy(groups, "question").tolist() == pytest.approx(expected, abs=1e-12)


def test_the_same_answer_to_another_question_is_another_cluster(pools):
    groups = replace(pools((1, 1), (1, 1)), answers=["5", "5", "5", "6"])
    assert semantic_entropy(groups, "question").tolist() == pytest.approx([0.0, math.log(2)])


def test_questions_need_not_be_contiguous_and_ids_are_any_integers():
    ids = torch.tensor([7, -3, 7, -3, 7])
    groups = RewardGroups(
        rewards=torch.zeros(5), correct=ids > 99, question=ids, prompt=ids, answers=["a", "x", "b", None, "a"]
    )
    # In ascending order of ids: −3 has two clusters, 7 has clusters of two and one.
    assert semantic_entropy(groups, "question").tolist() == pytest.approx([math.log(2), entropy([2, 1])])


@pytest.mark.parametrize("damping", FORMULAS)
@pytest.mark.parametrize("alpha", [0.02, 0.6, 1.0])
def test_advantages_are_damped_by_the_formula(damping, alpha, groups):
    found = SemanticEntropyAdvantage(BASE, alpha, damping)(groups).view(4, 8)
    for row in range(4):
        factor = FORMULAS[damping](alpha * uncertainty_in_numpy(ANSWERS[8 * row : 8 * row + 8]))
        # Rewards 1, 1, 1, 0, 0, 0, 0, 0 less their mean of 3/8.
        assert found[row].tolist() == pytest.approx([5 / 8 * factor] * 3 + [-3 / 8 * factor] * 5, abs=1e-6)


def test_agreement_leaves_advantages_as_they_are(groups):
    for damping in FORMULAS:
        found = SemanticEntropyAdvantage(BASE, 1.0, damping)(groups).view(4, 8)
        assert torch.equal(found[1], BASE(groups).view(4, 8)[1])
        assert torch.equal(SemanticEntropyAdvantage(BASE, 0.0, damping)(groups), BASE(groups))


def test_full_disagreement_can_be_damped_to_exactly_zero(pools):
    # Exactly, whatever the logarithms round to: such responses are then left out of the update.
    strategy = SemanticEntropyAdvantage(BASE, 1.0)
    for size in range(2, 65):
        different = replace(pools((1, size - 1)), answers=[str(row) for row in range(size)])
        assert not strategy(different).any()
        assert not strategy(replace(different, answers=[None] * size)).any()


def test_a_single_response_is_not_damped(pools):
    base = GroupAdvantage(baseline="none", scale="none")
    for answer in ("1", None):
        groups = replace(pools((1, 0)), answers=[answer])
        assert SemanticEntropyAdvantage(base, 1.0)(groups).tolist() == [1.0]


def test_an_empty_batch_has_no_advantages():
    ids = torch.zeros(0, dtype=torch.long)
    groups = RewardGroups(rewards=ids.float(), correct=ids > 0, question=ids, prompt=ids, answers=[])
    assert SemanticEntropyAdvantage(BASE)(groups).shape == (0,)


def test_answers_are_clustered_by_question_or_by_prompt(pools):
    # One question with two prompts: each answers alike, but not like the other.
    groups = replace(pools((1, 3)), prompt=torch.tensor([0, 0, 1, 1]), answers=["1", "1", "2", "2"])
    base = BASE(groups)
    torch.testing.assert_close(SemanticEntropyAdvantage(BASE, 1.0)(groups), base / 2)
    assert torch.equal(SemanticEntropyAdvantage(BASE, 1.0, group_by="prompt")(groups), base)


def test_the_factor_depends_on_answers_and_not_on_verdicts(groups):
    strategy = SemanticEntropyAdvantage(BASE, 0.5)
    other = replace(groups, rewards=1 - groups.rewards, correct=~groups.correct)
    torch.testing.assert_close(strategy(other), -strategy(groups))


def test_the_base_may_be_any_strategy(groups):
    base = PassAtKAdvantage(k=4)
    strategy = SemanticEntropyAdvantage(base, 1.0)
    uncertainty = [uncertainty_in_numpy(ANSWERS[start : start + 8]) for start in (0, 8, 16, 24)]
    factors = 1 - torch.tensor(uncertainty).float().repeat_interleave(8)
    torch.testing.assert_close(strategy(groups), base(groups) * factors, rtol=1e-5, atol=1e-7)
    assert strategy.reads_rewards is False


RESPONSES = st.tuples(
    st.integers(-2, 2),
    st.sampled_from([None, "", "0", "1", "None", "x"]),
    st.floats(-5, 5, width=32),
)


@given(
    st.lists(RESPONSES, min_size=1, max_size=24),
    st.floats(0, 1),
    st.sampled_from(sorted(FORMULAS)),
)
def test_signs_stay_magnitudes_shrink_and_order_plays_no_part(rows, alpha, damping):
    question, answers, rewards = zip(*rows, strict=True)
    ids, values = torch.tensor(question), torch.tensor(rewards)
    groups = RewardGroups(rewards=values, correct=values > 0, question=ids, prompt=ids, answers=list(answers))
    base = GroupAdvantage(baseline="none", scale="none")
    strategy = SemanticEntropyAdvantage(base, alpha, damping)
    found = strategy(groups)
    before = base(groups)
    assert (found * before >= 0).all()
    assert (found.abs() <= before.abs()).all()
    if alpha < 1 or damping != "linear":
        assert ((found == 0) <= (before.abs() < 1e-30)).all(), "no other response loses its gradient"
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    other = replace(
        groups,
        rewards=values[shuffled],
        correct=groups.correct[shuffled],
        question=ids[shuffled],
        prompt=ids[shuffled],
        answers=[answers[row] for row in shuffled.tolist()],
    )
    torch.testing.assert_close(strategy(other), found[shuffled])


@given(st.lists(st.sampled_from([None, "1", "2", "3"]), min_size=1, max_size=12))
def test_the_entropy_lies_between_agreement_and_disagreement(answers):
    ids = torch.zeros(len(answers), dtype=torch.long)
    groups = RewardGroups(rewards=ids.float(), correct=ids > 0, question=ids, prompt=ids, answers=answers)
    (found,) = semantic_entropy(groups, "question").tolist()
    assert found == pytest.approx(uncertainty_in_numpy(answers) * math.log(len(answers)), abs=1e-12)
    assert -1e-12 <= found <= math.log(len(answers)) + 1e-12


def test_missing_answers_are_named(pools):
    strategy = SemanticEntropyAdvantage(BASE, 0.5)
    for answers in (None, [], ["1"], ["1", "2", "3"]):
        with pytest.raises(ValueError, match=r"RewardGroups\.answers"):
            strategy(replace(pools((1, 1)), answers=answers))


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.01}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"alpha": math.inf, "damping": "exponential"}, "alpha"),
        ({"alpha": math.nan, "damping": "reciprocal"}, "alpha"),
        ({"damping": "focal"}, "damping"),
        ({"group_by": "batch"}, "group_by"),
    ],
)
def test_impossible_options_are_refused(options, setting):
    with pytest.raises(ValueError, match=rf"advantage\.{setting}"):
        SemanticEntropyAdvantage(BASE, **options)


def test_options_at_the_ends_of_their_ranges_are_accepted():
    for options in ({"alpha": 0}, {"alpha": 1}, {"alpha": 1.5, "damping": "exponential"}):
        SemanticEntropyAdvantage(BASE, **options)
    with pytest.raises(TypeError, match=r"advantage\.base"):
        SemanticEntropyAdvantage(None)
