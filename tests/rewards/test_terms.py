"""Reward terms against their formulas in plain Python, alone and together."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.rewards.terms import RewardNoise, SignedReward, SoftOverlongPenalty, TemplateFormatTerm
from tagrpo.rollouts.dynamic_sampling import DynamicSampling
from tagrpo.rollouts.scoring import means_of, totals_of, with_terms
from tagrpo.types import RewardGroups


@cache
def composed(*overrides):
    from hydra import compose, initialize_config_module

    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("train", list(overrides))


def with_lengths(batch, lengths):
    ids = [torch.arange(length) for length in lengths]
    return replace(batch.rollouts, token_ids=ids)


def in_templates(batch, *names):
    """The prompts of `batch` in these templates, in turn."""
    prompts = [p._replace(template=name) for p, name in zip(batch.rollouts.prompts, names, strict=True)]
    return replace(batch.rollouts, prompts=prompts)


def reward_groups(rollouts, rewards):
    return RewardGroups(
        rewards=rewards, correct=rollouts.correct, question=rollouts.question, prompt=rollouts.prompt
    )


# ------------------------------------------------------------------ format


def test_a_response_is_rewarded_by_the_template_that_it_was_sampled_in(make_batch):
    batch = make_batch([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0]]])
    rollouts = in_templates(batch, "deepseek-r1", "deepseek-r1-teacher", "formal")
    rollouts = replace(rollouts, text=["<think></think>", "", "<think></think>", "", "<think>", ""])
    term = TemplateFormatTerm()(rollouts, batch.groups)
    torch.testing.assert_close(term, torch.tensor([1 / 2, 0, 1 / 3, 0, 1, 1]))
    torch.testing.assert_close(TemplateFormatTerm(weight=0.3)(rollouts, batch.groups), 0.3 * term)


def test_templates_of_ones_own_name_their_markers(make_batch):
    batch = make_batch([[[1.0, 1.0], [0.0]]])
    rollouts = replace(in_templates(batch, "mine", "formal"), text=["a b", "a a", "a"])
    term = TemplateFormatTerm(markers={"mine": ["a", "b"], "formal": ["a", "c"]})
    assert term(rollouts, batch.groups).tolist() == [1.0, 0.0, 0.5]
    with pytest.raises(ValueError, match="mine has none"):
        TemplateFormatTerm()(rollouts, batch.groups)


# ------------------------------------------------------------------ soft overlong penalty


def penalty(length, longest, cache):
    """DAPO, Eq. 13, as it is printed."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@pytest.mark.parametrize(("longest", "cache"), [(10, 4), (7, 7), (12, 1), (20480, 4096)])
def test_the_overlong_penalty_is_equation_13(longest, cache):
    lengths = torch.tensor(
        [0, 1, *range(max(longest - cache - 2, 0), min(longest + 4, longest - cache + 40)), longest]
    )
    expected = torch.tensor([penalty(length, longest, cache) for length in lengths.tolist()])
    values = SoftOverlongPenalty(longest, cache)(SimpleNamespace(lengths=lengths), [])
    torch.testing.assert_close(values, expected)
    assert not torch.signbit(values[values == 0]).any()


def test_the_cache_is_dapos_share_unless_it_is_given(make_batch):
    assert SoftOverlongPenalty(20480).cache == 4096
    assert SoftOverlongPenalty(3).cache == 1
    batch = make_batch([[[1.0, 0.0, 1.0]]])
    term = SoftOverlongPenalty(10, weight=0.5)(with_lengths(batch, [8, 9, 10]), batch.groups)
    assert term.tolist() == [0.0, -0.25, -0.5]
    for longest, share in ((10, 0), (10, 11), (0, None)):
        with pytest.raises(ValueError, match="cache ≤ max_length"):
            SoftOverlongPenalty(longest, share)


@pytest.mark.shell
def test_dapo_punishes_length_up_to_the_limit_of_sampling():
    from hydra.utils import instantiate

    for scale in ([], ["scale=paper", "data.train.path=x", "data.evaluation.test.path=y"]):
        cfg = composed("experiment=dapo", *scale)
        term = instantiate(cfg.rollout.reward_terms.overlong)
        limit = cfg.rollout.sampling.max_new_tokens
        assert (term.max_length, term.cache, term.weight) == (limit, limit // 5, 1.0)
        assert not cfg.policy.mask_truncated
    filtering = composed("experiment=dapo", "reward_terms=[]", "policy.mask_truncated=true")
    assert (filtering.rollout.reward_terms, filtering.policy.mask_truncated) == ({}, True)


# ------------------------------------------------------------------ rewards of 1 and −1


@pytest.mark.shell
def test_a_correct_response_at_the_length_limit_earns_half_of_what_lies_between_right_and_wrong(make_batch):
    from hydra.utils import instantiate

    cfg = composed("experiment=dapo", "reward_terms=[signed,overlong]")
    batch = make_batch([[[1.0, 1.0, 0.0, 0.0]]])
    rollouts = with_terms(with_lengths(batch, [10, 40, 10, 40]), batch, instantiate(cfg.rollout.reward_terms))
    assert rollouts.rewards.tolist() == [1.0, 0.0, -1.0, -2.0]
    advantages = GroupAdvantage("prompt", scale="none")(reward_groups(rollouts, rollouts.rewards))
    assert advantages.tolist() == [1.5, 0.5, -0.5, -1.5]


@pytest.mark.shell
def test_signs_change_neither_which_questions_have_a_gradient_nor_what_counts_as_correct(make_batch):
    from tagrpo.callbacks.zero_gradient import question_percentages

    batch = make_batch([[[1.0, 1.0]], [[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 0.0]]])
    signed = with_terms(batch.rollouts, batch, {"signed": SignedReward()})
    assert signed.rewards.tolist() == [1, 1, -1, -1, 1, -1, -1, -1]
    for values in ("rewards", "correct"):
        assert DynamicSampling("prompt", values=values).informative(signed).tolist() == [2]
    percentages = [
        question_percentages(r, {"advantages": GroupAdvantage("prompt")(reward_groups(r, r.rewards))})
        for r in (batch.rollouts, signed)
    ]
    for name, plain in percentages[0].items():
        assert torch.equal(percentages[1][name].nan_to_num(-1), plain.nan_to_num(-1)), name
    batch.rollouts = signed
    logged = means_of({**totals_of(batch), "spent_failed": 0, "spent_rollouts": 1})
    assert (logged["rollout/correct"], logged["rollout/reward"]) == (3 / 8, 2 * 3 / 8 - 1)
    assert logged["rollout/reward_term/signed"] == -5 / 8


# ------------------------------------------------------------------ noise


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_that_share_of_the_wrong_answers_is_rewarded_and_no_right_one_changes(make_batch, probability):
    batch = make_batch([[[1.0, 0.0, 0.0, 0.0, 0.0] * 2000]])
    rollouts, correct = batch.rollouts, batch.rollouts.correct
    term = RewardNoise(probability)(rollouts, batch.groups)
    assert term[correct].eq(0).all()
    assert set(term.tolist()) == {0.0, 1.0}
    deviation = math.sqrt(8000 * probability * (1 - probability))
    assert abs(float(term.sum()) - 8000 * probability) < 3.5 * deviation
    rewards = correct.float() + term
    assert set(rewards.tolist()) == {0.0, 1.0}, "a flipped answer counts like a right one"
    assert rollouts.correct.sum() == 2000, "Pass@k still counts the verdict"


def test_noise_is_reproducible_and_its_own_for_each_batch_and_seed(make_batch):
    batch, other = (make_batch([[[0.0] * 64]], seed=seed) for seed in (0, 1))
    term = RewardNoise(0.5)(batch.rollouts, batch.groups)
    assert torch.equal(RewardNoise(0.5)(batch.rollouts, batch.groups), term)
    asked_elsewhere = [group._replace(id="another") for group in batch.groups]
    for changed in (
        RewardNoise(0.5)(other.rollouts, batch.groups),
        RewardNoise(0.5)(batch.rollouts, asked_elsewhere),
        RewardNoise(0.5, seed=1)(batch.rollouts, batch.groups),
    ):
        assert 0.2 < float((changed == term).float().mean()) < 0.8


def test_no_noise_and_nothing_but_noise(make_batch):
    batch = make_batch([[[0.0, 1.0, 0.0]]])
    assert RewardNoise(0.0)(batch.rollouts, batch.groups).tolist() == [0, 0, 0]
    assert RewardNoise(1.0)(batch.rollouts, batch.groups).tolist() == [1, 0, 1]
    for probability in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            RewardNoise(probability)


def test_noise_misleads_grpo_but_not_pass_at_k_training(make_batch):
    batch = make_batch([[[1.0, 0.0, 0.0, 0.0]]])
    clean = reward_groups(batch.rollouts, batch.rollouts.rewards)
    noisy = replace(clean, rewards=clean.rewards + RewardNoise(1.0)(batch.rollouts, batch.groups))
    assert GroupAdvantage("question")(noisy).eq(0).all()
    assert GroupAdvantage("question")(clean).ne(0).all()
    strategy = PassAtKAdvantage(k=2)
    assert torch.equal(strategy(noisy), strategy(clean))


@pytest.mark.shell
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_the_control_is_grpo_with_as_many_samples_as_pass_at_k_training(probability):
    from hydra.utils import instantiate

    cfg = composed("experiment=noisy_rewards", f"rollout.reward_terms.noise.probability={probability}")
    reference = composed("experiment=pass_at_k")
    assert instantiate(cfg.rollout.reward_terms.noise).probability == probability
    assert instantiate(cfg.advantage).group_by == "prompt"
    assert (cfg.data, cfg.loss, cfg.policy.anchor) == (
        reference.data,
        reference.loss,
        reference.policy.anchor,
    )


# ------------------------------------------------------------------ together


@pytest.mark.shell
def test_terms_are_chosen_by_name_and_add_up(make_batch):
    from hydra.utils import instantiate

    cfg = composed(
        "experiment=grpo", "reward_terms=[overlong,noise]", "rollout.reward_terms.noise.probability=1"
    )
    terms = instantiate(cfg.rollout.reward_terms)
    assert list(terms) == ["overlong", "noise"]
    batch = make_batch([[[1.0, 0.0]]])
    rollouts = with_lengths(batch, [40, 36])  # the limit is 40, the cache 8
    total = sum(term(rollouts, batch.groups) for term in terms.values())
    assert (rollouts.correct.float() + total).tolist() == [1 - 1, 0 - 0.5 + 1]


@pytest.mark.shell
def test_without_a_choice_the_verdict_is_the_reward():
    assert dict(composed("experiment=grpo").rollout.reward_terms) == {}
    assert composed("experiment=dapo", "reward_terms=[]").rollout.reward_terms == {}


LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=9)


@given(LENGTHS, st.integers(1, 200), st.integers(0, 100))
def test_the_overlong_penalty_falls_from_zero_to_minus_one(lengths, cache, more):
    limit = cache + more
    rollouts = SimpleNamespace(lengths=torch.tensor(sorted(lengths)))
    penalties = SoftOverlongPenalty(limit, cache)(rollouts, []).tolist()
    assert penalties == sorted(penalties, reverse=True)
    for length, penalty in zip(sorted(lengths), penalties, strict=True):
        assert penalty == pytest.approx(-min(max(length - more, 0), cache) / cache)
