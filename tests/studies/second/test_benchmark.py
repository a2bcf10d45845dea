"""The benchmark's numbers against plain loops; its page has nothing that is not in a digest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.second import benchmark
from studies.second.benchmark import entries_of, gains_of_experiments, interquartile_mean, page, probability, rows_of
from studies.second.digest import KS

TASKS = ("arithmetic", "shortest_path", "countdown")


def entry(method, task, seed, gain, responses=100, regime=None):
    p = np.random.default_rng(seed).uniform(0.01, 0.1, 8) + gain
    passes = [float((1 - (1 - p) ** k).mean()) for k in KS]
    return {
        "task": task,
        "regime": regime or ("mixed" if task == "arithmetic" else "easy"),
        "method": method,
        "seed": seed,
        "command": f"python -m tagrpo.train name={method} experiment={method} policy.anchor=own resume=auto",
        "ledger": {"rollouts": responses, "updates": 4},
        "seconds": 10.0,
        "n": 0,
        "weights": f"{method} {task} {seed}",
        "success": {"test_id": p.tolist()},
        "course": [{"iteration": 8, "responses": responses, "seconds": 10.0, "pass": {"test_id": passes}}],
    }


@pytest.fixture(scope="module")
def digests():
    gains = {"base": 0.0, "grpo": 0.02, "grpo_matched": 0.03, "ta_grpo_random": 0.5, "questions_before": 0.5}
    return {
        "factors": [
            entry(method, task, seed, gain, 400 if method == "grpo_matched" else 100)
            for method, gain in gains.items()
            for task in TASKS
            for seed in range(4)
        ]
        + [entry("grpo", "countdown", 0, 0.5, regime="medium")],
        "benchmark": [entry("dapo", task, seed, 0.04, 390) for task in TASKS for seed in range(3)]
        + [entry("prompt_augmentation", "arithmetic", seed, 0.01) for seed in range(3)],
    }


def test_statistics_against_loops():
    rng = np.random.default_rng(0)
    ours, theirs = ([rng.integers(0, 6, 4).astype(float) for _ in range(2)] for _ in range(2))
    values = sorted(np.concatenate(ours))
    assert interquartile_mean(ours) == pytest.approx(np.mean(values[2:6]))
    wins = [
        np.mean([(a > b) + 0.5 * (a == b) for a in one for b in other]) for one, other in zip(ours, theirs, strict=True)
    ]
    assert probability(ours, theirs) == pytest.approx(np.mean(wins))
    found = benchmark.bootstrapped(interquartile_mean, ours)
    assert found.low < found.value < found.high


def test_the_page_compares_what_has_the_same_tasks_seeds_and_settings(digests, monkeypatch):
    monkeypatch.setattr(benchmark, "RESAMPLES", 200)
    entries = entries_of(digests)
    assert {e["seed"] for e in entries} == {0, 1, 2}
    assert {e["method"] for e in entries} == {"base", "grpo", "grpo_matched", "dapo", "prompt_augmentation"}
    rows = rows_of(entries)
    assert [row.method for row in rows] == ["dapo", "grpo_matched", "grpo", "prompt_augmentation"]
    by_name = {row.method: row for row in rows}
    assert (by_name["dapo"].against, by_name["prompt_augmentation"].against) == ("grpo_matched", "grpo")
    assert by_name["dapo"].gains[1].value == pytest.approx(0.04)
    starts, ends = (
        [np.mean(1 - (1 - np.array(e["success"]["test_id"])) ** 32) for e in entries if e["method"] == name]
        for name in ("base", "dapo")
    )
    middle = sorted(np.array(ends) - np.array(starts))[2:7]
    assert by_name["dapo"].gains[32].value == pytest.approx(np.mean(middle))
    assert by_name["grpo"].better.value == pytest.approx(0.5)
    text = page(entries, rows)
    assert "| `dapo` | +4.0 [+4.0, +4.0] |" in text
    assert "`tagrpo-train recipe=common experiment=dapo policy.anchor=own`" in text
    assert "3 seeds each" in text
    assert "equal to the last bit" not in text
    sides = {name: [row.method for row in rows if test(row.better)] for name, test in (
        ("better than GRPO with as many responses is", lambda better: min(better.low, better.value) > 0.5),
        ("Worse is", lambda better: max(better.high, better.value) < 0.5),
    )}  # fmt: skip
    assert sides["Worse is"] == ["prompt_augmentation"], "it ran on one task, and is not ranked"
    sides["Worse is"] = []
    ranked, partial = text.split("## On one task alone")
    assert "`prompt_augmentation`" not in ranked
    assert "Gains on `arithmetic/mixed` alone" in partial
    assert "| `prompt_augmentation` | +1.0 [+1.0, +1.0] |" in partial
    assert gains_of_experiments(rows).keys() == {"dapo", "grpo", "grpo_matched"}
    for said, methods in sides.items():
        assert f"{said} {', '.join(f'`{method}`' for method in methods) or 'none'}." in text
    same = [
        e | {"weights": str(e["seed"])}
        if (e["method"], e["task"]) in (("dapo", "countdown"), ("grpo", "countdown"))
        else e
        for e in entries
    ]
    (line,) = [line for line in page(same, rows).splitlines() if "last bit" in line]
    assert line == "On `countdown/easy` the weights of `grpo`, `dapo` are equal to the last bit."


def test_an_experiment_has_the_gain_of_the_method_that_changes_least_in_it(digests, monkeypatch):
    monkeypatch.setattr(benchmark, "RESAMPLES", 20)
    rows = rows_of(entries_of(digests))
    (dapo,) = (row for row in rows if row.method == "dapo")
    changed = replace(dapo, method="long", command=f"{dapo.command} iterations=9", gains=rows[-1].gains)
    for both in ([dapo, changed], [changed, dapo]):
        assert gains_of_experiments(both) == {"dapo": dapo.gains[32].signed}


def test_pictures_are_drawn(digests, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RESAMPLES", 20)
    entries = entries_of(digests)
    rows = rows_of(entries)
    benchmark.draw_gains(rows, tmp_path / "gains.png")
    benchmark.draw_courses(entries, rows, tmp_path / "courses.png")
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("gains.png", "courses.png"))
    start = next(e for e in entries if e["method"] == "base" and e["task"] == "countdown" and e["seed"] == 1)
    run = next(e for e in entries if e["method"] == "dapo" and e["task"] == "countdown" and e["seed"] == 1)
    shares, gains = benchmark._course(run, start, 1)
    assert (shares, gains) == ([0.0, 1.0], [0.0, pytest.approx(0.04)])
