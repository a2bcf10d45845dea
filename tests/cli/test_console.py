"""Help, and what a training says at its end."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tagrpo.analysis.runs import find_directories
from tagrpo.cli.console import conclude, following
from tagrpo.overrides import override
from tagrpo.runs import directory
from tests.helpers import forked

METRICS = {
    "pass@k/easy/1": 0.25, "pass@k/easy/2": 0.5, "pass@k/hard/1": 0.125,
    "rollout/reward": 0.75, "other": 1.0,
}  # fmt: skip


def test_results_places_and_next_commands_are_printed(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "metrics.csv").write_text("")
    conclude(METRICS, tmp_path, ["data=math", "name=a b", "iterations=5"], "a-seed0", 5)
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.startswith("│")]
    assert rows == [["│", "easy", "│", "25.0", "│", "50.0", "│"], ["│", "hard", "│", "12.5", "│", "│"]]
    assert "Cover@τ" not in said, "none was asked for"
    assert "metrics.csv" in said
    assert "checkpoints" not in said, "there are none"
    assert f"tagrpo-eval name=a-seed0 data=math model=pretrained model.path={tmp_path / 'model'}" in said


def test_a_command_begins_without_what_only_reads_foreign_data():
    heavy = {"pydantic", "torch", "lightning", "transformers"}
    code = f"import sys, tagrpo.cli.train; print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_next_commands_fit_what_the_run_has_left_behind():
    run = Path("runs/a")
    overrides = [
        "scale=paper",
        "model=qwen3_4b",
        "name=a b",
        "iterations=5",
        "resume=auto",
        "optimizer.lr=1e-6",
    ]
    export, report, longer = following(run, overrides, "a-seed0", 5, {"checkpoints"})
    assert export == ["tagrpo-export", "runs/a", "runs/a/model"]
    assert report == ["tagrpo-report", "runs/a"]
    kept = ["scale=paper", "model=qwen3_4b", "name=a b", "optimizer.lr=1e-6"]
    assert longer == ["tagrpo-train", *kept, "hydra.run.dir=runs/a", "resume=auto", "iterations=10"]
    assert len(following(run, overrides, "a-seed0", None, {"checkpoints"})) == 2, (
        "it has no number of iterations"
    )
    overrides += [
        "experiment=dapo",
        "recipe=common",
        "data_path=x",
        "~data.evaluation.b",
        "+data.evaluation.c=1",
    ]
    folders = ["--config-dir=/mine", "hydra.searchpath=[file:///more]"]
    evaluate, *_ = following(run, [*folders, *overrides], "a-seed0", 5, {"model"})
    carried = [*folders, "scale=paper", *overrides[-5:]]
    assert evaluate == [
        "tagrpo-eval",
        "name=a-seed0",
        *carried,
        "model=pretrained",
        "model.path=runs/a/model",
    ]
    carried = ["data/evaluation=pass_at_k", "trainer=gpu", "strategy=ddp"]
    evaluate, *_ = following(run, [*carried, "logger/x=1"], "a-seed0", 5, {"model"})
    assert evaluate[2:-2] == carried


SMALL = [
    "iterations=1", "logger=csv", "callbacks=[pass_at_k,checkpoint]", "data.train.size=8", "data.batch_size=2",
    "data.samples_per_prompt=2", "data.evaluation_samples=2", "data.evaluation.test_id.size=2",
    "~data.evaluation.test_phrasing", "~data.evaluation.test_size",
]  # fmt: skip


def test_printed_commands_run_as_printed_from_a_folder_with_commas_spaces_and_umlauts(tmp_path):
    folder = tmp_path / "Läufe, zum Ansehen"
    folder.mkdir()

    def run(command):
        name, *arguments = shlex.split(command)
        program = {"tagrpo-eval": "evaluate"}.get(name, name.removeprefix("tagrpo-"))
        code, output = forked(program, *arguments, folder=folder, environment={"COLUMNS": "80"})
        assert code == 0, f"{command}\n{output}"
        return output

    said = run(
        shlex.join(["tagrpo-train", "-m", "experiment=grpo", *SMALL, override("hydra.sweep.dir", "Ü, ü")])
    )
    (swept,) = find_directories(folder)
    printed = [line.strip() for line in said.splitlines() if line.startswith("  tagrpo-")]
    assert [line.split()[0] for line in printed] == ["tagrpo-eval", "tagrpo-report", "tagrpo-train"]
    for line in (*printed, swept.command):
        run(line)
    assert json.loads((swept.path / "ledger.json").read_text())["iterations"] == 2, (
        "the run itself was made longer"
    )
    assert {run.method for run in find_directories(folder)} == {"grpo", "grpo-seed0", "grpo-again"}


def test_the_commit_and_what_differs_from_it_are_told(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True
        )

    (tmp_path / "code.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(directory, "__file__", str(tmp_path / "code.py"))
    clean = directory.provenance()
    assert len(clean["git_commit"]) == 40
    assert clean["git_changed"] == ""
    assert clean["version/torch"]
    (tmp_path / "code.py").write_text("2")
    changed = directory.provenance()
    assert (changed["git_commit"], changed["git_changed"]) == (clean["git_commit"], "code.py")


def test_without_a_repository_there_are_versions_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "__file__", str(tmp_path / "code.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert all(name.startswith("version/") for name in directory.provenance())
    monkeypatch.setenv("LD_PRELOAD", "/somewhere/other.so")
    assert directory.provenance()["LD_PRELOAD"] == "/somewhere/other.so"


def test_help_of_a_group_that_does_not_exist_is_an_error():
    code, said = forked("train", "--help", "advantag")
    assert code == 1
    assert "'advantag'. Did you mean advantage?" in said
    code, said = forked("train", "--help", "reward")
    assert code == 0
    assert "reward=function" in said


@pytest.mark.parametrize("command", ["train", "evaluate", "plan", "rephrase", "compare"])
def test_help_names_sweeps_where_there_are_some(command):
    code, said = forked(command, "--help")
    assert code == 0
    assert (" -m seed=0,1,2 " in said) == (command in ("train", "evaluate"))


def test_help_may_be_read_in_part():
    help = f"{Path(sys.executable).with_name('tagrpo-train')} --help"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{help} | head -1"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("# tagrpo-train")
