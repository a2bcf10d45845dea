"""From files of runs to tables and words, on runs whose numbers are known."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from studies.third.claims import CLAIMS, LAW, WORDINGS, between, judged, mistakes, of, rise
from studies.third.design import GAPS, RECIPES, UNTRAINED, runs_of
from studies.third.power import drawn, is_false, noise_of, simulated
from studies.third.results import added, rows_of
from studies.third.verdicts import Hypothesis, findings_of

pytestmark = pytest.mark.pages


def success_of(arm, gap, seed):
    """One question, p known: the gain of `ta_grpo` is a tenth of the gap, and seeds differ by a thousandth."""
    return 0.2 + 0.1 * gap * (arm == "ta_grpo") + 0.001 * seed


@pytest.fixture
def folder(tmp_path):
    """All arms of one task at five gaps, three seeds."""
    for number, branch in enumerate(GAPS):
        gap = 0.1 * number
        for seed in range(3):
            for run in runs_of("countdown", branch, seed, rate=1e-4):
                tests = {wording: [success_of(run.arm, gap, seed), 0.9] for wording in WORDINGS}
                told = {
                    name: getattr(run, name)
                    for name in ("task", "branch", "seed", "arm", "kind", "path", "rate")
                }
                told["recipe"] = asdict(RECIPES["countdown"])
                if run.arm == UNTRAINED:
                    told |= {
                        "tests": {"wording": tests},
                        "prompts": {"original": [0.1, 0.3], "wording": [0.2 + gap]},
                    }
                else:
                    told |= {"tests": {"8": {**tests, "original": [0.0, 0.0]}, "40": tests}}
                    told |= {"points": {"best1": 8, "best32": 8, "end": 40}, "seconds": {"training": 1.0}}
                    told |= {"training": {"without_gradient": [0.5, 0.25]}}
                path = tmp_path / run.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(told))
    return tmp_path


def test_rows_have_the_gap_and_means_over_questions(folder):
    table = pd.DataFrame(rows_of(folder))
    assert len(table) == 5 * 3 * (3 + 7 * 3 * 3)
    row = table.query(
        "branch == 'gap3' and seed == 2 and arm == 'ta_grpo' and point == 'end' and wording == 'original'"
    )
    assert row["gap"].item() == pytest.approx(0.3)
    p = success_of("ta_grpo", 0.3, 2)
    assert row["pass@8"].item() == pytest.approx((1 - (1 - p) ** 8 + 1 - 0.1**8) / 2, abs=1e-5)
    assert row["cover@0.5"].item() == 0.5
    assert row["training/without_gradient"].item() == 0.375
    best = table.query("arm == 'grpo' and point == 'best1' and wording == 'original'")
    assert (best["lost@1"] == 0.5).all()
    assert (best["pass@32"] == 0).all()
    assert (table.query("point == 'start'")[["gained@32", "lost@32"]] == 0).all(axis=None)


def test_differences_are_paired_by_seed_and_rises_are_from_the_least_gap_to_the_largest(folder):
    table = pd.DataFrame(rows_of(folder))
    found = between("ta_grpo", "grpo", 1)(table)
    assert list(found) == [f"countdown/{branch}" for branch in GAPS]
    for number, values in enumerate(found.values()):
        assert values.to_numpy()[:, 0] == pytest.approx([0.01 * number / 2] * 3)
    ((label, largest),) = of(between, "ta_grpo", "grpo", 1, branches=["gap4"]).items()
    assert label == "between: ta_grpo − grpo (pass@1, gap4)"
    assert largest(table)["countdown/gap4"].equals(found["countdown/gap4"])
    assert len(largest(table)) == 1
    for gaps, expected in ((GAPS, 0.02), (GAPS[1:], 0.015)):
        values = rise("ta_grpo", "grpo", 1, gaps=gaps)(table)["countdown/rise"].to_numpy()[:, 0]
        assert values == pytest.approx([expected] * 3)
    assert rise("ta_grpo", "grpo", 1)(table.query("seed == 1")) == {}
    (against,) = {
        tuple(v.to_numpy()[:, 0].round(6))
        for v in between("grpo", UNTRAINED, 1, point="best1")(table).values()
    }
    assert against == pytest.approx([-0.55 - 0.001 * seed / 2 for seed in range(3)])


def test_runs_that_a_table_has_stay_in_it_when_the_runs_of_another_place_are_added(folder, tmp_path):
    rows, path = pd.DataFrame(rows_of(folder)), tmp_path / "runs.csv"
    added(rows[rows["seed"] < 2], path).assign(gap=0.5).to_csv(path, index=False)
    both = added(rows[rows["seed"] > 0], path)
    assert len(both) == len(rows)
    assert dict(both.groupby("seed")["gap"].agg(lambda of: {*of} == {0.5})) == {0: True, 1: False, 2: False}
    again = added(rows.sample(frac=1, random_state=0), path)
    pd.testing.assert_frame_equal(both.drop(columns="gap"), again.drop(columns="gap"))


def test_every_claim_names_arms_that_run_and_finds_them(folder):
    table = pd.DataFrame(rows_of(folder))
    assert len(CLAIMS) <= 15
    assert len({claim.statement for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        for label, found in claim.tables(table).items():
            asks_for_more = "@expected" in label or any(
                kind in label for kind in ("format", "hint", "harder")
            )
            assert bool(found) != asks_for_more, label


def test_words_on_the_runs_of_the_plan(complete):
    law, findings = judged(complete)
    assert [len(found) for found in findings] == [len(claim.pairs) for claim in CLAIMS]
    assert all(set(each.tasks) == set(RECIPES) for found in findings for each in found)
    assert {each.seeds for found in findings for each in found} == {15, 30}
    assert findings[1][0].estimate.value == pytest.approx(
        (len("ta_grpo") - len("grpo_matched")) / 100, abs=0.002
    )
    assert findings[1][0].word == "reproduces"
    assert law == "opposite", "at the largest gap `anchored` has the higher number"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda runs: runs.drop(index=runs.query("task == 'countdown' and arm == 'pooled'").index[7]),
            "1 of .* too few",
        ),
        (lambda runs: pd.concat([runs, runs.iloc[5:6]]), "1 of arithmetic/gap0/seed0/.* too many"),
        (lambda runs: pd.concat([runs, runs.iloc[40:41].assign(rate=0.5)]), "1 of .*-0.5.json.* too many"),
        (lambda runs: runs.replace({"seed": {3: 12}}), "too few"),
        (
            lambda runs: runs.assign(**{"pass@32": runs["pass@32"].where(runs.index != 9)}),
            "no pass@k in arithmetic",
        ),
    ],
)
def test_no_word_on_a_table_that_is_not_the_plans(complete, change, told):
    assert mistakes(complete) == []
    with pytest.raises(ValueError, match=told):
        judged(change(complete))


def test_runs_of_another_recipe_are_refused(folder):
    file = next(path for path in folder.rglob("*.json") if UNTRAINED not in path.name)
    run = json.loads(file.read_text())
    file.write_text(json.dumps({**run, "recipe": {**run["recipe"], "iterations": 5}}))
    with pytest.raises(ValueError, match=r"recipe in .*countdown"):
        list(rows_of(folder))


RAISES = Hypothesis(smallest=0.02)


@pytest.mark.parametrize(
    ("word", "false_at", "true_at"),
    [
        ("reproduces", [-0.01, 0.0], [0.001, 0.05]),
        ("smaller than claimed", [0.0, 0.02, 0.05], [0.01]),
        ("no effect", [0.02, -0.03], [0.0, -0.01]),
        ("opposite", [0.0, 0.01], [-0.001]),
        ("undecided", [], [-1.0, 0.0, 1.0]),
    ],
)
def test_words_that_are_false(word, false_at, true_at):
    assert all(is_false(word, RAISES, effect) for effect in false_at)
    assert not any(is_false(word, RAISES, effect) for effect in true_at)


def pilot_tables(spread, seeds=40):
    rng = np.random.default_rng(0)
    return {
        f"{task}/{branch}": pd.DataFrame(rng.normal(mean, 0.03, (seeds, 1)))
        for task in ("one", "two", "three")
        for branch, mean in zip(GAPS, np.linspace(-spread, spread, 5), strict=True)
    }


def test_noise_is_that_of_seeds_and_of_settings_beyond_it():
    noise = noise_of(pilot_tables(0.0))
    assert list(noise.seeds.values()) == pytest.approx([0.03] * 15, rel=0.15)
    assert noise.settings < 0.004
    assert noise_of(pilot_tables(0.1)).settings == pytest.approx(
        np.linspace(-0.1, 0.1, 5).std(ddof=1), rel=0.1
    )
    truth, tables = drawn(noise_of(pilot_tables(0.1)), 0.02, 2000, 1, np.random.default_rng(1))
    assert np.mean(list(truth.values())) == pytest.approx(0.02)
    for name, values in tables.items():
        assert values.to_numpy().mean() == pytest.approx(truth[name], abs=0.004)
        assert values.to_numpy().std() == pytest.approx(0.03, rel=0.15)


def test_simulated_studies_decide_what_is_large_and_are_seldom_wrong():
    claim, tables = LAW[0], [{"a − b": pilot_tables(0.0)}]
    wrong = [false for _, (false,) in simulated([claim], tables, effect=0.0, seeds=20, rounds=40)]
    assert sum(wrong) <= 6  # 5 % of 40 studies are 2; six or more have a chance of 1.4 %
    assert {word for words, _ in simulated([claim], tables, 3.0, 20, 20) for of in words for word in of} == {
        "reproduces"
    }
    ((whole,),) = findings_of([(claim, {"a − b": pilot_tables(0.02)})])
    assert whole.seeds == 120
