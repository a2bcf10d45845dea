"""Words of the studies: intervals, sign flips and settings against other computations of the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.third.verdicts import (
    ALPHA,
    Hypothesis,
    conjunction,
    estimate_of,
    findings_of,
    flips,
    heterogeneity,
    moments_of,
    stands_out,
)

pytestmark = pytest.mark.pages

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
    for one, level in ((found.estimate, 0.95), (found.tasks["one"], 0.95), (found.corrected, 1 - ALPHA / 2)):
        low, high = stats.t.interval(level, 4, mean, error)
        assert (one.value, one.low, one.high) == pytest.approx((mean, low, high))


def test_more_claims_widen_the_intervals_but_for_those_of_the_law_which_needs_all():
    tables = {"a − b": {"one/easy": pd.DataFrame([0.01, 0.03, 0.05, 0.00, 0.06])}}
    for claim, several in ((RAISES, 50), (LAW, 1)):
        *_, (found,) = findings_of([(LAW, tables)] * 3 + [(claim, tables)] * 50)
        assert found.estimate == finding(claim, tables["a − b"]).estimate
        low, high = stats.t.interval(
            1 - ALPHA / 2 / several, 4, found.estimate.value, stats.sem([1, 3, 5, 0, 6]) / 100
        )
        assert (found.corrected.low, found.corrected.high) == pytest.approx((low, high))


def test_no_word_on_a_mean_of_tasks_that_contradict_each_other():
    contradicting = {"one/easy": table(0.08), "two/easy": table(-0.02, seed=1)}
    assert finding(RAISES, contradicting).word == "tasks differ"
    one_without = {
        "one/easy": table(0.08),
        "two/easy": table(0.08, seed=1),
        "three/easy": table(-1e-5, noise=0.1, seed=2),
    }
    found = finding(RAISES, one_without)
    assert found.tasks["three"].value < 0 < found.tasks["three"].high
    assert found.word == "tasks differ", "a sign that one task does not have"
    of_one_sign = {"one/easy": table(0.08), "two/easy": table(0.01, seed=1)}
    found = finding(RAISES, of_one_sign)
    assert found.heterogeneity.p < 1e-6
    assert found.word == "reproduces"
    regimes = {"one/easy": table(0.08), "one/hard": table(-0.02, seed=1)}
    assert finding(RAISES, regimes).word == "reproduces", "regimes of one task are averaged"


def test_each_claim_of_the_law_could_call_it_false_so_that_they_share_the_level():
    """p of the contrary is between a seventh of the level and the level."""
    values = -np.array([0.02, 0.06, 0.02, 0.06, 0.05, 0.01])
    p = stats.ttest_1samp(values, 0).pvalue / 2
    assert ALPHA / 4 / 20 < p < ALPHA / 4
    tables = {"a − b": {"one/easy": pd.DataFrame(values)}}
    ((alone,),) = findings_of([(LAW, tables)])
    among, *_ = findings_of([(LAW, tables)] * 20)
    assert (alone.word, among[0].word) == ("opposite", "undecided")
    lowering = Hypothesis(smallest=0.02, sign=-1, law=True)
    assert findings_of([(lowering, tables)] * 20)[0][0].word == "reproduces"


def test_skewness_raises_the_quantile_on_its_side_alone():
    values = np.random.default_rng(5).exponential(size=14) - 0.45
    found = moments_of({"one/easy": pd.DataFrame(values)})
    skew = stats.skew(values, bias=False) / 14**0.5
    assert float(found.third / found.error**3) == pytest.approx(skew)
    level = 0.0125
    quantile = stats.t.ppf(1 - level, 13)
    raised = quantile + abs(skew) * (1 + 2 * quantile**2) / 6
    assert skew > 0
    for side, least in ((1, quantile), (-1, raised)):
        for t, passed in ((least * 1.001, True), (least * 0.999, False)):
            bound = found.mean - side * t * found.error
            assert found.passes(side, bound, level) == (
                passed and flips(side * (found.shares - bound / 14)) <= level
            )
        assert flips(side * (found.shares - (found.mean - side * least * 1.001 * found.error) / 14)) <= level


def test_skewed_noise_makes_fewer_false_words_with_it():
    """Twelve seeds of three tasks with exponential noise whose tail is on the other side of the claim."""
    rng, wrong, by_t = np.random.default_rng(0), 0, 0
    for _ in range(1500):
        noise = 1 - rng.exponential(size=(3, 12))
        found = moments_of({f"{row}/easy": pd.DataFrame(values) for row, values in enumerate(noise)})
        wrong += found.passes(1, 0.0, 0.0125)
        by_t += bool(found.interval(0.0125)[0] > 0)
    assert by_t > 1.6 * wrong
    assert wrong / 1500 < 0.03


@pytest.mark.parametrize(
    ("words", "law"),
    [
        (["reproduces"] * 3, "reproduces"),
        (["reproduces", "smaller than claimed"], "smaller than claimed"),
        (["reproduces", "undecided", "smaller than claimed"], "undecided"),
        (["undecided", "no effect", "reproduces"], "no effect"),
        (["no effect", "tasks differ", "reproduces"], "tasks differ"),
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


def test_a_word_must_pass_sign_flips_where_enough_seeds_can():
    """One seed of three tasks carries the mean: too far out for flips, not for t-tests with their small error."""
    steady = pd.DataFrame(0.05 + 1e-4 * np.arange(10.0))
    tables = {"one/easy": steady * 20, "two/easy": steady * 0, "three/easy": -steady * 0.1}
    found = moments_of(tables)
    assert found.passes(1, 0.0, 0.0125), "p is about 1/1024, enough for one claim"
    assert found.interval(1e-4)[0] > 0
    assert not found.passes(1, 0.0, 1e-4), "the sign-flip test at this level does not agree"
    assert moments_of({"one/easy": steady}).passes(1, 0.0, 1e-4), (
        "ten seeds cannot pass at this level, and need not"
    )


def test_settings_differ_by_cochrans_q_and_welchs_p():
    rng = np.random.default_rng(3)
    groups = [pd.DataFrame(rng.normal(mean, scale, (12, 1))) for mean, scale in ((0, 1), (0.5, 2), (2, 1))]
    found = heterogeneity([moments_of({"one/easy": of}) for of in groups])
    weights = [len(of) / of[0].var() for of in groups]
    mean = np.average([of[0].mean() for of in groups], weights=weights)
    assert found.q == pytest.approx(
        sum(w * (of[0].mean() - mean) ** 2 for w, of in zip(weights, groups, strict=True))
    )
    same = [
        [moments_of({"a/b": pd.DataFrame(rng.normal(size=(10, 1)))}) for _ in range(6)] for _ in range(800)
    ]
    rejected = sum(heterogeneity(one).p < 0.05 for one in same)
    assert abs(rejected - 40) < 4 * (800 * 0.05 * 0.95) ** 0.5, "as often as its level says"
    assert heterogeneity([moments_of({"a/b": groups[0]})]) is None


def test_a_seed_stands_out_by_grubbs_test():
    """Critical value of the two-sided test at 1 % for ten numbers: 2.482."""
    rest = np.array([-1.5, -1.0, -0.6, -0.2, 0.1, 0.3, 0.6, 1.0, 1.3])

    def farthest(value):
        values = np.append(rest, value)
        return (values.max() - values.mean()) / values.std(ddof=1)

    inside, outside = (
        next(v for v in np.arange(2, 20, 0.01) if farthest(v) > bound) for bound in (2.47, 2.49)
    )
    assert not stands_out(np.append(rest, inside))
    assert stands_out(np.append(rest, outside))
    assert not stands_out(np.zeros(10))
