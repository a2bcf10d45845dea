"""The page's effects against plain numpy and scipy on the published table, and what its sentences say of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.tasks import over_tasks
from studies.third import page
from studies.third.claims import CLAIMS, LAW
from studies.third.design import GAPS, RECIPES
from studies.third.effects import INTERACTIONS, LEADS, level_of, missed, over_untrained, span

pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def runs():
    return pd.read_csv(page.RUNS)


@pytest.fixture(scope="module")
def passed(runs):
    """(Arm, point, wording) and k → (task, branch, seed) → pass@k of runs that sampled, at the gaps."""
    rows = runs[(runs["path"] == "sampled") & (runs["kind"] == "wording") & runs["branch"].isin(GAPS)]
    by = rows.set_index(["arm", "point", "wording", "task", "branch", "seed"]).sort_index()
    return lambda k, arm, point="end", wording="original": by.loc[(arm, point, wording), f"pass@{k}"]


def mean_of(tasks):
    """Mean of the tasks' means with its 95 % interval, after Welch and Satterthwaite."""
    variances = [np.var(seeds, ddof=1) / len(seeds) / len(tasks) ** 2 for seeds in tasks]
    total = sum(variances)
    freedom = total**2 / sum(v**2 / (len(seeds) - 1) for v, seeds in zip(variances, tasks, strict=True))
    reach = stats.t.ppf(0.975, freedom) * total**0.5
    mean = np.mean([np.mean(seeds) for seeds in tasks])
    return [mean, mean - reach, mean + reach]


def slopes(found, gaps=GAPS, tasks=tuple(RECIPES)):
    """Of each task, seed by seed, the rise of a line through the gaps."""
    x = np.linspace(0, 1, len(gaps))
    return [
        np.array(
            [stats.linregress(x, row).slope for row in found[task].unstack("branch")[list(gaps)].to_numpy()]
        )
        for task in tasks
    ]


def at(found, gap):
    return [found[task].loc[gap].to_numpy() for task in RECIPES]


def lead(passed, k=32, point="end"):
    return passed(k, "ta_grpo", point) - passed(k, "grpo_matched", point)


def together(passed, point="end", wording="original"):
    four = [passed(32, arm, point, wording) for arm in ("ta_grpo", "pooled", "anchored", "exposure")]
    return four[0] - four[1] - four[2] + four[3]


TWO = ("arithmetic", "countdown")


def test_leads_are_those_of_plain_numpy(runs, passed):
    expected = {
        "rise": slopes(lead(passed)),
        "rise without `shortest_path`": slopes(lead(passed), tasks=TWO),
        "rise, best validation": slopes(lead(passed, point="best32")),
        "least gap": at(lead(passed), "gap0"),
        "least gap, best validation": at(lead(passed, point="best32"), "gap0"),
        "largest gap": at(lead(passed), "gap4"),
        "largest gap, best validation": at(lead(passed, point="best32"), "gap4"),
        "largest gap, pass@1": at(lead(passed, 1), "gap4"),
    }
    compare(runs, LEADS, expected)


def test_interactions_are_those_of_plain_numpy(runs, passed):
    end, best = together(passed), together(passed, "best32")
    expected = {
        "rise": slopes(end),
        "largest gap − least gap alone": [
            a - b for a, b in zip(at(end, "gap4"), at(end, "gap0"), strict=True)
        ],
        "rise without the least gap": slopes(end, GAPS[1:]),
        "rise without `shortest_path`": slopes(end, tasks=TWO),
        "rise, best validation": slopes(best),
        "largest gap − least gap alone, best validation": [
            a - b for a, b in zip(at(best, "gap4"), at(best, "gap0"), strict=True)
        ],
        "rise, unseen wording": slopes(together(passed, wording="unseen")),
        "least gap": at(end, "gap0"),
        "largest gap": at(end, "gap4"),
    }
    compare(runs, INTERACTIONS, expected)


def compare(runs, effects, expected):
    assert list(effects) == list(expected)
    for name, pair in effects.items():
        found = over_tasks(pair(runs))
        numbers = [100 * seeds for seeds in expected[name]]
        assert sorted(100 * found.seeds) == pytest.approx(sorted(np.concatenate(numbers)), abs=1e-6), name
        for task, seeds in zip(found.tasks.values(), numbers, strict=True):
            interval = stats.ttest_1samp(seeds, 0).confidence_interval(0.95)
            told = [100 * number for number in (task.value, task.low, task.high)]
            assert told == pytest.approx([np.mean(seeds), interval.low, interval.high], abs=1e-6), name
        if found.mean is not None:
            told = [100 * number for number in (found.mean.value, found.mean.low, found.mean.high)]
            assert told == pytest.approx(mean_of(numbers), abs=1e-6), name


def test_a_span_has_every_task_and_seed(runs):
    found = span("ta_grpo", "grpo", 1)(runs)
    assert set(found) == {f"{task}/span" for task in RECIPES}
    assert all(len(table) == 10 for table in found.values())


def test_sentences_on_gains_hold(passed):
    """Below the untrained policy at the end in `countdown`, and in no task at the best validation."""
    start = {task: passed(32, "untrained", "start")[task].unstack("branch").mean(axis=1) for task in RECIPES}

    def gained(arm, point, task):
        return passed(32, arm, point)[task].unstack("branch").mean(axis=1) - start[task]

    for arm in ("grpo", "grpo_matched", "ta_grpo"):
        assert stats.ttest_1samp(gained(arm, "end", "countdown"), 0).confidence_interval(0.95).high < 0
    for arm in page.METHODS:
        assert all(gained(arm, "best32", task).mean() > 0 for task in RECIPES)


def test_sentences_on_the_rise_hold(passed):
    of_tasks = slopes(lead(passed))
    assert of_tasks[2].mean() / sum(seeds.mean() for seeds in of_tasks) == pytest.approx(2 / 3, abs=0.01)
    assert sorted(np.argsort(of_tasks[2])[-3:]) == [0, 8, 9]
    unseen = passed(32, "ta_grpo", "end", "unseen") - passed(32, "grpo_matched", "end", "unseen")
    assert stats.ttest_1samp(slopes(unseen)[1], 0).confidence_interval(0.95).high < 0, "falls in countdown"


def test_sentences_on_the_interaction_hold(passed):
    end, best = slopes(together(passed)), slopes(together(passed, "best32"))
    assert all(stats.ttest_1samp(seeds, 0).confidence_interval(0.95).low > 0 for seeds in end), (
        "in every task"
    )
    left = np.mean([seeds.mean() for seeds in best]) / np.mean([seeds.mean() for seeds in end])
    assert left == pytest.approx(0.25, abs=0.03), "a quarter"
    assert abs(best[1].mean()) < 0.005, "almost none in countdown"
    least = [seeds.mean() for seeds in at(together(passed), "gap0")]
    assert [value < 0 for value in least] == [False, True, True]
    assert all(seeds.mean() > 0 for seeds in at(together(passed), "gap4"))
    low, high = mean_of(slopes(together(passed, wording="unseen")))[1:]
    assert low < 0 < high
    assert end[2].mean() > np.mean([seeds.mean() for seeds in end]) * 1.5, "more than its share"


def test_a_gain_is_over_the_policy_that_a_run_began_with(runs, passed):
    found = over_tasks(over_untrained("pass_at_k", 32, "best32")(runs))
    gained = passed(32, "pass_at_k", "best32") - passed(32, "untrained", "start")
    tasks = [gained[task].unstack("branch").mean(axis=1).to_numpy() for task in RECIPES]
    assert [found.mean.value, found.mean.low, found.mean.high] == pytest.approx(mean_of(tasks))


def test_levels_are_those_of_the_plan():
    assert {level_of(claim) for claim in LAW} == {0.0125}
    assert {level_of(claim) for claim in CLAIMS[len(LAW) :]} == {0.0125 / 13}, "thirteen differences"


def test_the_test_that_missed_its_level_is_a_plain_t_test(runs, passed):
    ((number, p, level),) = missed(runs)
    numbers = at(lead(passed), "gap0")
    mean = mean_of(numbers)[0]
    variances = [np.var(seeds, ddof=1) / 10 / 9 for seeds in numbers]
    freedom = sum(variances) ** 2 / sum(v**2 / 9 for v in variances)
    assert (number, level) == (2, 0.0125)
    assert p == pytest.approx(stats.t.cdf(mean / sum(variances) ** 0.5, freedom))
    assert p > level
