"""Words of the studies: intervals, sign flips and settings against other computations of the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.third.verdicts import (
    ALPHA,
    DRAWN,
    Hypothesis,
    conjunction,
    estimate_of,
    findings_of,
    flips,
    heterogeneity,
    moments_of,
    stands_out,
    together,
    word_of,
)

RAISES = Hypothesis(smallest=0.02)
LOWERS = Hypothesis(smallest=0.02, sign=-1)
LAW = Hypothesis(smallest=0.02, law=True)


def table(mean, noise=0.001, seeds=10, questions=50, seed=0):
    values = np.random.default_rng(seed).normal(size=(seeds, questions))
    return pd.DataFrame(mean + noise * (values - values.mean()))


def finding(claim, tables):
    ((found,),) = findings_of([(claim, {"a − b": tables})])
    return found


@pytest.mark.parametrize(
    ("effect", "raises", "lowers"),
    [
        (0.05, "reproduces", "opposite"),
        (0.01, "smaller than claimed", "opposite"),
        (0.0, "no effect", "no effect"),
        (-0.01, "opposite", "smaller than claimed"),
        (-0.05, "opposite", "reproduces"),
    ],
)
def test_a_word_goes_either_way_and_says_which(effect, raises, lowers):
    tables = {"one/easy": table(effect), "two/easy": table(effect, seed=1)}
    assert [finding(claim, tables).word for claim in (RAISES, LOWERS)] == [raises, lowers]


def test_noise_leaves_it_undecided():
    for effect in (0.0, 0.02, 0.04):
        assert finding(RAISES, {"one/easy": table(effect, noise=5.0)}).word == "undecided"


def test_half_an_answer_is_undecided():
    """Clearly below the smallest effect, but how far below 0 is not known: neither no effect nor opposite."""
    found = finding(RAISES, {"one/easy": table(-0.02, noise=0.2)})
    assert found.corrected.low < -0.02 < 0 < found.corrected.high < 0.02
    assert found.word == "undecided"


def test_intervals_are_those_of_t_tests_over_seeds():
    values = np.array([0.01, 0.03, 0.05, 0.00, 0.06])
    found = finding(RAISES, {"one/easy": pd.DataFrame(values)})
    mean, error = values.mean(), stats.sem(values)
    for one, level in ((found.estimate, 0.95), (found.settings["one/easy"], 0.95), (found.corrected, 1 - ALPHA / 2)):
        low, high = stats.t.interval(level, 4, mean, error)
        assert (one.value, one.low, one.high) == pytest.approx((mean, low, high))


def test_more_claims_widen_the_intervals_but_for_those_of_the_law_which_needs_all():
    tables = {"a − b": {"one/easy": pd.DataFrame([0.01, 0.03, 0.05, 0.00, 0.06])}}
    for claim, several in ((RAISES, 50), (LAW, 1)):
        *_, (found,) = findings_of([(LAW, tables)] * 3 + [(claim, tables)] * 50)
        assert found.estimate == finding(claim, tables["a − b"]).estimate
        low, high = stats.t.interval(1 - ALPHA / 2 / several, 4, found.estimate.value, stats.sem([1, 3, 5, 0, 6]) / 100)
        assert (found.corrected.low, found.corrected.high) == pytest.approx((low, high))


def test_no_word_on_a_mean_of_settings_that_contradict_each_other():
    contradicting = {"one/easy": table(0.08), "two/easy": table(-0.02, seed=1)}
    assert finding(RAISES, contradicting).word == "settings differ"
    of_one_sign = {"one/easy": table(0.08), "two/easy": table(0.01, seed=1)}
    found = finding(RAISES, of_one_sign)
    assert found.heterogeneity.p < 1e-6
    assert found.word == "reproduces"


@pytest.mark.parametrize(
    ("words", "law"),
    [
        (["reproduces"] * 3, "reproduces"),
        (["reproduces", "smaller than claimed"], "smaller than claimed"),
        (["reproduces", "undecided", "smaller than claimed"], "undecided"),
        (["undecided", "settings differ"], "settings differ"),
        (["settings differ", "no effect", "reproduces"], "opposite"),
        (["opposite", "undecided"], "opposite"),
    ],
)
def test_a_law_needs_all_of_its_claims(words, law):
    assert conjunction(words) == law


def test_regimes_are_averaged_seed_by_seed_however_much_their_effects_differ():
    """Two regimes with one number per seed are not two questions drawn at random."""
    rng = np.random.default_rng(0)
    easy, hard = (pd.DataFrame(mean + rng.normal(0, 0.01, (10, 1))) for mean in (0.1, 0.5))
    found = moments_of({"one/easy": easy, "one/hard": hard})
    averaged = (easy[0] + hard[0]) / 2
    assert float(found.mean) == pytest.approx(averaged.mean())
    assert float(found.error) == pytest.approx(stats.sem(averaged))
    assert float(found.freedom) == pytest.approx(9)
    assert finding(RAISES, {"one/easy": easy, "one/hard": hard}).word == "reproduces"


def test_regimes_share_seeds_and_tasks_do_not():
    noise = pd.DataFrame(np.random.default_rng(0).normal(size=(10, 1)))
    one = moments_of({"one/easy": noise})
    assert float(moments_of({"one/easy": noise, "one/hard": noise}).error) == pytest.approx(float(one.error))
    tasks = moments_of({"one/easy": noise, "two/easy": noise})
    assert float(tasks.error) == pytest.approx(float(one.error) / 2**0.5)
    assert float(tasks.freedom) == pytest.approx(18)


def test_seeds_and_questions_both_count():
    values = table(0.3, noise=0.2, seeds=6, questions=20)
    found = moments_of({"one/easy": values})
    parts = [(values.mean(axis=1).var() / 6, 5), (values.mean(axis=0).var() / 20, 19)]
    total = sum(variance for variance, _ in parts)
    assert float(found.error) == pytest.approx(total**0.5)
    assert float(found.freedom) == pytest.approx(total**2 / sum(variance**2 / f for variance, f in parts))


def test_regimes_weigh_the_same_whatever_their_number_of_questions_and_lose_seeds_that_one_lacks():
    few, many = table(0.0, questions=10), table(0.06, questions=90)
    assert estimate_of(moments_of({"one/easy": few, "one/hard": many})).value == pytest.approx(0.03)
    assert len(moments_of({"one/easy": few, "one/hard": many.iloc[2:]}).weights) == 8


@pytest.mark.parametrize("seed", range(3))
def test_sign_flips_against_all_patterns(seed):
    values = np.random.default_rng(seed).normal(0.5, 1, 9)
    sums = [np.dot(signs, values) for signs in product((-1, 1), repeat=9)]
    assert flips(values) == pytest.approx(np.mean([s >= values.sum() - 1e-12 for s in sums]))
    assert flips(np.array([1.0, 1.0, 1.0])) == 1 / 8
    assert flips(np.full(30, 2.0)) == 2.0**-30


@pytest.mark.parametrize("mean", [0, 1, 2])
def test_sign_flips_of_many_numbers_are_drawn_and_near_the_exact_share(mean):
    values = np.random.default_rng(3).integers(-6, 7, 60) + mean
    shares = np.ones(1)  # of each sum of |values| with signs, from the least in steps of one
    for size in np.abs(values):
        shares = np.convolve(shares, np.eye(2 * size + 1)[0] / 2 + np.eye(2 * size + 1)[-1] / 2)
    sums = np.arange(len(shares)) - np.abs(values).sum()
    exact = shares[sums >= values.sum()].sum()
    p = flips(values.astype(float))
    assert p == flips(values.astype(float))
    assert abs(p - exact) < 4 * np.sqrt(exact * (1 - exact) / DRAWN) + 1 / DRAWN
    assert flips(np.full(60, 1.0)) == 1 / (1 + DRAWN)


def test_a_quantity_with_one_number_per_seed_must_pass_sign_flips_where_enough_seeds_can():
    """One seed of three tasks carries the mean: too far out for flips, not for t-tests with their small error."""
    steady = pd.DataFrame(0.05 + 1e-4 * np.arange(10.0))
    tables = {"one/easy": steady * 20, "two/easy": steady * 0, "three/easy": -steady * 0.1}
    assert finding(RAISES, dict.fromkeys(tables, steady)).word == "reproduces"
    found = finding(RAISES, tables)
    assert found.corrected.low > 0
    assert word_of(RAISES, moments_of(tables), 0.0125) == "reproduces", "p is about 1/1024, enough for one claim"
    assert moments_of(tables).interval(1e-4)[0] > 0
    assert word_of(RAISES, moments_of(tables), 1e-4) == "undecided", "the sign-flip test at this level does not agree"
    alone = moments_of({"one/easy": steady})
    assert word_of(RAISES, alone, 1e-4) == "reproduces", "ten seeds cannot pass at this level, and are not asked to"


def test_settings_differ_by_cochrans_q_and_welchs_p():
    rng = np.random.default_rng(3)
    groups = [pd.DataFrame(rng.normal(mean, scale, (12, 1))) for mean, scale in ((0, 1), (0.5, 2), (2, 1))]
    found = heterogeneity([moments_of({"one/easy": of}) for of in groups])
    weights = [len(of) / of[0].var() for of in groups]
    mean = np.average([of[0].mean() for of in groups], weights=weights)
    assert found.q == pytest.approx(sum(w * (of[0].mean() - mean) ** 2 for w, of in zip(weights, groups, strict=True)))
    same = [[moments_of({"a/b": pd.DataFrame(rng.normal(size=(10, 1)))}) for _ in range(6)] for _ in range(800)]
    rejected = sum(heterogeneity(one).p < 0.05 for one in same)
    assert abs(rejected - 40) < 4 * (800 * 0.05 * 0.95) ** 0.5, "as often as its level says"
    assert heterogeneity([moments_of({"a/b": groups[0]})]) is None


def test_a_seed_stands_out_by_grubbs_test():
    """Critical value of the two-sided test at 1 % for ten numbers: 2.482."""
    rest = np.array([-1.5, -1.0, -0.6, -0.2, 0.1, 0.3, 0.6, 1.0, 1.3])

    def farthest(value):
        values = np.append(rest, value)
        return (values.max() - values.mean()) / values.std(ddof=1)

    inside, outside = (next(v for v in np.arange(2, 20, 0.01) if farthest(v) > bound) for bound in (2.47, 2.49))
    assert not stands_out(np.append(rest, inside))
    assert stands_out(np.append(rest, outside))
    assert not stands_out(np.zeros(10))


def test_a_claim_of_several_differences_has_the_words_of_all():
    tables = {"one": {"one/easy": table(0.05)}, "two": {"one/easy": table(0.0)}}
    (found,) = findings_of([(RAISES, tables)])
    words = [one.word for one in found]
    assert together(words) == "reproduces; no effect"
    assert together(["reproduces", "reproduces"]) == "reproduces"
    assert together([]) == ""
