"""What was frozen is frozen still: the plan, the grids, and the verdicts that came of it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parents[3] / "studies" / "second"
PLAN = json.loads((HERE / "plan.json").read_text())
CORRECTED = {
    "verdicts.py": "averages of quantities with one number per seed, words, sign flips: docs/study.md tells why; moved",
    "claims.py": "in the commit that README.md names, with the code of the page",
    "questions.py": "in the commit that README.md names: no page shows what it measures any more",
    "configs/compare/benchmark.yaml": "ten seeds, one k, the untrained policy; no claim is tested on it",
}
"""Files that are no longer there as they were frozen, with the reason."""


def in_commit(path):
    found = subprocess.run(["git", "show", f"{PLAN['commit']}:./{path}"], cwd=HERE, capture_output=True, check=False)
    return None if found.returncode else hashlib.sha256(found.stdout).hexdigest()


def test_what_is_claimed_and_run_is_what_was_planned_but_for_what_the_page_tells():
    same = {
        path
        for path, digest in PLAN["files"].items()
        if (HERE / path).exists() and hashlib.sha256((HERE / path).read_bytes()).hexdigest() == digest
    }
    assert PLAN["files"].keys() - same == set(CORRECTED)


def test_the_commit_of_the_plan_has_what_was_planned():
    if in_commit("claims.py") is None:
        pytest.skip("this clone does not have the commit of the plan")
    assert {path: in_commit(path) for path in PLAN["files"]} == PLAN["files"]


def test_the_frozen_verdicts_are_kept_claim_by_claim():
    frozen = json.loads((HERE / "frozen.json").read_text())["claims"]
    assert [entry["statement"] for entry in frozen] == [entry["statement"] for entry in PLAN["power"]]
    counts = Counter(entry["verdicts"]["all"] for entry in frozen)
    assert counts == {"reproduces": 6, "refuted": 11, "undecided": 32}
