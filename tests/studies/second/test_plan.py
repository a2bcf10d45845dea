"""The plan is what was frozen, and every claim of it was given its power by the pilot."""

from __future__ import annotations

import hashlib
import json
import subprocess

import numpy as np
import pytest

from studies.second.claims import GROUPS
from studies.second.digest import KS, SERIES
from studies.second.plan import HERE, PLAN, SEEDS, STANDS_FOR, fingerprints, pilot_settings, powers
from studies.second.run import grid

SPLITS = ("test_id", "test_phrasing", "test_size")
frozen = pytest.mark.skipif(not PLAN.exists(), reason="the plan is not frozen yet")


def in_commit(commit, path):
    found = subprocess.run(["git", "show", f"{commit}:./{path}"], cwd=HERE, capture_output=True, check=False)
    return None if found.returncode else found.stdout


@frozen
def test_nothing_of_the_plan_changed_after_it_was_frozen():
    plan = json.loads(PLAN.read_text())
    assert fingerprints() == plan["files"], "what is claimed, judged or run is not what was planned"
    if in_commit(plan["commit"], "claims.py") is None:
        pytest.skip("this clone does not have the commit of the plan")
    for path, fingerprint in plan["files"].items():
        assert hashlib.sha256(in_commit(plan["commit"], path)).hexdigest() == fingerprint, path


@frozen
def test_every_claim_has_its_power():
    told = [(entry["grid"], entry["statement"]) for entry in json.loads(PLAN.read_text())["power"]]
    assert told == [(name, claim.statement) for name, claims in GROUPS.items() for claim in claims]


@pytest.mark.parametrize("name", GROUPS)
def test_seeds_of_the_plan_are_those_of_the_grids(name):
    runs = grid(name, ["task=countdown", "regime=easy"])
    assert {run.seed for run in runs} == set(range(SEEDS[name]))


def entry(method, seed):
    rng = np.random.default_rng([seed, *method.encode()])
    names = ("all/distance_difference", "correct/distance_difference", "wrong/distance_difference")
    return {
        "task": "arithmetic",
        "regime": "mixed",
        "method": method,
        "seed": seed,
        "n": 0,
        "success": {split: rng.uniform(0, 0.5, 6).tolist() for split in SPLITS},
        "course": [
            {"iteration": n, "seconds": n, "pass": dict.fromkeys(SPLITS, [float(rng.random())] * len(KS))}
            for n in (0, 1)
        ],
        "seconds": 1.0 + seed,
        "series": {series: rng.uniform(0, 1, 8).tolist() for series in SERIES},
        "support": {
            split: {change: {"100": float(rng.random())} for change in ("support_gained", "support_lost")}
            for split in SPLITS
        },
        "questions": {f"questions/{name}": float(rng.normal()) for name in names},
    }


def test_each_claim_takes_its_noise_from_two_methods_of_the_pilot_that_differ():
    pilot = ["base", *STANDS_FOR]
    settings = pilot_settings([entry(method, seed) for method in pilot for seed in range(4)])
    for claims in GROUPS.values():
        for claim in claims:
            tables = claim.tables(settings)
            for label in claim.pairs:
                (table,) = tables[label].values()
                assert table.to_numpy().std() > 0, f"{claim.statement} ({label})"


def test_power_is_that_of_the_whole_procedure():
    entries = [entry(method, seed) for method in ["base", *STANDS_FOR] for seed in range(4)]
    copies = [
        {**e, "task": task, "regime": regime}
        for e in entries
        for task, regime in (
            ("arithmetic", "mixed"),
            ("arithmetic", "hard"),
            ("countdown", "easy"),
            ("shortest_path", "easy"),
        )
    ]
    found = powers(copies, rounds=2)
    assert len(found) == sum(map(len, GROUPS.values()))
    assert all(set(one["reproduces"]) == set(one["refuted"]) for one in found)
    assert all(0 <= rate <= 1 for one in found for rate in one["reproduces"].values())
