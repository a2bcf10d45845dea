"""A comparison from its configuration to its report, with stand-ins for training runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rich.console import Console

import tagrpo.settings.config  # noqa: F401  resolvers of the configuration of training
from tagrpo.runs.grid import GridRun, copy_run
from tagrpo.study.compare import Method, compare, methods_of, places_of, runs_of, shared_overrides
from tests.helpers import wait_until

NEEDED = ["+rephrasings=r.jsonl", "+questions=q.jsonl", "+test=t.jsonl"]
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
    runs = runs_of(
        tmp_path, {"grpo": Method(["experiment=grpo"]), "ta": Method([])}, [0, 3], ["iterations=2"]
    )
    assert [(run.method, run.seed) for run in runs] == [("grpo", 0), ("ta", 0), ("grpo", 3), ("ta", 3)]
    assert runs[2].command[1:] == [
        "-m", "tagrpo.cli.train", "name=grpo", "seed=3", f"hydra.run.dir={tmp_path}/grpo/seed3",
        "iterations=2", "experiment=grpo",
    ]  # fmt: skip


def test_a_root_with_commas_spaces_quotes_and_umlauts_reaches_the_runs():
    root = Path("Läufe, a 'b'")
    *_, run = runs_of(root, {"first": Method([]), "then, ü": Method([], "first")}, [0], [])
    given = {
        part.key_or_group: part.value() for part in OverridesParser.create().parse_overrides(run.command[3:])
    }
    places = {
        "hydra.run.dir": str(root / "then, ü" / "seed0"),
        "model.path": str(root / "first" / "seed0" / "model"),
    }
    assert given == {"name": "then, ü", "seed": 0, **places}


def test_a_list_of_methods_names_experiments():
    assert methods_of(OmegaConf.create(["grpo", "dapo"]), None) == {
        "grpo": Method(["experiment=grpo"]),
        "dapo": Method(["experiment=dapo"]),
    }
    assert methods_of(OmegaConf.create({"a": ["x=1"]}), None) == {"a": Method(["x=1"])}


STAGES = {"a": ["x=1"], "b": {"overrides": ["y=2"], "paper": ["z=3"], "demo": ["z=4"], "after": "a"}}


def test_a_method_can_have_overrides_of_one_scale_and_go_on_from_another_method():
    methods = methods_of(OmegaConf.create(STAGES), "paper")
    assert methods == {"a": Method(["x=1"]), "b": Method(["y=2", "z=3"], "a")}
    assert methods_of(OmegaConf.create(STAGES), None)["b"].overrides == ["y=2", "z=4"]
    runs = runs_of(Path("root"), methods, [0, 1], [])
    assert [run.after for run in runs] == [None, runs[0], None, runs[2]]
    assert runs[2].command[-2:] == ["hydra.run.dir=root/a/seed1", "x=1"], "it exports by default"
    assert runs_of(Path("root"), methods, [1], ["export=false"])[0].command[-2:] == ["x=1", "export=true"]
    assert runs[3].command[-3:] == ["y=2", "z=3", "model.path=root/a/seed1/model"]


def test_a_method_can_be_the_run_of_another_that_goes_on_for_longer():
    methods = methods_of(
        OmegaConf.create({"a": ["x=1"], "b": {"longer": "a", "overrides": ["x=1", "y=2"]}}), "paper"
    )
    assert methods["b"] == Method(["x=1", "y=2"], longer="a")
    short, longer = runs_of(Path("root"), methods, [4], [])
    assert (longer.after, longer.longer, short.longer) == (short, True, False)
    assert longer.command[-2:] == ["x=1", "y=2"], "the checkpoint has the weights"
    assert "export=true" not in short.command


def test_a_copy_of_a_run_has_what_it_goes_on_from_and_what_was_logged(tmp_path):
    for name in ("checkpoints/iteration-000010.ckpt", "metrics.csv", "evaluations/validation-000005.json"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_text(name)
    for name in ("test.json", "run.json", "finished", "rollouts/0.parquet", "job/1", "model/config.json"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).touch()
    copy_run(tmp_path / "a", tmp_path / "b")
    found = {
        path.relative_to(tmp_path / "b").as_posix() for path in (tmp_path / "b").rglob("*") if path.is_file()
    }
    assert found == {"checkpoints/iteration-000010.ckpt", "metrics.csv", "evaluations/validation-000005.json"}


def test_a_longer_run_is_started_on_a_copy_of_the_shorter_one(tmp_path):
    code = (
        "import sys; at, test = sys.argv[1:3]; "
        "open(at + '/log', 'a').write('x'); open(at + '/test.json', 'w').write(test)"
    )
    directories = [tmp_path / method / "seed0" for method in ("a", "b")]
    commands = [[sys.executable, "-c", code, str(directory), json.dumps(TEST)] for directory in directories]
    short = GridRun("a", 0, directories[0], commands[0])
    longer = GridRun("b", 0, directories[1], commands[1], short, longer=True)
    assert (
        compare(
            [short, longer], tmp_path, {"cluster": "local", "timeout_min": 60}, places_of(2, 0), Console()
        )
        == []
    )
    assert (directories[1] / "log").read_text() == "xx"
    assert (directories[0] / "log").read_text() == "x"


def test_methods_that_cannot_be_chained_are_refused():
    with pytest.raises(ValueError, match="methods.b.after.*'c'"):
        methods_of(OmegaConf.create({"a": [], "b": {"after": "c"}}), None)
    with pytest.raises(ValueError, match="methods.b.longer.*'b'"):
        methods_of(OmegaConf.create({"a": [], "b": {"longer": "b"}}), None)
    with pytest.raises(ValueError, match="methods.b .* got then"):
        methods_of(OmegaConf.create({"a": [], "b": {"then": "a"}}), None)


def composed(*overrides):
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg = compose("compare", list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    return cfg


def test_experiments_can_be_compared_without_a_preset():
    assert methods_of(composed("methods=[grpo]").methods, None) == {"grpo": Method(["experiment=grpo"])}


def test_what_a_preset_needs_is_asked_for():
    with pytest.raises(ValueError, match=r"Expected rephrasings=…,.*ta_grpo_table1"):
        shared_overrides(composed("compare=ta_grpo_table1"))
    assert "model=qwen3_4b" in shared_overrides(composed("compare=ta_grpo_fig8", "model=qwen3_4b", *NEEDED))
    assert shared_overrides(composed("compare=ta_grpo_table1", "scale=demo"))[:2] == [
        "scale=demo",
        "model=starter",
    ]


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
    assert "- good solves " in output, "the answer comes with the report"
    assert [c["method"] for c in json.loads((tmp_path / "results.json").read_text())["runs"]] == ["good"]


HOLDS = """
import os, sys, time
from pathlib import Path
from tagrpo.runs.directory import held
os.chdir(sys.argv[1])
with held(Path(".")):
    open("began", "a").write("x")
    while not os.path.exists("go"):
        time.sleep(0.05)
    open("test.json", "w").write(sys.argv[2])
"""
COMPARES = """
import sys
from pathlib import Path
from rich.console import Console
from tagrpo.study.compare import compare, places_of
from tagrpo.runs.grid import GridRun, copy_run
root, directory, *command = sys.argv[1:]
run = GridRun("a", 0, Path(directory), command)
compare([run], Path(root), {"cluster": "local", "timeout_min": 60}, places_of(1, 0), Console(quiet=True))
"""


def test_a_training_that_outlives_a_killed_comparison_is_not_joined_by_a_second_one(tmp_path, capsys):
    directory = tmp_path / "a" / "seed0"
    command = [sys.executable, "-c", HOLDS, str(directory), json.dumps(TEST)]
    parent = subprocess.Popen([sys.executable, "-c", COMPARES, str(tmp_path), str(directory), *command])
    wait_until((directory / "began").exists)
    parent.kill()
    parent.wait()

    def compared():
        launcher = {"cluster": "local", "timeout_min": 60}
        run = GridRun("a", 0, directory, command)
        compare([run], tmp_path, launcher, places_of(1, 0), Console(width=200))
        return run.state, capsys.readouterr().out

    state, output = compared()
    assert state == "failed"
    assert "another process is using it" in output
    (directory / "go").touch()
    wait_until(lambda: json.loads((directory / "run.json").read_text())["finished"])
    assert compared()[0] == "kept"
    assert (directory / "began").read_text() == "x"


def devices(workers, gpus_per_run):
    return [place["CUDA_VISIBLE_DEVICES"] for place in places_of(workers, gpus_per_run)]


def test_gpus_are_shared_out_whole(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,5,7,9")
    assert devices(None, 2) == ["1,3", "5,7"]
    assert devices(1, 2) == ["1,3"]
    assert devices(3, 0) == ["1,3,5,7,9"] * 3, "all see all"
    with pytest.raises(ValueError, match="GPUs.*workers=3.*gpus_per_run=2.*5"):
        places_of(3, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="Expected 2 GPUs .* found 0"):
        places_of(None, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices(2, 0) == [None, None]
    assert len(devices(None, 0)) == os.cpu_count()
