"""The page's numbers against plain computations, on a table whose numbers are known."""

from __future__ import annotations

from itertools import product
from string import Template

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.third import page
from studies.third.claims import CLAIMS, between, judged
from studies.third.design import ARMS, GAPS, KINDS, RECIPES, SEEDS, UNTRAINED
from studies.third.effects import excluded, missed
from studies.third.page import (
    claims_table,
    difference,
    effects_table,
    gains_table,
    gaps_table,
    kinds_table,
    mean_of,
    noise_table,
    per_gap,
    standing_out,
    texts,
)

pytestmark = pytest.mark.pages


@pytest.fixture(scope="module")
def runs(complete):
    """With gaps, which are equal steps from a start that differs between seeds, and the columns that the page shows."""
    places = complete["branch"].map(dict(zip(GAPS, np.linspace(0, 0.4, 5), strict=True))).fillna(0.3)
    shown = {"training/listed": 0.25, "iteration": 8.0}
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
    assert difference(runs, "ta_grpo", UNTRAINED, 1)["countdown", "gap1"].to_numpy() == pytest.approx(
        -0.02, abs=0.005
    )


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
    trained = runs[runs["arm"] != UNTRAINED][
        ["task", "branch", "seed", "arm", "kind", "path"]
    ].drop_duplicates()
    assert words["hours"] == f"{len(trained) / 100:.1f}", "36 seconds each"


def test_the_seed_that_stands_out_is_named(runs):
    changed = runs.copy()
    same = (
        changed[["task", "branch", "seed", "arm", "point"]]
        .eq(["countdown", "gap0", 3, "ta_grpo", "end"])
        .all(axis=1)
    )
    changed.loc[same, "pass@32"] += 0.5
    findings = judged(changed)[1]
    assert "seed 3 in claim 2, `countdown/gap0`" in standing_out(changed, findings)
    assert "claim 8" not in standing_out(changed, findings), "is on another gap"
    assert " †" in rows_of(claims_table(changed, findings))[1][3]


def test_noise_and_predictions_are_correlated_over_the_same_cells(runs, predicted):
    (name, count, *gains, r, told, gap), *_ = rows_of(noise_table(runs, predicted))
    assert (name, count) == ("`grpo`", "27")
    x, y = (
        difference(runs, *pair, 32)
        for pair in (("grpo@expected", "grpo_matched@expected"), ("grpo", "grpo_matched"))
    )
    for cell, task in zip(gains, RECIPES, strict=True):
        expected = (100 * of[task].mean() for of in (x, y.loc[x.index]))
        assert cell == ", ".join(f"{value:+.1f}".replace("-", "−") for value in expected)

    def by_task(of, gaps):
        return of.groupby(["task", "branch"]).mean().unstack()[list(gaps)].to_numpy()

    same = (by_task(of, GAPS[::2]) for of in (x, y.loc[x.index]))
    rs = [np.corrcoef(*pair)[0, 1] for pair in zip(*same, strict=True)]
    assert float(r.replace("−", "-")) == pytest.approx(np.mean(rs), abs=0.006)
    rs = [np.corrcoef(row, np.arange(5))[0, 1] for row in by_task(y, GAPS)]
    assert float(gap.replace("−", "-")) == pytest.approx(np.mean(rs), abs=0.006)
    assert float(told.replace("−", "-")) == pytest.approx(-np.mean(rs), abs=0.006), (
        "the shorter name is told less"
    )


def test_every_kind_has_its_gaps_and_the_gains_of_the_arms_that_reformulate(runs):
    for k in (1, 32):
        rows = rows_of(kinds_table(runs, k))
        assert [row[0] for row in rows] == list(KINDS)
        assert all(row[1] == "+36.0, +36.0, +36.0" for row in rows), "0.3 (1 + 0.1 seed), of five seeds"
        gains = difference(runs, "exposure", "grpo_matched", k, "hint").groupby("task").mean()
        assert rows[2][2].startswith(f"{100 * gains.mean():+.1f} [".replace("-", "−"))


def shifted(runs, task, by, **where):
    """Pass@32 of the rows of a task changed by a number."""
    changed = runs.copy()
    same = changed["task"].eq(task)
    for name, value in where.items():
        same &= changed[name].eq(value)
    changed.loc[same, "pass@32"] += by
    return changed


def test_gains_are_means_over_gaps_of_each_task_at_both_points(runs):
    changed = shifted(runs, "countdown", 0.05, arm="ta_grpo", point="best32")
    changed.loc[
        changed["arm"].eq("ta_grpo") & changed["seed"].eq(3) & changed["point"].eq("best32"), "iteration"
    ] = 0
    start, *rows = rows_of(gains_table(changed))
    assert start == ["untrained, %", "start", "–", *["9.0"] * 3, "9.0, 9.0, 9.0", "–"], "nine letters"
    assert [(row[0], row[1]) for row in rows] == [
        (f"`{arm}`", point)
        for arm in ("grpo", "grpo_matched", "ta_grpo", "pass_at_k")
        for point in ("end", "best validation")
    ]
    end, best = rows[4], rows[5]
    assert [cell.split()[0] for cell in end[2:6]] == ["−2.0"] * 4
    assert best[2] == "tasks differ"
    assert [cell.split()[0] for cell in best[3:6]] == ["−2.0", "+3.0", "−2.0"]
    assert (end[7], best[7]) == ("–", "10, 10, 10"), "one seed of ten"
    gained = difference(changed, "ta_grpo", UNTRAINED, 32, point="best32")["countdown"]
    expected = mean_of(gained[list(GAPS)].unstack("branch").mean(axis=1))
    assert best[4] == expected.signed


def test_an_effect_has_its_mean_its_tasks_and_its_seeds(runs):
    (row,) = rows_of(effects_table(runs, {"lead": between("ta_grpo", "grpo_matched", 32, branches=["gap4"])}))
    found = difference(runs, "ta_grpo", "grpo_matched", 32).loc[:, "gap4"]
    assert row[2:5] == [mean_of(found[task]).signed for task in RECIPES]
    assert row[1].startswith(f"{100 * found.mean():+.1f} [".replace("-", "−"))
    assert row[5] == "0 of 30"


def test_a_claim_has_no_mean_if_its_tasks_differ_beyond_noise_in_their_sign(runs):
    changed = shifted(runs, "countdown", 0.2, arm="ta_grpo", branch="gap0", point="end")
    _, findings = judged(changed)
    row = rows_of(claims_table(changed, findings))[1]
    assert row[3] == "tasks differ"
    assert row[5].startswith("+15.0")


def test_an_undecided_sign_is_told_from_an_effect_that_is_too_small(runs):
    """At the largest gap TA-GRPO − as many samples, with noise that leaves its sign open and excludes two points."""
    rng = np.random.default_rng(0)
    changed = runs.copy()
    cell = changed["branch"].eq("gap4") & changed["point"].eq("end") & changed["arm"].eq("ta_grpo")
    changed.loc[cell, "pass@32"] = 0.12 - 0.012 + rng.normal(0, 0.03, cell.sum())
    _, findings = judged(changed)
    word = rows_of(claims_table(changed, findings))[6][-1].split("; ")[0]
    assert (findings[6][0].word, word) == ("undecided", "**below δ**")
    wide = changed.copy()
    wide.loc[cell, "pass@32"] = 0.12 + rng.uniform(-0.1, 0.1, cell.sum())
    _, findings = judged(wide)
    word = rows_of(claims_table(wide, findings))[6][-1].split("; ")[0]
    assert (findings[6][0].word, word) == ("undecided", "**undecided**")


def test_page_and_pictures_are_written(runs, predicted, tmp_path, monkeypatch):
    runs.to_csv(tmp_path / "runs.csv", index=False)
    predicted.to_csv(tmp_path / "predicted.csv", index=False)
    for name, value in {"RUNS": "runs.csv", "PREDICTED": "predicted.csv", "PAGE": "study.md"}.items():
        monkeypatch.setattr(page, name, tmp_path / value)
    page.main()
    text = (tmp_path / "study.md").read_text()
    assert "$" not in text
    assert all((tmp_path / "study" / name).stat().st_size > 10000 for name in ("gains.png", "dose.png"))


def test_effects_of_several_differences_stand_beside_each_other(runs):
    rows = rows_of(claims_table(runs, judged(runs)[1]))
    assert all(rows[2][column].count(";") == 1 for column in range(3, 8)), "pooled, and anchored"


def test_the_page_is_short():
    text = page.PAGE.read_text(encoding="utf-8")
    abstract, rest = text.split("## The law")
    results = rest.split("## What training gains")[1].split("## The claims")[0]
    assert len(abstract.split("\n", 1)[1].split()) <= 150
    assert len(results.split()) <= 1500
    assert text.count("![") == 2


@pytest.fixture(scope="module")
def published():
    return pd.read_csv(page.RUNS)


def test_the_page_is_what_the_table_says(published):
    text = Template(page.TEXT.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == text.substitute(
        texts(published, pd.read_csv(page.PREDICTED))
    )


def test_what_the_page_says_of_starters_and_words_is_what_the_table_has(published):
    runs = published
    starts = runs[(runs["arm"] == UNTRAINED) & (runs["wording"] == "original") & (runs["kind"] == "wording")]
    of_task = starts[starts["task"] == "shortest_path"].pivot(
        index="seed", columns="branch", values=["gap", "pass@1"]
    )
    rise = of_task["gap", "gap4"] - of_task["gap", "gap0"]
    easy = (of_task["pass@1"][list(GAPS)] > 0.5).all(axis=1) & (of_task["gap", "gap0"] < -0.5)
    assert list(rise[rise < 0.1].index) == [1, 3, 8]
    assert list(easy[easy].index) == [2, 4, 7]
    assert ((rise > 0.3) & ~easy)[[0, 5, 6, 9]].all()
    law, findings = judged(runs)
    assert law == "undecided"
    assert [number for number, *_ in missed(runs)] == [2], "one of four tests"
    words = [[each.word for each in of] for of in findings]
    assert words[:3] == [["reproduces"], ["undecided"], ["reproduces"] * 2]
    assert words[3:7] == [
        ["undecided"],
        ["no effect"],
        ["undecided"],
        ["undecided", "undecided", "tasks differ"],
    ]
    assert (words[9], words[10]) == (["reproduces"], ["smaller than claimed"])
    assert words[11:] == [["undecided"]] * 3
    below = [
        (number, label)
        for number, (claim, found) in enumerate(zip(CLAIMS, findings, strict=True), 1)
        for label, each in ((each.label, each) for each in found)
        if each.word == "undecided" and excluded(claim, label, runs)
    ]
    assert [number for number, _ in below] == [6, 7]
    assert "pass_at_k" in below[1][1]
