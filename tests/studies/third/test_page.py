"""The page's numbers against plain computations, on a table whose numbers are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.third import page
from studies.third.claims import CLAIMS, judged
from studies.third.design import ARMS, GAPS, KINDS, RECIPES, SEEDS, UNTRAINED
from studies.third.page import (
    arms_table,
    claims_table,
    difference,
    gaps_table,
    kinds_table,
    mean_of,
    noise_table,
    per_gap,
    standing_out,
    texts,
)


@pytest.fixture(scope="module")
def runs(complete):
    """With gaps, which are equal steps from a start that differs between seeds, and the columns that the page shows."""
    places = complete["branch"].map(dict(zip(GAPS, np.linspace(0, 0.4, 5), strict=True))).fillna(0.3)
    shown = dict.fromkeys(("pass@1000", "cover@0.5", "lost@32", "gained@32", "training/listed"), 0.25)
    spent = (complete["arm"] != UNTRAINED) * 36.0
    gap = places * (1 + 0.1 * complete["seed"])
    return complete.assign(gap=gap, **shown, **{"seconds/training": spent, "seconds/evaluation": 0.0})


@pytest.fixture(scope="module")
def predicted():
    """Of arms with long names more."""
    rows = product(RECIPES, enumerate(GAPS), SEEDS, ARMS, (1, 32))
    return pd.DataFrame(
        {"task": task, "branch": gap, "seed": seed, "arm": arm, "k": k, "predicted": number * len(arm)}
        for task, (number, gap), seed, arm, k in rows
    )


def rows_of(lines):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in list(lines)[2:]]


def test_a_difference_pairs_runs_of_one_cell(runs):
    found = difference(runs, "ta_grpo@expected", "grpo@expected", 32)
    assert set(found.index.get_level_values("seed")) == {0}
    assert set(found.index.get_level_values("branch")) == set(GAPS[::2])
    assert difference(runs, "ta_grpo", UNTRAINED, 1)["countdown", "gap1"].to_numpy() == pytest.approx(-0.02, abs=0.005)


def test_an_interval_is_that_of_a_t_test():
    values = pd.Series([0.01, 0.05, 0.02, -0.01])
    found = mean_of(values)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((0.0175, interval.low, interval.high))


def test_the_rise_per_measured_gap_is_at_equal_success_on_originals(runs):
    rng = np.random.default_rng(0)
    original = pd.Series(rng.normal(0.3, 0.1, len(runs)), runs.index)
    starts = runs[(runs["arm"] == UNTRAINED) & (runs["wording"] == "original") & (runs["kind"] == "wording")]
    of_cell = {key: (gap, p) for *key, gap, p in
               zip(starts["task"], starts["branch"], starts["seed"], starts["gap"], original[starts.index], strict=True)
               for key in [tuple(key)]}  # fmt: skip
    changed = runs.copy()
    changed.loc[starts.index, "pass@1"] = original[starts.index]
    for row in changed.index[(changed["arm"] == "ta_grpo") & (changed["point"] == "end")]:
        task, branch, seed = changed.loc[row, ["task", "branch", "seed"]]
        gap, p = of_cell[task, branch, seed]
        changed.loc[row, "pass@32"] = 0.5 * gap - 0.3 * p + 0.01 * seed
    changed.loc[changed["arm"] == "grpo_matched", "pass@32"] = 0.0
    found = per_gap(changed, "countdown", "pass@1")
    assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.05, 0.05), abs=1e-9)
    alone = per_gap(changed, "countdown")
    assert alone.low < alone.value < alone.high
    row = rows_of(gaps_table(changed))[list(RECIPES).index("countdown")]
    gaps = starts[starts["task"] == "countdown"].groupby("branch")["gap"].mean()
    assert [cell.split(":")[0] for cell in row[1:6]] == [f"{100 * gaps[gap]:+.0f}" for gap in GAPS]
    assert row[6:] == [alone.signed, "+5.0 [+5.0, +5.0]"]
    noisy = per_gap(runs, "countdown")
    assert noisy.low < 0 < noisy.high


def test_the_claims_have_their_effects_and_words(runs, predicted):
    words = texts(runs, predicted)
    rows = rows_of(words["claims"].splitlines())
    assert len(rows) == len(CLAIMS)
    number, statement, source, effect, *tasks, doubt, delta, word = rows[1]
    assert (number, source, delta, word) == ("2", "the law", "−2", "**reproduces**")
    assert statement == CLAIMS[1].statement
    lost = difference(runs, "ta_grpo", "grpo_matched", 32)
    assert effect.startswith(f"{100 * lost.loc[:, 'gap0'].mean():+.1f} [".replace("-", "−"))
    assert tasks == [mean_of(lost[task, "gap0"]).signed for task in RECIPES]
    assert float(doubt) == pytest.approx(judged(runs)[1][1][0].heterogeneity.p, rel=0.5), "one digit"
    assert words["claim2a"] == effect.removesuffix(" †")
    assert words["claim3b"] == rows[2][3].removesuffix(" †").partition("; ")[2]
    assert words["law"] == "is false"
    trained = runs[runs["arm"] != UNTRAINED][["task", "branch", "seed", "arm", "kind", "path"]].drop_duplicates()
    assert words["hours"] == f"{len(trained) / 100:.1f}", "36 seconds each"


def test_the_seed_that_stands_out_is_named(runs):
    changed = runs.copy()
    same = (
        changed[["task", "branch", "seed", "arm", "point"]].eq(["countdown", "gap0", 3, "ta_grpo", "end"]).all(axis=1)
    )
    changed.loc[same, "pass@32"] += 0.5
    findings = judged(changed)[1]
    assert "seed 3 in claim 2, `countdown/gap0`" in standing_out(changed, findings)
    assert "claim 8" not in standing_out(changed, findings), "is on another gap"
    assert " †" in rows_of(claims_table(findings))[1][3]


def test_noise_and_predictions_are_correlated_over_the_same_cells(runs, predicted):
    (name, count, quiet, loud, r, told, gap), *_ = rows_of(noise_table(runs, predicted))
    assert (name, count) == ("`grpo`", "27")
    x, y = (
        difference(runs, *pair, 32) for pair in (("grpo@expected", "grpo_matched@expected"), ("grpo", "grpo_matched"))
    )
    for cell, of in ((quiet, x), (loud, y.loc[x.index])):
        means = of.groupby("branch").mean()
        assert cell == ", ".join(f"{100 * means[each]:+.1f}".replace("-", "−") for each in GAPS[::2])

    def by_task(of, gaps):
        return of.groupby(["task", "branch"]).mean().unstack()[list(gaps)].to_numpy()

    same = (by_task(of, GAPS[::2]) for of in (x, y.loc[x.index]))
    rs = [np.corrcoef(*pair)[0, 1] for pair in zip(*same, strict=True)]
    assert float(r.replace("−", "-")) == pytest.approx(np.mean(rs), abs=0.006)
    rs = [np.corrcoef(row, np.arange(5))[0, 1] for row in by_task(y, GAPS)]
    assert float(gap.replace("−", "-")) == pytest.approx(np.mean(rs), abs=0.006)
    assert float(told.replace("−", "-")) == pytest.approx(-np.mean(rs), abs=0.006), "the shorter name is told less"


def test_every_kind_has_its_gaps_and_the_gains_of_the_arms_that_reformulate(runs):
    rows = rows_of(kinds_table(runs))
    assert [row[0] for row in rows] == list(KINDS)
    assert all(row[1] == "+36.0, +36.0, +36.0" for row in rows), "0.3 (1 + 0.1 seed), of five seeds"
    for cell, k in zip(rows[2][2].split("; "), (1, 32), strict=True):
        gains = difference(runs, "exposure", "grpo_matched", k, "hint").groupby("task").mean()
        assert cell.startswith(f"{100 * gains.mean():+.1f} [".replace("-", "−"))


def test_arms_at_both_ends_have_their_means(runs):
    changed = runs.copy()
    changed.loc[changed["branch"] == "gap4", "gained@32"] = 0.5
    rows = rows_of(arms_table(changed))
    assert [row[0] for row in rows] == [f"`{arm}`" for arm in (UNTRAINED, *ARMS)]
    assert rows[0][5:7] == ["–", "–"], "lost and gained against itself"
    assert rows[7][1:7] == ["9.0, 9.0", "9.0, 9.0", *["25.0, 25.0"] * 3, "25.0, 50.0"], "pass_at_k, nine letters"


def test_page_and_pictures_are_written(runs, predicted, tmp_path, monkeypatch):
    runs.to_csv(tmp_path / "runs.csv", index=False)
    predicted.to_csv(tmp_path / "predicted.csv", index=False)
    for name, value in {"RUNS": "runs.csv", "PREDICTED": "predicted.csv", "PAGE": "study.md"}.items():
        monkeypatch.setattr(page, name, tmp_path / value)
    page.main()
    text = (tmp_path / "study.md").read_text()
    assert "$" not in text
    assert len(text.splitlines()) <= 150
    assert all((tmp_path / "study" / name).stat().st_size > 10000 for name in ("gains.png", "dose.png"))


def test_effects_of_several_differences_stand_beside_each_other(runs):
    rows = rows_of(claims_table(judged(runs)[1]))
    assert all(rows[2][column].count(";") == 1 for column in range(3, 8)), "pooled, and anchored"


def test_what_the_page_says_of_starters_and_words_is_what_the_table_has():
    runs = pd.read_csv(page.RUNS)
    starts = runs[(runs["arm"] == UNTRAINED) & (runs["wording"] == "original") & (runs["kind"] == "wording")]
    of_task = starts[starts["task"] == "shortest_path"].pivot(index="seed", columns="branch", values=["gap", "pass@1"])
    rise = of_task["gap", "gap4"] - of_task["gap", "gap0"]
    easy = (of_task["pass@1"][list(GAPS)] > 0.5).all(axis=1) & (of_task["gap", "gap0"] < -0.5)
    assert list(rise[rise < 0.1].index) == [1, 3, 8]
    assert list(easy[easy].index) == [2, 4, 7]
    assert ((rise > 0.3) & ~easy)[[0, 5, 6, 9]].all()
    law, findings = judged(runs)
    assert law == "undecided"
    words = [[each.word for each in of] for of in findings]
    assert words[:3] == [["reproduces"], ["undecided"], ["reproduces"] * 2]
    assert words[3:7] == [["undecided"], ["no effect"], ["undecided"], ["undecided", "undecided", "tasks differ"]]
    assert (words[9], words[10]) == (["reproduces"], ["smaller than claimed"])
    assert words[11:] == [["undecided"]] * 3
    readme = (page.PAGE.parents[1] / "README.md").read_text()
    for found, told in ((findings[0], "rises by {} points"), (findings[9], "ends {} points of pass@32 above as many")):
        assert told.format(f"{100 * found[0].estimate.value:.1f}") in readme
