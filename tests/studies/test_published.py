"""What the README and the pages say of studies is what their tables say, by plain numpy and scipy."""

from __future__ import annotations

import json
import re
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.smollm2 import RATE_SEED

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[2]
GAPS = [f"gap{n}" for n in range(5)]
TASKS = ("arithmetic", "countdown", "shortest_path")


def text_of(name):
    """A page on one line, with hyphens as minus signs."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").replace("−", "-").split())


@pytest.fixture(scope="module")
def passed():
    """(k, arm, point) → (task, branch, seed) → pass@k in points on the originals."""
    runs = pd.read_csv(ROOT / "studies" / "third" / "runs.csv.gz")
    same = runs["path"].eq("sampled") & runs["kind"].eq("wording") & runs["wording"].eq("original")
    rows = (
        runs[same & runs["branch"].isin(GAPS)]
        .set_index(["arm", "point", "task", "branch", "seed"])
        .sort_index()
    )
    return lambda k, arm, point="end": 100 * rows.loc[(arm, point), f"pass@{k}"]


def interval(tasks):
    """Mean of tasks, each [seeds], with its 95 % interval after Welch and Satterthwaite."""
    variances = np.array([seeds.var(ddof=1) / len(seeds) for seeds in tasks]) / len(tasks) ** 2
    freedom = variances.sum() ** 2 / sum(
        v**2 / (len(seeds) - 1) for v, seeds in zip(variances, tasks, strict=True)
    )
    reach = stats.t.ppf(0.975, freedom) * variances.sum() ** 0.5
    mean = np.mean([seeds.mean() for seeds in tasks])
    return f"{mean:.1f} [{mean - reach:.1f}, {mean + reach:.1f}]"


def over_gaps(found):
    return {task: found[task].unstack("branch").mean(axis=1).to_numpy() for task in TASKS}


def rises(found, tasks=TASKS):
    lines = {task: found[task].unstack("branch")[GAPS].to_numpy() for task in tasks}
    return [np.polyfit(np.linspace(0, 1, 5), rows.T, 1)[0] for rows in lines.values()]


def test_the_readme_on_gains_over_the_untrained_policy(passed):
    readme = text_of("README.md")
    start = passed(32, "untrained", "start")
    end = {arm: over_gaps(passed(32, arm) - start) for arm in ("grpo", "ta_grpo")}
    lost = {arm: -of["countdown"].mean() for arm, of in end.items()}
    assert f"GRPO ends {lost['grpo']:.1f} below the untrained policy, TA-GRPO {lost['ta_grpo']:.1f}" in readme
    for task in ("arithmetic", "shortest_path"):
        assert all(of[task].mean() > 0 for of in end.values()), "lost in one task"
    arms = ("grpo", "grpo_matched", "ta_grpo", "pass_at_k")
    best = [over_gaps(passed(32, arm, "best32") - start) for arm in arms]
    assert all(of[task].mean() > 0 for of in best for task in TASKS)
    grpo, many, ours, pass_at_k = (np.mean([of[task].mean() for task in TASKS]) for of in best)
    told = f"GRPO gains {grpo:.1f} over it, GRPO with as many samples {many:.1f}, TA-GRPO {ours:.1f}, "
    assert f"{told}Pass@k training {pass_at_k:.1f}." in readme


def test_the_readme_on_the_rise_and_its_cost(passed):
    readme = text_of("README.md")
    end, best = (
        passed(32, "ta_grpo", point) - passed(32, "grpo_matched", point) for point in ("end", "best32")
    )
    assert f"rises by {interval(rises(end))} with how much easier" in readme
    assert f"by {interval(rises(end, TASKS[:2]))} without `shortest_path`" in readme
    assert f"by {interval(rises(best))} stopped early" in readme
    lost = passed(1, "grpo_matched") - passed(1, "ta_grpo")
    assert f"costs {interval([lost[task].loc['gap4'].to_numpy() for task in TASKS])} of pass@1" in readme


def test_the_readme_on_pass_at_k_training(passed):
    ahead = over_gaps(passed(32, "pass_at_k") - passed(32, "grpo_matched"))
    by_task = sorted(seeds.mean() for seeds in ahead.values())
    told = f"{interval(list(ahead.values()))}, {by_task[0]:.1f} to {by_task[-1]:.1f} by task"
    assert f"beats as many samples by {told}" in text_of("README.md")


def test_no_page_says_that_not_to_train_is_best():
    for name in ("README.md", "docs/study.md", "docs/study_second.md", "docs/benchmark.md"):
        text = text_of(name)
        assert "is not to train" not in text
        assert "strongest baseline" not in text


def test_the_second_study_says_what_its_table_and_its_frozen_procedure_found():
    text = text_of("docs/study_second.md")
    page = (ROOT / "docs" / "study_second.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \d+ \|.*\| \*\*(.+?)\*\* \|$", page, re.MULTILINE)
    assert len(words) == 49
    reproduced = words.count("reproduces")
    undecided = sum(word in ("undecided", "undecided < δ", "undecided; undecided < δ") for word in words)
    otherwise = [word for word in words if word not in ("reproduces", "undecided", "undecided < δ")]
    otherwise.remove("undecided; undecided < δ")
    assert (reproduced, undecided, len(otherwise)) == (14, 26, 9)
    assert f"{reproduced} reproduce" in text
    assert f"{undecided} undecided; {len(otherwise)} otherwise" in text
    assert sum("undecided" in word for word in otherwise) == 6, "half undecided"
    assert "6 reproduced, 11 refuted, 32 undecided" in text
    assert "frozen twice" in text


@pytest.fixture(scope="module")
def smollm2():
    return [json.loads(line) for line in (ROOT / "studies" / "smollm2.jsonl").read_text().splitlines()]


def test_smollm2_on_rates_and_power(smollm2):
    text = text_of("docs/smollm2.md")
    tried = {
        (run["arm"], run["rate"]): 100 * run["pass@k"]["validation"]["1"]
        for run in smollm2
        if run["seed"] == RATE_SEED
    }
    assert (
        f"TA-GRPO had {tried['ta_grpo', '2e-5']:.1f} % against {tried['grpo_matched', '2e-5']:.1f} %" in text
    )
    reaches = []
    for split in ("test_id", "test_phrasing"):
        found = {
            (run["arm"], run["seed"]): 100 * run["pass@k"][split]["32"]
            for run in smollm2
            if run["seed"] != RATE_SEED
        }
        paired = [found["ta_grpo", seed] - found["grpo_matched", seed] for seed in range(4)]
        reaches.append(stats.t.ppf(0.975, 3) * stats.sem(paired))
    assert [round(reach) for reach in reaches] == [9, 9]
    assert "reach 9 points to either side" in text


def test_smollm2_on_the_rise():
    text = text_of("docs/smollm2.md")
    runs = [json.loads(line) for line in (ROOT / "studies" / "smollm2_gaps.jsonl").read_text().splitlines()]
    asked = {(run["arm"], run["seed"]): run["asked"] for run in runs}
    slopes, ends = [], {"grpo_matched": [], "ta_grpo": []}
    for seed in range(4):
        start, theirs, ours = (asked[arm, seed] for arm in ("untrained", "grpo_matched", "ta_grpo"))
        gaps = [(sum(start[f"{q}/{n}"] for n in (1, 2, 3)) / 3 - start[f"{q}/0"]) / 64 for q in ours]
        slopes.append(stats.linregress(gaps, [(ours[q] - theirs[q]) / 64 for q in ours]).slope)
        for arm, found in (("grpo_matched", theirs), ("ta_grpo", ours)):
            ends[arm] += [1 - comb(64 - c, 32) / comb(64, 32) for c in found.values()]
    t = np.mean(slopes) / stats.sem(slopes)
    assert f"p = {2 * stats.t.sf(t, 3):.3f}" in text
    bound = stats.t.ppf(0.975, 3)
    power = stats.nct.sf(bound, 3, t) + stats.nct.cdf(-bound, 3, t)
    assert f"a power of {100 * power:.0f} %" in text
