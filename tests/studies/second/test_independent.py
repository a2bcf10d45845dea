"""Twelve numbers and words of the page from the digests again, by numpy and scipy alone.

Nothing of the studies or the package is imported: neither how a digest is read nor what an interval or a word is.
"""

from __future__ import annotations

import csv
import gzip
import json
from functools import cache
from math import comb
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
with (ROOT / "docs" / "study" / "differences.csv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))
OVERALL = sum(row["setting"] == "all" for row in ROWS)
SINGLE = len(ROWS) - OVERALL


@cache
def runs(grid):
    text = gzip.decompress((ROOT / "studies" / "second" / "digest" / f"{grid}.jsonl.gz").read_bytes()).decode()
    found = {}
    for line in text.splitlines():
        run = json.loads(line)
        found.setdefault(run["task"] + "/" + run["regime"], {}).setdefault(run["method"], {})[run["seed"]] = run
    return found


def solved(run, k, split=None):
    """Pass@k of every question: 1 − (1 − p)^k, or 1 − C(n − c, k) / C(n, k)."""
    values = [x for name, xs in run["success"].items() if split in (None, name) for x in xs]
    if run["n"] == 0:
        return 1 - (1 - np.array(values)) ** k
    return np.array([1 - comb(run["n"] - c, k) / comb(run["n"], k) for c in values])


def passes(grid, ours, theirs, k, split=None, theirs_in=None):
    """Setting → [seeds, questions] ours − theirs."""
    found = {}
    for setting, methods in runs(grid).items():
        others = runs(theirs_in or grid)[setting][theirs]
        seeds = sorted(methods[ours].keys() & others.keys())
        found[setting] = np.array([solved(methods[ours][s], k, split) - solved(others[s], k, split) for s in seeds])
    return found


def series(grid, of):
    """Setting → [seeds, 1] of a number of a run's series."""
    return {name: np.array([[of(name, seed)] for seed in range(10)]) for name in runs(grid)}


def mean_error_freedom(settings):
    """Of the mean over tasks: seeds averaged over regimes, questions of each regime on their own."""
    tasks = {}
    for name, values in settings.items():
        tasks.setdefault(name.split("/")[0], []).append(values)
    means, terms = [], []
    for of in tasks.values():
        seeds = np.mean([values.mean(1) for values in of], axis=0)
        means.append(seeds.mean())
        terms.append((stats.sem(seeds) ** 2, len(seeds) - 1))
        terms += [
            ((stats.sem(values.mean(0)) / len(of)) ** 2, values.shape[1] - 1) for values in of if values.shape[1] > 1
        ]
    variances = np.array([variance for variance, _ in terms]) / len(tasks) ** 2
    freedom = variances.sum() ** 2 / sum(v**2 / f for v, (_, f) in zip(variances, terms, strict=True))
    return np.mean(means), variances.sum() ** 0.5, freedom


def shown(settings, scale=100.0, digits=1):
    mean, error, freedom = mean_error_freedom(settings)
    low, high = stats.t.interval(0.95, freedom, mean, error)
    return "{} [{}, {}]".format(*(f"{scale * x:+.{digits}f}".replace("-", "−") for x in (mean, low, high)))


def corrected(settings, tests):
    """Simultaneous interval: half of the 5 % for all differences of the kind, two bounds each."""
    mean, error, freedom = mean_error_freedom(settings)
    return stats.t.interval(1 - 0.025 / tests, freedom, mean, error)


def claim(number, difference, setting="all"):
    (row,) = [r for r in ROWS if r["claim"] == str(number) and r["label"] == difference and r["setting"] == setting]
    return row


def line(number):
    (found,) = [text for text in PAGE.split("## In each setting")[0].splitlines() if text.startswith(f"| {number} |")]
    return found


@pytest.mark.parametrize(
    ("grid", "method"),
    [("factors", "grpo"), ("factors", "grpo_long"), ("factors", "pass_at_k"), ("pass_at_k", "full")],
)
def test_gains_over_the_untrained_policy(grid, method):
    (row,) = [text for text in PAGE.splitlines() if text.startswith(f"| {grid} | `{method}` |")]
    for k in (1, 8, 32):
        assert shown(passes(grid, method, "base", k, theirs_in="factors")) in row


def test_claim_11_its_two_halves_and_how_much_its_settings_differ():
    over_grpo, over_matched = (passes("factors", "ta_grpo", name, 32) for name in ("grpo", "grpo_matched"))
    assert f"{shown(over_grpo)}; {shown(over_matched)}" in line(11)
    low, high = corrected(over_grpo, OVERALL)
    assert low < 0 < 0.02 < high
    assert claim(11, "pass@32, ta_grpo − grpo")["outcome.word"] == "undecided"
    low, high = corrected(over_matched, OVERALL)
    assert -0.02 < low < 0 < high < 0.02
    assert claim(11, "pass@32, ta_grpo − grpo_matched")["outcome.word"] == "no effect"
    each = [mean_error_freedom({"one/one": values}) for values in over_matched.values()]
    effects, errors = (np.array([one[i] for one in each]) for i in (0, 1))
    mean = np.average(effects, weights=errors**-2)
    assert f"(Q = {(((effects - mean) / errors) ** 2).sum():.1f}, p < 0.001)" in line(11)


def test_claim_1_by_seeds_and_by_all_patterns_of_signs():
    name = "zero_gradient/without_gradient"

    def fewer(setting, seed):
        ours, theirs = (runs("factors")[setting][method][seed]["series"][name] for method in ("ta_grpo", "grpo"))
        return 0.01 * (np.mean(ours) - np.mean(theirs))

    settings = series("factors", fewer)
    assert shown(settings) in line(1)
    assert corrected(settings, OVERALL)[1] < 0
    tasks = {}
    for setting, values in settings.items():
        tasks.setdefault(setting.split("/")[0], []).append(values[:, 0])
    seeds = np.concatenate([np.mean(of, axis=0) for of in tasks.values()])
    whole = np.round(seeds * 1e5).astype(int)
    patterns = np.array([1.0])  # how many of the 2^30 patterns of signs have each sum, number by number
    for size in np.abs(whole):
        wider = np.zeros(len(patterns) + 2 * size)
        wider[: len(patterns)] += patterns
        wider[2 * size :] += patterns
        patterns = wider
    sums = np.arange(len(patterns)) - np.abs(whole).sum()
    assert patterns[sums <= whole.sum()].sum() / 2**30 < 0.025 / 2 / OVERALL
    assert "**reproduces** | undecided |" in line(1)


@pytest.mark.parametrize(
    ("number", "grid", "ours", "theirs", "k", "where", "word"),
    [
        (14, "factors", "ta_grpo", "grpo_long", 32, lambda low, high: low > 0 and high > 0.02, "reproduces"),
        (25, "factors", "ta_grpo_random", "base", 32, lambda low, high: high < 0 and low < -0.02, "opposite"),
        (32, "pass_at_k", "pass_at_1", "pass_at_k", 1, lambda low, high: low > 0.02, "larger than claimed"),
        (33, "pass_at_k", "bootstrap", "full", 8, lambda low, high: low > 0 and high > 0.02, "reproduces"),
        (18, "factors", "grpo_ds", "grpo", 32, lambda low, high: low > -0.02 and high < 0.02, "reproduces"),
        (24, "factors", "ta_grpo_corrected", "ta_grpo", 32, lambda low, high: low < -0.02 and high < 0.02, "undecided"),
    ],
)
def test_words_are_where_the_corrected_interval_lies(number, grid, ours, theirs, k, where, word):
    settings = passes(grid, ours, theirs, k)
    row = claim(number, f"pass@{k}, {ours} − {theirs}")
    low, high = corrected(settings, OVERALL)
    assert shown(settings) in line(number)
    assert (float(row["corrected.low"]), float(row["corrected.high"])) == pytest.approx((low, high), rel=1e-4)
    assert where(low, high)
    assert row["outcome.word"] == word


def test_entropy_falls_in_nats():
    name = "rollout/entropy"
    settings = series("pass_at_k", lambda s, i: np.mean(runs("pass_at_k")[s]["pass_at_1"][i]["series"][name][-2:])
                      - np.mean(runs("pass_at_k")[s]["pass_at_1"][i]["series"][name][:2]))  # fmt: skip
    assert shown(settings, scale=1, digits=3) in line(36)
    assert corrected(settings, OVERALL)[1] < 0
    assert "**reproduces** | undecided |" in line(36)


def test_a_word_in_one_setting_has_the_level_of_all_of_these():
    settings = {"arithmetic/hard": passes("factors", "ta_grpo", "grpo_long", 32)["arithmetic/hard"]}
    low, high = corrected(settings, SINGLE)
    row = claim(14, "pass@32, ta_grpo − grpo_long", "arithmetic/hard")
    assert (float(row["corrected.low"]), float(row["corrected.high"])) == pytest.approx((low, high), rel=1e-4)
    assert low > 0
    assert row["outcome.word"] == "reproduces"
