"""Verdicts of the second study, and that the whole procedure errs as seldom as it says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.second.verdicts import (
    ALPHA,
    OVERALL,
    Hypothesis,
    error_rates,
    findings_of,
    over_all,
    power,
    simulated,
    together,
)

RAISES = Hypothesis(smallest=0.02)
LITTLE = Hypothesis(smallest=0.02, little=True)


def table(mean, noise=0.001, seeds=10, questions=50, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(seeds, questions))
    values -= values.mean()
    return pd.DataFrame(mean + noise * values)


def verdict(claim, tables):
    ((*_, over_settings),) = findings_of([(claim, {"a − b": tables})])
    return over_settings.verdict


@pytest.mark.parametrize(
    ("effect", "raises", "lowers", "adds_little"),
    [
        (0.05, "reproduces", "refuted", "refuted"),
        (0.0, "refuted", "refuted", "reproduces"),
        (-0.05, "refuted", "reproduces", "reproduces"),
        (0.01, "refuted", "refuted", "reproduces"),  # there, but smaller than the smallest
    ],
)
def test_a_verdict_goes_either_way(effect, raises, lowers, adds_little):
    tables = {"one/easy": table(effect), "two/easy": table(effect, seed=1)}
    assert verdict(RAISES, tables) == raises
    assert verdict(Hypothesis(smallest=0.02, sign=-1), tables) == lowers
    assert verdict(Hypothesis(smallest=0.02, little=True), tables) == adds_little


def test_noise_leaves_it_undecided():
    for effect in (0.0, 0.02, 0.04):
        assert verdict(RAISES, {"one/easy": table(effect, noise=5.0)}) == "undecided"


def test_p_values_are_those_of_one_sided_t_tests_over_seeds():
    values = np.array([0.01, 0.03, 0.05, 0.00, 0.06])
    ((single, _),) = findings_of([(RAISES, {"a − b": {"one/easy": pd.DataFrame(values)}})])
    above = stats.ttest_1samp(values, 0.0, alternative="greater").pvalue
    below = stats.ttest_1samp(values, 0.02, alternative="less").pvalue
    # Two tests in the family (Holm), which has one half of the 5 %.
    first, second = sorted([above, below])
    assert single.p_reproduces == pytest.approx(2 * 2 * first)
    assert single.p_refuted == pytest.approx(min(1.0, 2 * max(second, 2 * first)))


def test_more_claims_make_a_verdict_harder():
    tables = {"a − b": {"one/easy": table(0.03, noise=0.15)}}
    (alone,) = findings_of([(RAISES, tables)])
    first, *_ = findings_of([(RAISES, tables)] * 50)
    assert alone[0].p_reproduces < ALPHA < first[0].p_reproduces


def test_the_mean_over_tasks_keeps_the_seeds_of_a_task_together():
    """Two regimes with the same noise of seeds are no more certain than one; two tasks are."""
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(rng.normal(size=(10, 1)))
    one = over_all({"one/easy": noise})
    regimes = over_all({"one/easy": noise, "one/hard": noise})
    tasks = over_all({"one/easy": noise, "two/easy": noise})
    assert regimes.error >= one.error - 1e-12
    assert tasks.error == pytest.approx(one.error / 2**0.5)
    assert tasks.freedom == pytest.approx(18)
    assert one.estimate.value == pytest.approx(float(noise.mean().iloc[0]))


def test_regimes_of_a_task_weigh_the_same_whatever_their_number_of_questions():
    few, many = table(0.0, questions=10), table(0.06, questions=90)
    assert over_all({"one/easy": few, "one/hard": many}).estimate.value == pytest.approx(0.03)


def test_a_claim_of_several_differences_needs_all_and_one_refutes_it():
    def of(*effects):
        tables = {f"{i}": {"one/easy": table(effect)} for i, effect in enumerate(effects)}
        (found,) = findings_of([(RAISES, tables)])
        return together([finding for finding in found if finding.setting == OVERALL])

    assert of(0.05, 0.06) == "reproduces"
    assert of(0.05, 0.0) == "refuted"
    assert together([]) == "undecided"


def some_claims():
    """Noise of seeds, of questions, and skewed noise of single answers, as pass@k has."""
    rng = np.random.default_rng(1)
    claims = []
    for _ in range(6):
        rows, columns = rng.normal(0, 0.015, (6, 1)), rng.normal(0, 0.05, (1, 40))
        rest = rng.exponential(0.1, (6, 40)) - 0.1
        tables = {f"{task}/easy": pd.DataFrame(rows + columns + rest) for task in ("one", "two")}
        claims.append((RAISES, {"a − b": tables}))
    return claims


def test_the_whole_procedure_errs_in_at_most_one_study_of_twenty():
    rates = error_rates(some_claims(), seeds=[10] * 6, rounds=300)
    bound = stats.binom.ppf(0.999, 300, ALPHA) / 300
    assert all(rate <= bound for rate in rates.values()), rates


def test_what_is_simulated_has_the_noise_of_its_tables():
    claims = [
        (Hypothesis(smallest=0.02, sign=-1), {"a − b": {"one/easy": table(0.5, noise=0.1, seeds=6, questions=400)}})
    ]
    rng = np.random.default_rng(0)
    drawn = [simulated(claims, 1.0, [10], rng)[0][1]["a − b"]["one/easy"] for _ in range(50)]
    assert np.mean([each.to_numpy().mean() for each in drawn]) == pytest.approx(-0.02, abs=0.003)
    assert np.mean([each.to_numpy().std() for each in drawn]) == pytest.approx(0.1, rel=0.1)
    assert drawn[0].shape == (10, 400)


def test_power_grows_with_the_effect_and_is_told_by_setting():
    claims = some_claims()[:2]
    weak, strong = (power(claims, [10, 10], effect, rounds=60)[0]["reproduces"] for effect in (0.5, 6.0))
    assert set(weak) == {"one/easy", "two/easy", OVERALL}
    assert weak[OVERALL] < 0.5 < strong[OVERALL]


@pytest.mark.parametrize("claim", [RAISES, LITTLE])
def test_where_noise_is_small_every_claim_gets_the_verdict_that_it_should_have(claim):
    quiet = {"a − b": {"one/easy": table(0.0, noise=0.001, seeds=4, questions=20)}}
    (rates,) = power([(claim, quiet)], [10], rounds=10)
    sure = {"one/easy": pytest.approx(1.0), OVERALL: pytest.approx(1.0)}
    assert rates == {"reproduces": sure, "refuted": sure}
