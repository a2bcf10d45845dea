"""A run of a grid is digested as it went; a grid goes on where it was."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from studies.second.digest import digest
from studies.second.run import CONFIGS, LEFT, SETTINGS, all_settings, grid, main
from tagrpo.runs.grid import GridRun
from tagrpo.settings.methods import options_of

SIZES = [f"data.evaluation.{split}.size=4" for split in ("test_id", "test_phrasing", "test_size")]
SMALL = ["iterations=2", "logger=csv", "data.train.size=16", "data.samples_per_prompt=4", "data.evaluation_samples=2"]


def overrides(root):
    settings = ",".join(f"'{override}'" for override in [*SMALL, *SIZES, "export=false"])
    places = ["task=arithmetic", "regime=mixed", f"root={root}/arithmetic/mixed", "seeds=[3]"]
    others = [f"~methods.{name}" for name in ("base", "grpo", "ta_grpo", "pass_at_k", "questions_before")]
    return [*places, f"overrides=[{settings}]", "evaluation_of.arithmetic=[]", *others]


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs the command in this process, its runs in theirs; returns what it printed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def of(*arguments):
        monkeypatch.setattr(sys, "argv", ["run", *arguments])
        main()
        return capsys.readouterr().out

    return of


def test_a_run_of_a_grid_is_digested_and_kept(call, tmp_path):
    arguments = ["pilot", *overrides(tmp_path / "found")]
    assert "grpo_matched seed 3: done" in call(*arguments)
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
    assert "done" not in call(*arguments), "nothing is trained twice"


def test_a_folder_of_another_command_is_refused_and_a_failed_run_is_named(call, tmp_path):
    arguments = ["pilot", *overrides(tmp_path)]
    with pytest.raises(SystemExit, match="grpo_matched/seed3"):
        call(*arguments, "evaluation_of.arithmetic=['optimizer.lr=-1']")
    (log,) = tmp_path.rglob("log.txt")
    assert "optimizer.lr" in log.read_text()
    with pytest.raises(ValueError, match="delete that directory"):
        call(*arguments, "overrides=['iterations=3']")


def test_every_grid_has_its_settings_and_its_runs_go_seed_by_seed():
    assert set(SETTINGS) == {path.stem for path in (CONFIGS / "compare").glob("*.yaml")}
    runs = all_settings("rephrasings", [])
    assert [run.seed for run in runs] == [seed for seed in range(5) for _ in range(2 * 8)]
    assert len({run.directory for run in runs}) == len(runs) == 5 * 2 * 8
    assert {run.directory.parts[-4:-2] for run in runs} == {("countdown", "easy"), ("arithmetic", "mixed")}


FIRST = {name: settings[0].partition("/") for name, settings in SETTINGS.items()}
CELLS = [(name, settings[0]) for name, settings in SETTINGS.items()]
CELLS += [("factors", "arithmetic/hard")]


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
    named = {
        part
        for name, (task, _, regime) in FIRST.items()
        for run in grid(name, [f"task={task}", f"regime={regime}", "seeds=[0]"])
        for part in run.command
    }
    assert set(LEFT) <= named, "each is in a frozen grid"
