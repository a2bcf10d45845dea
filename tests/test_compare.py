"""A comparison from its configuration to its report, with stand-ins for training runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from rich.console import Console

from tagrpo.compare import compare, methods_of, places_of, runs_of
from tagrpo.grid import GridRun

PRESETS = sorted(path.stem for path in (Path(__file__).parents[1] / "configs" / "compare").glob("*.yaml"))
TEST = {
    "splits": {
        "test_id": {
            "num_questions": 2,
            "pass_at_k": {"1": {"value": 0.5, "low": 0.0, "high": 1.0}},
            "questions": [{"id": "a", "n": 2, "correct": 1}, {"id": "b", "n": 2, "correct": 1}],
        }
    }
}


def test_every_method_runs_with_every_seed(tmp_path):
    runs = runs_of(tmp_path, {"grpo": ["experiment=grpo"], "ta": []}, [0, 3], ["iterations=2"])
    assert [(run.method, run.seed) for run in runs] == [("grpo", 0), ("ta", 0), ("grpo", 3), ("ta", 3)]
    assert runs[2].command[1:] == [
        "-m", "tagrpo.train", "name=grpo", "seed=3", f"hydra.run.dir={tmp_path}/grpo/seed3",
        "iterations=2", "experiment=grpo",
    ]  # fmt: skip


def test_a_list_of_methods_names_experiments():
    assert methods_of(OmegaConf.create(["grpo", "dapo"])) == {
        "grpo": ["experiment=grpo"],
        "dapo": ["experiment=dapo"],
    }
    assert methods_of(OmegaConf.create({"a": ["x=1"]})) == {"a": ["x=1"]}


def test_every_preset_composes_and_names_experiments_that_exist():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for preset in PRESETS:
            needed = ["rephrasings=rephrased.jsonl"] if preset == "study_gpu" else []
            cfg = compose("compare", [f"compare={preset}", *needed])
            assert cfg.root.startswith(f"runs/{preset}")
            for method, own in methods_of(cfg.methods).items():
                run = compose("train", [f"name={method}", *cfg.overrides, *own])
                assert run.name == method
        assert methods_of(compose("compare", ["methods=[grpo]"]).methods) == {"grpo": ["experiment=grpo"]}


def test_what_ended_well_is_reported_and_what_failed_is_said(tmp_path, capsys):
    def run(method, code):
        return GridRun(method, 0, tmp_path / method / "seed0", [sys.executable, "-c", code])

    good = run("good", f"open({str(tmp_path / 'good/seed0/test.json')!r}, 'w').write({json.dumps(TEST)!r})")
    bad = run("bad", "raise SystemExit('no such model')")
    launcher = {"cluster": "local", "timeout_min": 60}
    failed = compare([good, bad], tmp_path, launcher, places_of(2, 0), Console(width=200))
    output = capsys.readouterr().out
    assert [run.method for run in failed] == ["bad"]
    assert "no such model" in output
    assert "1 of 2 runs failed: bad seed 0" in output
    assert str(tmp_path / "report.html") in output
    assert [c["method"] for c in json.loads((tmp_path / "results.json").read_text())["runs"]] == ["good"]


def devices(workers, gpus_per_run):
    return [place["CUDA_VISIBLE_DEVICES"] for place in places_of(workers, gpus_per_run)]


def test_gpus_are_shared_out_whole(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,5,7,9")
    assert devices(None, 2) == ["1,3", "5,7"]
    assert devices(1, 2) == ["1,3"]
    assert devices(3, 0) == ["1,3,5,7,9"] * 3, "all see all"
    with pytest.raises(ValueError, match="Expected 6 GPUs for workers=3 and gpus_per_run=2, but found 5"):
        places_of(3, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="Expected 2 GPUs .* found 0. Lower one of them"):
        places_of(None, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices(2, 0) == [None, None]
    assert len(devices(None, 0)) == os.cpu_count()


def test_without_methods_it_says_how_to_name_some(tmp_path):
    command = [sys.executable, "-m", "tagrpo.compare", f"root={tmp_path}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "compare=demo" in result.stderr


def test_a_report_on_runs_of_any_origin(tmp_path, write_run):
    write_run(tmp_path, "mine", 4, [1, 2])
    command = [sys.executable, "-m", "tagrpo.compare", f"root={tmp_path}", "report_only=true"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(tmp_path / "report.html")
    assert "| mine | 1 |" in (tmp_path / "report.md").read_text()
