"""The check on SmolLM2: which rates it chooses, what its tables say, what it runs, from results made up here."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from studies import smollm2


def made_up(arm, rate, seed, pass_at_1, zero=20.0):
    splits = ("validation",) if seed == smollm2.RATE_SEED else ("test_id", "test_phrasing")
    passed = {split: {"1": pass_at_1 - 0.1 * place, "32": 0.9} for place, split in enumerate(splits)}
    return {"arm": arm, "rate": rate, "seed": seed, "pass@k": passed, "course": {"without_gradient": [zero, zero + 10]}}


def test_a_rate_is_chosen_on_the_seed_that_is_not_reported():
    found = [made_up("grpo", "1e-5", 100, 0.3), made_up("grpo", "4e-5", 100, 0.5), made_up("grpo", "1e-5", 0, 0.9)]
    assert smollm2.chosen([*found, made_up("ta_grpo", "2e-5", 100, 0.1)]) == {"grpo": "4e-5", "ta_grpo": "2e-5"}
    assert smollm2.RATE_SEED not in smollm2.SEEDS


def test_tables_have_means_over_seeds_with_students_interval_and_pair_by_seed():
    arms = {"untrained": (0.1, 0.1), "grpo_matched": (0.4, 0.5), "ta_grpo": (0.5, 0.62)}
    found = [made_up(arm, "2e-5", seed, arms[arm][seed]) for arm in arms for seed in (0, 1)]
    lines = list(smollm2.section([*found, made_up("ta_grpo", "2e-5", 100, 0.3)]))
    (rates,) = [line for line in lines if line.startswith("| TA-GRPO |")]
    assert rates == "| TA-GRPO | 30.0 | – | – | 2e-5 |"
    (test,) = [line for line in lines if line.startswith("| test, pass@1 |")]
    # Two seeds: the half width is 12.7062 times half their distance.
    assert test == "| test, pass@1 | 10.0 [10.0, 10.0] | 45.0 [-18.5, 108.5] | 56.0 [-20.2, 132.2] |"
    assert "| questions without gradient | – | 25.0 [25.0, 25.0] | 25.0 [25.0, 25.0] |" in lines
    (pair,) = [line for line in lines if line.startswith("| TA-GRPO − ")]
    low, high = 11 - 12.7062 * 1, 11 + 12.7062 * 1  # differences of 10 and 12 points
    assert f"| 11.0 [{low:.1f}, {high:.1f}] | 0.0 [0.0, 0.0] | 11.0 [{low:.1f}, {high:.1f}] |" in pair


def test_a_finished_run_is_not_run_again_and_one_that_ends_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(smollm2, "ROOT", tmp_path / "runs")
    started = []

    def run_grid(grid, *_):
        (run,) = grid
        started.append((run.method, run.seed))
        (run.directory / "checkpoints").mkdir(parents=True)
        passed = {"test_id": {"pass_at_k": {"1": {"value": 0.25}}}}
        (run.directory / "test.json").write_text(json.dumps({"splits": passed}))
        columns = [*smollm2.COURSE.values(), "seconds/iteration"]
        rows = [",".join(columns), "12.5,1.0,0.5,,", "25,0.5,0.75,0.25,", ",,,,3.0"]
        (run.directory / "metrics.csv").write_text("\n".join(rows))
        return []

    monkeypatch.setattr(smollm2, "run_grid", run_grid)
    for _ in range(2):
        smollm2.run([("grpo", "1e-5", 3), ("untrained", "0", 3)], ())
    assert started == [("grpo_1e-5", 3), ("untrained_0", 3)]
    first = smollm2.results()[0]
    assert first["pass@k"] == {"test_id": {"1": 0.25}}
    assert first["course"] == {
        "without_gradient": [12.5, 25.0], "entropy": [1.0, 0.5], "correct": [0.5, 0.75], "distance": [0.25],
    }  # fmt: skip
    assert not list((tmp_path / "runs").rglob("checkpoints"))


@pytest.mark.parametrize("arm", smollm2.ARMS)
def test_the_settings_of_all_runs_are_those_of_the_demo_but_for_their_length(arm):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        tried = compose("train", [f"experiment={arm}", *smollm2.COMMON, smollm2.TRAINED, *smollm2.VALIDATION])
        reported = compose("train", [f"experiment={arm}", *smollm2.COMMON, smollm2.TRAINED])
    assert list(tried.data.evaluation) == ["validation"]
    assert list(reported.data.evaluation) == ["test_id", "test_phrasing"]
    samples = {"grpo": 8, "grpo_matched": 32, "pass_at_k": 32, "ta_grpo": 8 * 4}
    assert reported.data.samples_per_prompt * (1 + (reported.data.num_rephrasings or 0)) == samples[arm]
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        demo = compose("compare", ["compare=demo_lm"])
    same = {setting for setting in demo.overrides if not setting.startswith(("optimizer.lr", "iterations"))}
    assert same <= {*smollm2.COMMON}


def test_an_interval_of_one_seed_is_left_out():
    assert smollm2.told([0.5]) == "50.0"
    assert smollm2.told(np.array([0.5, 0.5]).tolist()) == "50.0 [50.0, 50.0]"
