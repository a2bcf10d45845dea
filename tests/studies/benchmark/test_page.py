"""The benchmark's numbers against plain loops; its page has nothing that is not in a digest."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy import stats

from studies.benchmark.page import (
    GAINS_FILE,
    PAGE,
    draw_gains,
    everywhere,
    gains_of_experiments,
    kept,
    methods_of,
    rows_of,
    sections,
)

pytestmark = pytest.mark.pages

TASKS = ("arithmetic", "shortest_path", "countdown")
START = np.random.default_rng(0).uniform(0.01, 0.1, 8)


def entry(method, task, seed, gain, responses=100, regime=None, start=0.0):
    p = START + 0.001 * seed + start + gain
    return {
        "task": task,
        "regime": regime or ("mixed" if task == "arithmetic" else "easy"),
        "method": method,
        "seed": seed,
        "command": f"python -m tagrpo.cli.train name={method} experiment={method} policy.anchor=own resume=auto",
        "ledger": {"rollouts": responses, "updates": 4},
        "seconds": 10.0,
        "n": 0,
        "weights": f"{method} {task} {seed}",
        "success": {"test_id": p.tolist()},
    }


@pytest.fixture(scope="module")
def digests():
    """The kept one, and that of a machine with starters of its own, which are tested untrained too."""
    gains = {"base": 0.0, "grpo": 0.02, "grpo_matched": 0.03}
    kept = [
        entry(method, task, seed, gain, 400 if method == "grpo_matched" else 100)
        for method, gain in gains.items()
        for task in TASKS
        for seed in range(4)
    ]
    kept += [entry("prompt_augmentation", "arithmetic", seed, 0.01) for seed in range(3)]
    away = [entry("dapo", task, seed, 0.04, 230, start=-0.005) for task in TASKS for seed in (0, 1, 7)]
    return kept, away + [
        entry("base", task, seed, 0.0, 0, start=-0.005) for task in TASKS for seed in (0, 1, 7)
    ]


def test_every_run_is_compared_with_the_untrained_policy_that_it_began_with(digests):
    methods = methods_of(*digests)
    assert list(methods) == ["grpo", "grpo_matched", "prompt_augmentation", "dapo"]
    for name, gain in (("dapo", 0.04), ("grpo", 0.02), ("prompt_augmentation", 0.01)):
        for of in methods[name].gains[1].values():
            assert np.allclose(of, gain)
    assert sorted(methods["dapo"].gains[32]["countdown/easy"].index) == [0, 1, 7]


def test_the_page_tells_all_seeds_the_reference_and_the_untrained_policy(digests):
    rows = rows_of(methods_of(*digests))
    assert [row.name for row in rows] == ["dapo", "grpo_matched", "grpo", "prompt_augmentation"]
    dapo, matched, grpo, partial = rows
    assert (dapo.reference, grpo.reference, partial.reference) == ("grpo_matched", "grpo", "grpo")
    assert dapo.drawn == pytest.approx(230 / 400), (
        "nearer to 400 than to 100 as a ratio, though not as a difference"
    )
    assert (dapo.gains[1].mean.value, matched.gains[1].mean.value) == (
        pytest.approx(0.04),
        pytest.approx(0.03),
    )
    gained = [
        (1 - START - 0.001 * s + 0.005) ** 32 - (1 - START - 0.001 * s + 0.005 - 0.04) ** 32
        for s in (0, 1, 7)
    ]
    other = [(1 - START - 0.001 * s) ** 32 - (1 - START - 0.001 * s - 0.03) ** 32 for s in (0, 1)]
    assert dapo.gains[32].mean.value == pytest.approx(np.mean(gained), abs=1e-9)
    expected = np.mean(gained[:2]) - np.mean(other)
    assert dapo.difference.mean.value == pytest.approx(expected, abs=1e-9), "over the seeds that both have"
    text = sections(rows, digests[0])
    assert "| `dapo` | 3 | +4.0 [+4.0, +4.0] |" in text["methods"]
    assert (
        "| `grpo_matched` | 0.57× | 230 | `tagrpo-train recipe=common experiment=dapo policy.anchor=own` |"
        in text["methods"]
    )
    assert "| untrained |  | 0 (of " in text["methods"]
    assert "3 methods" in text["summary"]
    assert "| `arithmetic` | 0 | " in text["summary"]
    assert "`prompt_augmentation`" not in text["methods"] + text["summary"]
    assert "| `prompt_augmentation` | 3 | +1.0 [+1.0, +1.0] |" in text["alone"]
    assert "`dapo`" not in text["alone"]
    assert gains_of_experiments(rows).keys() == {"dapo", "grpo", "grpo_matched"}


def test_intervals_of_the_first_sentences_are_corrected_for_the_number_of_methods(digests):
    noisy = [[with_noise(run) for run in runs] for runs in digests]
    (row,) = (row for row in rows_of(methods_of(*noisy)) if row.name == "dapo")
    for task, estimate in row.gains[32].tasks.items():
        assert row.corrected[task].value == estimate.value
        assert row.corrected[task].low < estimate.low
    assert row.corrected_difference.mean.high > row.difference.mean.high


def test_methods_are_counted_in_each_task_and_a_mean_of_opposite_signs_is_refused(digests):
    """`grpo` loses in countdown what it gains in the two other tasks."""

    def worse(run):
        if run["task"] != "countdown" or run["method"] != "grpo":
            return run
        return {**run, "success": {"test_id": (np.array(run["success"]["test_id"]) - 0.021).tolist()}}

    changed = [[with_noise(worse(run), 1e-4) for run in runs] for runs in digests]
    rows = rows_of(methods_of(*changed))
    assert rows[-2].name == "grpo", "where it gains least it gains less than the others do"
    text = sections(rows, changed[0])
    for task in TASKS:
        below = sum(row.corrected[task].high < 0 for row in rows[:3])
        above = sum(row.corrected[task].low > 0 for row in rows[:3])
        mean = np.mean([row.gains[32].tasks[task].value for row in rows[:3]])
        assert f"| `{task}` | {below} | {above} | {100 * mean:+.1f} |" in text["summary"]
    assert "end below the untrained policy: none." in text["summary"]
    assert "For 1 of them, tasks differ in pass@32." in text["summary"]
    (line,) = (line for line in text["methods"].splitlines() if line.startswith("| `grpo` |"))
    assert line.split(" | ")[2].startswith("tasks differ: arithmetic +")
    assert line.split(" | ")[3] == "tasks differ"
    assert gains_of_experiments(rows)["grpo"].startswith("tasks differ: ")


def with_noise(run, size=0.003):
    noise = np.random.default_rng([run["seed"], *run["method"].encode(), *run["task"].encode()]).normal(
        0, size, 8
    )
    return {**run, "success": {"test_id": (np.array(run["success"]["test_id"]) + noise).tolist()}}


def test_equal_weights_are_told(digests):
    def alike(run):
        return run["task"] == "countdown" and run["method"] in ("dapo", "grpo")

    same = [[{**run, "weights": str(run["seed"])} if alike(run) else run for run in runs] for runs in digests]
    text = sections(rows_of(methods_of(*same)), same[0])["methods"]
    assert "On `countdown/easy` the weights of `dapo`, `grpo` at seed 0 are equal to the last bit." in text
    assert "last bit" not in sections(rows_of(methods_of(*digests)), digests[0])["methods"]


def test_an_experiment_has_the_gain_of_the_method_that_changes_least_in_it(digests):
    rows = rows_of(methods_of(*digests))
    dapo = rows[0]
    changed = replace(dapo, name="long", command=f"{dapo.command} iterations=9", gains=rows[-1].gains)
    for both in ([dapo, changed], [changed, dapo]):
        assert gains_of_experiments(both) == {"dapo": dapo.gains[32].short}


def test_the_page_is_what_the_digests_say():
    digests = kept()
    rows = rows_of(methods_of(*digests))
    page = PAGE.read_text(encoding="utf-8")
    found = sections(rows, digests[0])
    assert re.findall(r"<!-- begin (\w+) -->", page) == list(found)
    for name, text in found.items():
        assert f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->" in page
    assert json.loads(GAINS_FILE.read_text()) == gains_of_experiments(rows)


def test_what_the_page_says_of_all_methods_is_what_plain_numpy_finds():
    """Counts by task with intervals after Bonferroni, over seeds and questions."""
    (runs,) = kept()
    names = list(dict.fromkeys(run["method"] for run in runs if run["method"] != "base"))
    level = 0.025 / len(names)
    gains = {
        (name, task): np.array([passed(one) - passed(base) for one, base in pairs(runs, name, task)])
        for name in names
        for task in TASKS
        if any(run["method"] == name and run["task"] == task for run in runs)
    }
    everywhere = [name for name in names if all((name, task) in gains for task in TASKS)]
    text = PAGE.read_text(encoding="utf-8")
    assert f"The table has {len(everywhere)} methods" in text
    for task in TASKS:
        below = sum(interval(gains[name, task], level)[1] < 0 for name in everywhere)
        mean = np.mean([gains[name, task].mean() for name in everywhere])
        above = sum(interval(gains[name, task], level)[0] > 0 for name in everywhere)
        assert f"| `{task}` | {below} | {above} | {100 * mean:+.1f} |".replace("-", "−") in text


def pairs(runs, name, task):
    of_task = [run for run in runs if run["task"] == task]
    base = {run["seed"]: run for run in of_task if run["method"] == "base"}
    return [(run, base[run["seed"]]) for run in of_task if run["method"] == name]


def passed(run):
    """Pass@32 of each question."""
    values = run["success"]["test_id"]
    if not run["n"]:
        return 1 - (1 - np.array(values)) ** 32
    return np.array([1 - comb(run["n"] - correct, 32) / comb(run["n"], 32) for correct in values])


def interval(table, level):
    """[seeds, questions]: both are samples."""
    seeds, questions = table.mean(1), table.mean(0)
    parts = [(values.var(ddof=1) / len(values), len(values) - 1) for values in (seeds, questions)]
    total = sum(variance for variance, _ in parts)
    freedom = total**2 / sum(variance**2 / count for variance, count in parts)
    reach = stats.t.isf(level, freedom) * total**0.5
    return table.mean() - reach, table.mean() + reach


def test_the_picture_is_drawn(digests, tmp_path):
    draw_gains(everywhere(rows_of(methods_of(*digests))), tmp_path / "gains.png")
    assert (tmp_path / "gains.png").stat().st_size > 5000
