"""The page's numbers against plain computations, on a table whose numbers are known."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.tasks import over_tasks
from studies.third import page
from studies.third.claims import CLAIMS, between, judged
from studies.third.design import ARMS, GAPS, KINDS, RECIPES, SEEDS, UNTRAINED
from studies.third.effects import LEADS, excluded, missed
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
    points,
    predictions,
    standing_out,
)
from studies.third.results import RUN

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


def test_the_claims_have_their_effects_and_words(runs):
    law, findings = judged(runs)
    rows = rows_of(claims_table(runs, findings))
    assert len(rows) == len(CLAIMS)
    number, statement, source, effect, *tasks, doubt, delta, word = rows[1]
    assert (number, source, delta, word) == ("2", "the law", "−2", "**reproduces**")
    assert statement == CLAIMS[1].statement
    lost = difference(runs, "ta_grpo", "grpo_matched", 32)
    assert effect.startswith(f"{100 * lost.loc[:, 'gap0'].mean():+.1f} [".replace("-", "−"))
    assert tasks == [mean_of(lost[task, "gap0"]).signed for task in RECIPES]
    assert float(doubt) == pytest.approx(findings[1][0].heterogeneity.p, rel=0.5), "one digit"
    assert law == "opposite"


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


def test_tables_and_pictures_are_written(runs, tmp_path, monkeypatch):
    runs.to_csv(tmp_path / "runs.csv", index=False)
    names = re.findall(r"<!-- begin (\w+) -->", page.PAGE.read_text(encoding="utf-8"))
    marks = [f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in names]
    (tmp_path / "README.md").write_text("".join(marks), encoding="utf-8")
    monkeypatch.setattr(page, "RUNS", tmp_path / "runs.csv")
    monkeypatch.setattr(page, "PAGE", tmp_path / "README.md")
    page.main()
    found = page.sections(runs, judged(runs)[1])
    assert sorted(found) == sorted(names)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    for name, written in found.items():
        assert f"<!-- begin {name} -->\n{written}\n<!-- end {name} -->" in text
    assert all((tmp_path / name).stat().st_size > 10000 for name in ("gains.png", "dose.png"))


def test_effects_of_several_differences_stand_beside_each_other(runs):
    rows = rows_of(claims_table(runs, judged(runs)[1]))
    assert all(rows[2][column].count(";") == 1 for column in range(3, 8)), "pooled, and anchored"


@pytest.fixture(scope="module")
def published():
    return pd.read_csv(page.RUNS)


@pytest.fixture(scope="module")
def published_words(published):
    return judged(published)


def test_the_tables_of_the_page_are_what_the_table_of_runs_says(published, published_words):
    text = page.PAGE.read_text(encoding="utf-8")
    for name, written in page.sections(published, published_words[1]).items():
        assert f"<!-- begin {name} -->\n{written}\n<!-- end {name} -->" in text


def test_the_text_of_the_page_has_the_numbers_of_the_tables(published, published_words):
    law, findings = published_words
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    runs = published

    def effect(number):
        (claim, (first, *_)) = CLAIMS[number - 1], findings[number - 1]
        return over_tasks(claim.tables(runs)[first.label]).short

    spent = runs[runs["arm"] != UNTRAINED].drop_duplicates(list(RUN))
    hours = spent.filter(like="seconds/").sum().sum() / 3600
    listed = spent.groupby("task")["training/listed"].mean()
    of_prediction, of_gap = predictions(runs, pd.read_csv(page.PREDICTED))
    by_task = [each.value for each in findings[9][0].tasks.values()]
    steepest = LEADS["rise"](runs)["shortest_path/rise"].iloc[:, 0].nlargest(3).sort_index()
    steep = ", ".join(f"{points(float(steepest[seed]))} in seed {seed}" for seed in steepest.index)
    ((claim, p, level),) = missed(runs)
    without = over_tasks(LEADS["rise without `shortest_path`"](runs)).short
    told = [
        f"rises by {over_tasks(LEADS['rise'](runs)).short} from the least gap to the largest",
        f"The rise is {without} without `shortest_path`, {effect(4)} without the least gap, and {effect(5)} if",
        f"TA-GRPO changes pass@1 by {over_tasks(LEADS['largest gap, pass@1'](runs)).short}.",
        f"by {effect(10)} ({100 * min(by_task):.1f} to {100 * max(by_task):.1f} by task)",
        f"The law is {law}: one of four tests missed its level (p = {p:.4f} in claim {claim}, needed {level:.4f})",
        f"that TA-GRPO loses at the least gap, is {effect(2)} and missed its level",
        f"Without it {effect(4)} is left ({findings[3][0].word}), stopped early {effect(5)} "
        f"(*{findings[4][0].word}*)",
        f"from three seeds: {steep}.",
        f"correlate at r = {of_prediction} over means of seeds within tasks; with the gap alone it is {of_gap}.",
        f"probability: {', '.join(f'{100 * listed[task]:.1f} % in `{task}`' for task in RECIPES)}.",
        f"{len(spent):,} trainings, with ten seeds at the gaps and five in the kinds, took {hours:.1f} core-hours",
    ]
    assert [sentence for sentence in told if sentence not in text] == []


def test_what_the_page_says_of_starters_and_words_is_what_the_table_has(published, published_words):
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
    law, findings = published_words
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
