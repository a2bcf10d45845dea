"""The page says what the findings are, and nothing that is not in a digest."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from studies.second.claims import WITHOUT
from studies.second.digest import KS, read
from studies.second.errors import ANY, KINDS
from studies.second.page import (
    ERRORS,
    PAGE,
    SUMMARY,
    VERDICTS_FILE,
    claims_of,
    digests,
    outcomes,
    page,
    planned,
)
from studies.second.tables import settings_of
from studies.second.verdicts import OVERALL, findings_of

RATES = {"no effect": 0.01, "the smallest effect": 0.03}
ERRED = {"rounds": 400, "rates": {name: dict.fromkeys((ANY, *KINDS), rate) for name, rate in RATES.items()}}
POWER = [
    {
        "grid": "factors",
        "statement": "TA-GRPO raises pass@32 over GRPO, with as many samples too.",
        "reproduces": {"all": 0.915, "countdown/easy": 0.1},
        "refuted": {"all": 0.25},
    }
]


def entry(method, seed, regime, gain):
    p = np.random.default_rng(seed).uniform(0.001, 0.01, 12) + gain
    curve = [float((1 - (1 - p) ** k).mean()) for k in KS]
    return {
        "task": "countdown",
        "regime": regime,
        "method": method,
        "seed": seed,
        "command": f"python -m tagrpo.train name={method} seed={seed} experiment={method}",
        "starts": 1,
        "ledger": {"rollouts": 100, "updates": 4},
        "seconds": 10.0,
        "took": 75.0,
        "n": 0,
        "success": {"test_id": p.tolist()},
        "course": [{"iteration": 4, "responses": 100, "seconds": 10.0, "pass": {"test_id": curve}}],
        "series": {},
        "support": {"test_id": {"support_gained": {"100": 0.25}, "support_lost": {"100": 0.01 * seed}}},
        "provenance": {"git_commit": "abc", "version/torch": "2"},
    }


@pytest.fixture(scope="module")
def entries():
    gains = {"grpo": 0.0, "grpo_matched": 0.0, "ta_grpo": 0.02, "grpo_ds": 0.0}
    return {
        "factors": [
            entry(method, seed, regime, gain)
            for regime in ("easy", "hard")
            for method, gain in gains.items()
            for seed in range(6)
        ]
    }


def test_verdicts_of_the_page_are_those_of_the_findings(entries):
    text = page(entries, "A reader should believe this.", ERRED, POWER)
    assert text.startswith("# The claims of the papers, tested\n\nA reader should believe this.\n\n")
    assert "drawn 400 times" in text
    assert text.count("Power: 92 % to reproduce, 25 % to be refuted.") == 1
    assert text.count("Power: unknown to reproduce") == len(claims_of(entries)) - 1
    assert "All 48 runs took 1.0 hours of one core" in text
    assert "- 48 runs: git_commit abc, torch 2\n" in text
    assert "| any | 1.0 % | 3.0 % |" in text
    claims = claims_of(entries)
    row = next(line for line in text.splitlines() if "| TA-GRPO raises pass@32 over GRPO, with" in line)
    assert row.endswith("| **reproduces** | reproduces | reproduces |")
    (claim, tables) = next(each for each in claims if each[0].statement.startswith("TA-GRPO raises pass@32 over GRPO"))
    both = [100 * np.mean([table.to_numpy().mean() for table in of.values()]) for of in tables.values()]
    assert f" | {both[0]:+.1f}, {both[1]:+.1f} (+{100 * claim.smallest:g}) | " in row
    little = next(line for line in text.splitlines() if "| Dynamic sampling adds little" in line)
    assert "**reproduces**" in little, "there is no difference at all"
    never = next(line for line in text.splitlines() if "| Pooling contributes" in line)
    assert never.endswith("| – | **–** | – | – |"), "its methods have not run"
    verdicts = [line.split(" | ")[4] for line in text.split("## Training")[0].splitlines() if line.startswith("| ")]
    counts = [f"{name} {verdicts.count(f'**{name}**')}" for name in ("reproduces", "refuted", "undecided")]
    assert f"Over all settings: {', '.join(counts)}." in text
    found = findings_of([(claim, tables) for claim, tables in claims])
    for (claim, _), of_claim in zip(claims, found, strict=True):
        for finding in of_claim:
            if finding.setting == OVERALL and claim.in_points:
                assert finding.difference.estimate.signed in text


def test_verdicts_that_err_too_often_are_in_brackets(entries):
    rates = ERRED["rates"] | {"the smallest effect": dict.fromkeys((ANY, *KINDS), 0.03) | {KINDS[2]: 0.06}}
    text = page(entries, "", ERRED | {"rates": rates}, POWER)
    seconds, questions = (
        next(line for line in text.splitlines() if said in line)
        for said in ("| … after equally many seconds.", "| TA-GRPO raises pass@32 over GRPO, with")
    )
    assert seconds.endswith("| **reproduces** | (reproduces) | (reproduces) |"), "one number per seed"
    assert questions.endswith("| **reproduces** | reproduces | reproduces |")
    assert "(reproduces)" not in page(entries, "", ERRED, POWER)


def test_what_other_pages_are_told(entries):
    told = outcomes(entries)
    (claim,) = [each for each in told if each["statement"].startswith("TA-GRPO raises pass@32 over GRPO, with as")]
    assert (claim["experiments"], claim["verdict"]) == (["ta_grpo"], "reproduces")
    (little,) = [each for each in told if each["statement"].startswith("Dynamic sampling adds little")]
    assert (little["experiments"], little["verdict"]) == (["grpo_ds"], "reproduces")
    assert len(told) == len([claim for claim, tables in claims_of(entries) if any(tables.values())])


def test_every_method_has_a_row_with_its_command(entries):
    text = page(entries, "", ERRED, POWER)
    for method in ("grpo", "ta_grpo"):
        p = np.array([run["success"]["test_id"] for run in entries["factors"]
                      if (run["method"], run["regime"]) == (method, "hard")])  # fmt: skip
        passes = " | ".join(f"{100 * (1 - (1 - p) ** k).mean():.1f}" for k in (1, 8, 32))
        row = f"| factors | countdown/hard | {method} | 6 | {passes} | 25.0 | 2.5 | 6 | 100 | 4 | 10 |"
        assert f"{row} `python -m tagrpo.train name={method}" in text


def test_the_page_is_what_the_digests_say():
    entries = {name: read(path) for name, path in digests().items()}
    errors = json.loads(ERRORS.read_text())
    assert PAGE.read_text(encoding="utf-8") == page(entries, SUMMARY.read_text(encoding="utf-8"), errors, planned())
    assert json.loads(VERDICTS_FILE.read_text()) == outcomes(entries)


def test_every_interval_of_the_summary_is_that_of_a_finding():
    claims = claims_of({name: read(path) for name, path in digests().items()})
    shown = {finding.difference.estimate.signed for found in findings_of(list(claims)) for finding in found}
    summary = " ".join(SUMMARY.read_text(encoding="utf-8").split())
    told = re.findall(r"[+−][\d.]+ \[[^]]+\]", summary)
    assert len(told) > 10
    assert not [interval for interval in told if interval not in shown]


def test_what_the_summary_says_without_intervals():
    entries = {name: read(path) for name, path in digests().items()}
    summary = " ".join(SUMMARY.read_text(encoding="utf-8").split())
    verdicts = [claim["verdict"] for claim in outcomes(entries)]
    assert f"{verdicts.count('undecided')} of {len(verdicts)} claims are undecided" in summary
    counts = [verdicts.count(verdict) for verdict in ("reproduces", "refuted", "undecided")]
    readme = " ".join((PAGE.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert f"tests {len(verdicts)} claims" in readme
    assert "{} reproduce, {} are refuted, {} are undecided".format(*counts) in readme
    settings = settings_of(entries["factors"])
    fewer = [
        float((setting.series("grpo", WITHOUT) - setting.series("ta_grpo", WITHOUT)).to_numpy().mean())
        for setting in settings.values()
    ]
    assert len(fewer) == 6
    assert f"TA-GRPO leaves {min(fewer):.0f} to {max(fewer):.0f} points fewer without gradient than GRPO" in summary
    assert all(
        setting.pass_at_k("grpo_long", 1).to_numpy().mean() > setting.pass_at_k("ta_grpo", 1).to_numpy().mean()
        for setting in settings.values()
    )
