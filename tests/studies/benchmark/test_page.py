"""The benchmark's numbers against plain loops; its page has nothing that is not in a digest."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from studies.benchmark.page import (
    GAINS_FILE,
    PAGE,
    draw_gains,
    everywhere,
    gains_of_experiments,
    kept,
    methods_of,
    page,
    rows_of,
)

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
    return kept, away + [entry("base", task, seed, 0.0, 0, start=-0.005) for task in TASKS for seed in (0, 1, 7)]


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
    assert dapo.drawn == pytest.approx(230 / 400), "nearer to 400 than to 100 as a ratio, though not as a difference"
    assert (dapo.gains[1].value, matched.gains[1].value) == (pytest.approx(0.04), pytest.approx(0.03))
    gained = [(1 - START - 0.001 * s + 0.005) ** 32 - (1 - START - 0.001 * s + 0.005 - 0.04) ** 32 for s in (0, 1, 7)]
    other = [(1 - START - 0.001 * s) ** 32 - (1 - START - 0.001 * s - 0.03) ** 32 for s in (0, 1)]
    assert dapo.gains[32].value == pytest.approx(np.mean(gained), abs=1e-9)
    expected = np.mean(gained[:2]) - np.mean(other)
    assert dapo.difference.value == pytest.approx(expected, abs=1e-9), "over the seeds that both have"
    text = page(rows, digests[0])
    assert "| `dapo` | 3 | +4.0 [+4.0, +4.0] |" in text
    assert (
        "| `grpo_matched` | 0.57× | 230 | 4 | `tagrpo-train recipe=common experiment=dapo policy.anchor=own` |" in text
    )
    assert "| untrained |  | 0 (of " in text
    assert "of 3 methods, `dapo`, `grpo_matched`, `grpo` ends above" in text
    ranked, alone = text.split("## On one task alone")
    assert "`prompt_augmentation`" not in ranked
    assert "Gains on `arithmetic/mixed` alone" in alone
    assert "| `prompt_augmentation` | 3 | +1.0 [+1.0, +1.0] |" in alone
    assert gains_of_experiments(rows).keys() == {"dapo", "grpo", "grpo_matched"}


def test_intervals_of_the_first_sentences_are_corrected_for_the_number_of_methods(digests):
    noisy = [[with_noise(run) for run in runs] for runs in digests]
    (row,) = (row for row in rows_of(methods_of(*noisy)) if row.name == "dapo")
    assert row.corrected[0].value == row.gains[32].value
    assert row.corrected[0].low < row.gains[32].low
    assert row.corrected[1].high > row.difference.high


def with_noise(run):
    noise = np.random.default_rng([run["seed"], *run["method"].encode(), *run["task"].encode()]).normal(0, 0.003, 8)
    return {**run, "success": {"test_id": (np.array(run["success"]["test_id"]) + noise).tolist()}}


def test_equal_weights_are_told(digests):
    def alike(run):
        return run["task"] == "countdown" and run["method"] in ("dapo", "grpo")

    same = [[{**run, "weights": str(run["seed"])} if alike(run) else run for run in runs] for runs in digests]
    text = page(rows_of(methods_of(*same)), same[0])
    assert "On `countdown/easy` the weights of `dapo`, `grpo` at seed 0 are equal to the last bit." in text
    assert "last bit" not in page(rows_of(methods_of(*digests)), digests[0])


def test_an_experiment_has_the_gain_of_the_method_that_changes_least_in_it(digests):
    rows = rows_of(methods_of(*digests))
    dapo = rows[0]
    changed = replace(dapo, name="long", command=f"{dapo.command} iterations=9", gains=rows[-1].gains)
    for both in ([dapo, changed], [changed, dapo]):
        assert gains_of_experiments(both) == {"dapo": dapo.gains[32].signed}


def test_the_page_is_what_the_digests_say():
    digests = kept()
    rows = rows_of(methods_of(*digests))
    assert PAGE.read_text(encoding="utf-8") == page(rows, digests[0])
    assert json.loads(GAINS_FILE.read_text()) == gains_of_experiments(rows)


def test_the_picture_is_drawn(digests, tmp_path):
    draw_gains(everywhere(rows_of(methods_of(*digests))), tmp_path / "gains.png")
    assert (tmp_path / "gains.png").stat().st_size > 5000
