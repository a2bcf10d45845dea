"""What a training says at its end."""

from __future__ import annotations

import subprocess

from tagrpo.cli.summary import conclude, following
from tagrpo.runs import provenance

METRICS = {
    "pass@k/easy/1": 0.25, "pass@k/easy/2": 0.5, "pass@k/hard/1": 0.125,
    "rollout/reward": 0.75, "other": 1.0,
}  # fmt: skip


def test_results_places_and_next_commands_are_printed(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "metrics.csv").write_text("")
    conclude(METRICS, tmp_path, ["data=math", "name=a b", "iterations=5"], "a-seed0")
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.startswith("│")]
    assert rows == [["│", "easy", "│", "25.0", "│", "50.0", "│"], ["│", "hard", "│", "12.5", "│", "│"]]
    assert "metrics.csv" in said
    assert "checkpoints" not in said, "there are none"
    assert f"tagrpo-eval name=a-seed0 data=math model=pretrained model.path={tmp_path / 'model'}" in said


def test_next_commands_fit_what_the_run_has_left_behind(tmp_path):
    overrides = ["scale=paper", "model=qwen3_4b", "name=a b", "iterations=5", "resume=auto", "optimizer.lr=1e-6"]
    export, report, longer = following(tmp_path, overrides, "a-seed0", {"checkpoints"})
    assert export == f"tagrpo-export {tmp_path} {tmp_path / 'model'}"
    assert report == f"tagrpo-report {tmp_path}"
    assert longer == "tagrpo-train scale=paper model=qwen3_4b 'name=a b' optimizer.lr=1e-6 resume=auto iterations=…"
    evaluate, *_ = following(tmp_path, overrides, "a-seed0", {"model"})
    assert evaluate == f"tagrpo-eval name=a-seed0 scale=paper model=pretrained model.path={tmp_path / 'model'}"


def test_the_commit_and_what_differs_from_it_are_told(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    (tmp_path / "code.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "code.py"))
    clean = provenance.provenance()
    assert len(clean["git_commit"]) == 40
    assert clean["git_changed"] == ""
    assert clean["version/torch"]
    (tmp_path / "code.py").write_text("2")
    changed = provenance.provenance()
    assert (changed["git_commit"], changed["git_changed"]) == (clean["git_commit"], "code.py")


def test_without_a_repository_there_are_versions_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "code.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert all(name.startswith("version/") for name in provenance.provenance())
    monkeypatch.setenv("LD_PRELOAD", "/somewhere/other.so")
    assert provenance.provenance()["LD_PRELOAD"] == "/somewhere/other.so"
