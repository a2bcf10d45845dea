"""The page says what the findings are, and nothing that is not in a digest."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from studies.second.claims import WITHOUT
from studies.second.digest import KS, read
from studies.second.page import (
    ERRORS,
    FAMILIES,
    FROZEN,
    PAGE,
    SUMMARY,
    VERDICTS_FILE,
    claims_of,
    differences_csv,
    digests,
    gains_of,
    outcomes,
    page,
    results_of,
    word_counts,
)
from studies.second.tables import paired, settings_of
from studies.second.verdicts import OVERALL, estimate_of, moments_of

WORDS = ("reproduces", "smaller than claimed", "larger than claimed", "no effect", "opposite")
RATES = {family: {word: 0.01 * n for n, word in enumerate(("any", *WORDS), start=1)} for family in FAMILIES}
DECIDED = ("there were no effects", "all effects were three times δ")
ERRED = {
    "rounds": 400,
    "rates": {noise: dict.fromkeys(("-1", "0", "1"), RATES) for noise in ("normal", "skewed")},
    "decided": {effect: {"single numbers per seed": 0.5, "quantities with many questions": None} for effect in DECIDED},
    "skewness": {"measured": 0.58, "normal": 0.45, "skewed": 0.9},
}
SERIES = {f"rollout/correct_{which}": [0.25] * 8 for which in ("original", "rephrasings")}


def entry(method, seed, regime, gain):
    p = np.random.default_rng(seed).uniform(0.001, 0.01, 12) + gain
    curve = [float((1 - (1 - p) ** k).mean()) for k in KS]
    return {
        "task": "countdown",
        "regime": regime,
        "method": method,
        "seed": seed,
        "command": f"python -m tagrpo.cli.train name={method} seed={seed} experiment={method}",
        "starts": 1,
        "ledger": {"rollouts": 100, "updates": 4},
        "seconds": 10.0,
        "took": 75.0,
        "n": 0,
        "success": {"test_id": p.tolist()},
        "course": [{"iteration": 4, "responses": 100, "seconds": 10.0, "pass": {"test_id": curve}}],
        "series": SERIES,
        "support": {"test_id": {"support_gained": {"100": 0.25}, "support_lost": {"100": 0.01 * seed}}},
        "questions": {},
    }


@pytest.fixture(scope="module")
def entries():
    gains = {"base": -0.0007, "ta_grpo": 0.02}
    gains |= dict.fromkeys(("grpo", "grpo_matched", "grpo_ds", "questions_before"), 0.0)
    return {
        "factors": [
            entry(method, seed, regime, gain * (1 if regime == "easy" or method != "ta_grpo" else 4))
            for regime in ("easy", "hard")
            for method, gain in gains.items()
            for seed in range(6)
        ]
    }


def written(entries):
    results = results_of(claims_of(entries))
    return page(results, gains_of(entries), entries), results


def test_words_and_effects_of_the_page_are_those_of_the_findings(entries):
    text, results = written(entries)
    row = next(line for line in text.splitlines() if "| TA-GRPO raises pass@32 over GRPO, with" in line)
    assert "| **reproduces** | – |" in row
    result = next(each for each in results if each.claim.statement.startswith("TA-GRPO raises pass@32 over GRPO"))
    for found in result.overall:
        assert found.estimate.signed in row
    differ = [f.estimate.value for f in result.findings if f.setting != OVERALL]
    assert f"{100 * min(differ):+.1f} `countdown/easy` … {100 * max(differ):+.1f} `countdown/hard` (Q = " in row
    never = next(line for line in text.splitlines() if "| Pooling contributes" in line)
    assert never.endswith("| – | +2 | **–** | – | – |"), "its methods have not run"
    told = [line.split(" | ")[5].strip("*") for line in text.split("## In each setting")[0].splitlines()
            if re.match(r"\| \d+ \|", line)]  # fmt: skip
    counts = Counter(word.removesuffix(" < δ") for word in told if word != "–")
    listed = ", ".join(f"{word} {counts.pop(word, 0)}" for word in (*WORDS, "undecided"))
    assert f"Claims by word: {listed}, mixed {counts.total()} " in text
    cells = next(line for line in text.splitlines() if "pass@32, ta_grpo − grpo |" in line).split(" | ")
    assert cells[3:] == [f"{100 * value:+.1f} **R**" for value in differ[:1]] + [f"{100 * differ[1]:+.1f} **R** |"]


def test_gains_are_over_the_untrained_policy(entries):
    text, _ = written(entries)
    (row,) = [line for line in text.splitlines() if line.startswith("| factors | `grpo` |")]
    runs = entries["factors"]
    p = {m: np.array([r["success"]["test_id"] for r in runs if r["method"] == m]) for m in ("grpo", "base")}
    for k in (1, 8, 32):
        gain = 100 * ((1 - (1 - p["grpo"]) ** k) - (1 - (1 - p["base"]) ** k)).mean()
        assert f" {gain:+.1f} [" in row
    assert f"| factors | untrained | 2 × 6 | 0 (of {100 * p['base'].mean():.1f} %) |" in text
    assert "questions_before" not in text.split("## The claims")[0]
    templates = {"prompt_augmentation": [run for run in entries["factors"] if run["method"] == "grpo"]}
    assert len(gains_of(entries | templates)) == len(gains_of(entries)), "they began with other policies"


def test_errors_are_the_largest_over_the_true_effects(entries):
    higher = {family: {**of, "any": 0.2} for family, of in RATES.items()}
    rates = {**ERRED["rates"], "normal": {**ERRED["rates"]["normal"], "1": higher}}
    said = [{"statement": "", "verdicts": {OVERALL: "refuted"}}] * len(claims_of(entries))
    frozen = {"date": "2026-11-22", "commit": "abc", "claims": said}
    results = results_of(claims_of(entries), said)
    text = page(results, gains_of(entries), entries, ERRED | {"rates": rates}, frozen)
    assert "Shares of 400 simulated studies" in text
    assert "| any | 20.0 | 1.0 | 20.0 | 1.0 |" in text
    assert "| opposite | 6.0 | 6.0 | 6.0 | 6.0 |" in text
    assert "50 % of single numbers per seed if there were no effects" in text
    assert "skewness of 0.58, where as many normal ones would have 0.45\nand exponential ones 0.90" in text


def test_the_claims_on_other_runs_have_no_frozen_verdicts(entries):
    text, results = written(entries)
    assert text.startswith("# The claims of the papers, tested\n")
    assert "## What was corrected" not in text
    assert "## How often the procedure errs" not in text, "its seeds are other seeds"
    assert "$" not in text
    said = [{"statement": "", "verdicts": {OVERALL: "refuted"}} for _ in results]
    frozen = {"date": "2026-11-22", "commit": "abc", "claims": said}
    study = page(results_of(claims_of(entries), said), gains_of(entries), entries, ERRED, frozen)
    assert "published on\n2026-11-22 (commit abc)" in study
    assert "| **reproduces** | refuted |" in study
    assert SUMMARY.read_text(encoding="utf-8").splitlines()[0] in study


def test_what_other_pages_are_told(entries):
    told = outcomes(results_of(claims_of(entries)), entries)
    (claim,) = [each for each in told if each["statement"].startswith("TA-GRPO raises pass@32 over GRPO, with as")]
    assert (claim["number"], claim["experiments"], claim["verdict"], claim["frozen"]) == (
        11,
        ["ta_grpo"],
        "reproduces",
        "",
    )
    assert re.fullmatch(r"\+[\d.]+ \[\+[\d.]+, \+[\d.]+\]; \+[\d.]+ \[\+[\d.]+, \+[\d.]+\] points", claim["effect"])
    assert len(told) == len([tables for *_, tables in claims_of(entries) if any(tables.values())])


def test_all_differences_are_in_the_csv(entries):
    results = results_of(claims_of(entries))
    found = pd.read_csv(io.StringIO(differences_csv(results)))
    assert len(found) == sum(len(result.findings) for result in results)
    row = found[(found.label == "pass@32, ta_grpo − grpo") & (found.setting == OVERALL) & (found.claim == 11)].iloc[0]
    finding = results[10].overall[0]
    assert row["estimate.low"] == pytest.approx(finding.estimate.low, rel=1e-5)
    assert row["corrected.high"] == pytest.approx(finding.corrected.high, rel=1e-5)
    assert (row["outcome.word"], row["smallest"]) == ("reproduces", 0.02)


@cache
def study():
    """The study as it is, from its digests: entries, results, gains."""
    found = {name: read(path) for name, path in digests().items()}
    return found, results_of(claims_of(found), json.loads(FROZEN.read_text())["claims"]), gains_of(found)


def test_the_page_is_what_the_digests_say():
    found, results, gains = study()
    errors, frozen = json.loads(ERRORS.read_text()), json.loads(FROZEN.read_text())
    assert PAGE.read_text(encoding="utf-8") == page(results, gains, found, errors, frozen)
    assert json.loads(VERDICTS_FILE.read_text()) == outcomes(results, found)
    assert (PAGE.with_suffix("") / "differences.csv").read_text() == differences_csv(results)


def sweep(k):
    """Pass@k training at k = 8: a third of the learning rate − the one of the grid."""
    settings = settings_of(study()[0]["k_and_lr"])
    return estimate_of(
        moments_of({name: paired(s.pass_at_k("k8_low", k), s.pass_at_k("k8", k)) for name, s in settings.items()})
    )


def test_every_interval_of_the_summary_is_that_of_a_finding_a_gain_or_the_sweep():
    _, results, gains = study()
    shown = {finding.estimate.signed for result in results for finding in result.findings}
    shown |= {value.signed for gain in gains for value in gain.of_k.values()}
    shown |= {sweep(k).signed for k in (1, 8, 32)}
    summary = " ".join(SUMMARY.read_text(encoding="utf-8").split())
    told = re.findall(r"[+−][\d.]+ \[[^]]+\]", summary)
    assert len(told) > 20
    assert not [interval for interval in told if interval not in shown]


def test_what_is_said_without_intervals():
    found, results, gains = study()
    summary = " ".join(SUMMARY.read_text(encoding="utf-8").split())
    counts = word_counts(results)
    assert f"{counts['undecided']} of {len(results)} claims are undecided, {counts['reproduces']} reproduce" in summary
    training = {1, 2, 3, 4, 5, 6, 7, 36, 37}
    reproduced = {r.number for r in results if {f.word for f in r.overall} == {"reproduces"}}
    assert (training <= reproduced, len(training)) == (True, 9)
    above = [gain.method for gain in gains if len(gain.settings[32]) == 6 and gain.of_k[32].value > 0]
    assert above == ["pass_at_k"], "only Pass@k training with TA-GRPO's recipe ends above the untrained policy"
    against = {f.setting: f for f in results[10].findings if f.label.endswith("grpo_matched")}
    assert f"(Q = {against[OVERALL].heterogeneity.q:.1f})" in summary
    others = [100 * f.estimate.value for name, f in against.items() if name not in (OVERALL, "arithmetic/hard")]
    assert f"from {min(others):+.1f} to {max(others):+.1f} in the five others".replace("-", "−") in summary
    settings = settings_of(found["factors"])
    solved = {
        name: [100 * setting.series("questions_before", f"rollout/correct_{which}").to_numpy().mean() for which in
               ("original", "rephrasings")] for name, setting in settings.items()
    }  # fmt: skip
    hard = solved.pop("arithmetic/hard")
    assert f"solves {hard[0]:.1f} % of the original questions and {hard[1]:.1f} % of their rephrasings" in summary
    assert max(abs(original - rephrased) for original, rephrased in solved.values()) <= 1
    fewer = [
        float((setting.series("grpo", WITHOUT) - setting.series("ta_grpo", WITHOUT)).to_numpy().mean())
        for name, setting in settings.items()
        if name != "arithmetic/hard"
    ]
    assert f"leaves {min(fewer):.0f} to {max(fewer):.0f} points fewer questions without gradient" in summary
    tasks = (PAGE.parent / "tasks.md").read_text(encoding="utf-8")
    assert "| `shortest_path`, `hard` | 1.7 | 64.9 |" in tasks
    updates = {grid: {r["ledger"]["updates"] for r in found[grid] if r["method"] == name}
               for grid, name in (("factors", "grpo_matched"), ("pass_at_k", "pass_at_k"))}  # fmt: skip
    assert updates == {"factors": {80}, "pass_at_k": {160}}, "a recipe of half as many updates"
    rates = {name: {re.findall(r"optimizer\.lr=(\S+)", run["command"])[-1] for run in found["k_and_lr"]
                    if run["method"] == name} for name in ("k8", "k8_low")}  # fmt: skip
    assert {name: float(*of) for name, of in rates.items()} == {"k8": 3e-4, "k8_low": 1e-4}


def test_the_readme_says_what_the_page_says():
    _, results, _ = study()
    counts = word_counts(results)
    readme = " ".join((Path(PAGE).parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert f"tests {len(results)} claims" in readme
    assert f"{counts['reproduces']} reproduce" in readme
    assert f"{counts['undecided']} are undecided" in readme
