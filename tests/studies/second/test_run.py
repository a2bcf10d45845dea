"""A run of a grid is digested as it went; a grid goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from studies.second.digest import digest
from studies.second.run import CONFIGS, LEFT, SETTINGS, all_settings, grid
from tagrpo.runs.grid import GridRun
from tagrpo.settings.methods import options_of

ROOT = Path(__file__).parents[3]
SIZES = [f"data.evaluation.{split}.size=4" for split in ("test_id", "test_phrasing", "test_size")]
SMALL = ["iterations=2", "logger=csv", "data.train.size=16", "data.samples_per_prompt=4", "data.evaluation_samples=2"]


def overrides(root):
    settings = ",".join(f"'{override}'" for override in [*SMALL, *SIZES, "export=false"])
    places = ["task=arithmetic", "regime=mixed", f"root={root}/arithmetic/mixed", "seeds=[3]"]
    others = [f"~methods.{name}" for name in ("base", "grpo", "ta_grpo", "pass_at_k", "questions_before")]
    return [*places, f"overrides=[{settings}]", "evaluation_of.arithmetic=[]", *others]


def call(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_run_of_a_grid_is_digested_and_kept(tmp_path):
    arguments = ["studies.second.run", "pilot", *overrides(tmp_path / "found")]
    first = call(*arguments)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "grpo_matched seed 3: done" in first.stdout
    (found,) = digest(tmp_path / "found")
    assert found["weights"]
    (file,) = (tmp_path / "found").rglob("metrics.csv")
    seconds = {name.partition("/")[2]: column.sum() for name, column in pd.read_csv(file).items() if "seconds/" in name}
    training = sum(seconds[phase] for phase in ("sync", "generate", "score", "update"))
    assert found["seconds"] == found["course"][-1]["seconds"] == pytest.approx(training, abs=0.051)
    assert training < seconds["iteration"] - 0.1 < found["took"]
    assert (found["task"], found["regime"], found["method"], found["seed"]) == (
        "arithmetic",
        "mixed",
        "grpo_matched",
        3,
    )
    again = call(*arguments)
    assert again.returncode == 0
    assert "done" not in again.stdout, "nothing is trained twice"


def test_a_folder_of_another_command_is_refused_and_a_failed_run_is_named(tmp_path):
    arguments = ["studies.second.run", "pilot", *overrides(tmp_path)]
    failed = call(*arguments, "evaluation_of.arithmetic=['optimizer.lr=-1']")
    assert failed.returncode
    assert "grpo_matched/seed3" in failed.stderr
    (log,) = tmp_path.rglob("log.txt")
    assert "optimizer.lr" in log.read_text()
    changed = call(*arguments, "overrides=['iterations=3']")
    assert changed.returncode
    assert "delete that directory" in changed.stderr


def test_every_grid_has_its_settings_and_its_runs_go_seed_by_seed():
    assert set(SETTINGS) == {path.stem for path in (CONFIGS / "compare").glob("*.yaml")}
    runs = all_settings("rephrasings", [])
    assert [run.seed for run in runs] == [seed for seed in range(5) for _ in range(2 * 8)]
    assert len({run.directory for run in runs}) == len(runs) == 5 * 2 * 8
    assert {run.directory.parts[-4:-2] for run in runs} == {("countdown", "easy"), ("arithmetic", "mixed")}


CELLS = [(name, settings[0]) for name, settings in SETTINGS.items()]
CELLS += [("factors", "shortest_path/medium"), ("factors", "arithmetic/hard")]


@pytest.mark.parametrize(("name", "setting"), CELLS)
def test_every_run_of_a_grid_composes(name, setting):
    from hydra import compose, initialize_config_module

    task, _, regime = setting.partition("/")
    runs: list[GridRun] = grid(name, [f"task={task}", f"regime={regime}", "seeds=[0]"])
    rate = 1e-4 if task == "arithmetic" else 3e-4
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for run in runs:
            if set(LEFT) & set(run.command):
                continue
            cfg = compose("train", [part for part in run.command[3:] if not part.startswith("hydra.run.dir")])
            assert cfg.data.train.regime == regime
            assert cfg.optimizer.lr == {"low": 1e-4, "high": 6e-4}.get(run.method.partition("_")[2], rate) or (
                run.method.startswith("questions")
            )
            # One k for all methods of the benchmark; the study of Pass@k training has others.
            assert name != "benchmark" or cfg.get("advantage", {}).get("k", 4) == 4
            assert ("recorder" in cfg.callbacks) is run.method.startswith("questions")


def test_what_left_the_package_is_no_experiment_of_it():
    left = {part.removeprefix("experiment=") for part in LEFT}
    assert not left & options_of("experiment").keys()
    named = {part for name in SETTINGS for run in all_settings(name, ["seeds=[0]"]) for part in run.command}
    assert set(LEFT) <= named, "each is in a frozen grid"
