"""Reading run directories."""

from __future__ import annotations

import pytest

from tagrpo.analysis.runs import by_method, find_runs


def test_runs_are_found_and_read(tmp_path, write_run):
    write_run(tmp_path, "grpo", 1, [0, 4])
    write_run(tmp_path, "grpo", 0, [2, 8])
    write_run(tmp_path, "base", 0, [0, 0])
    runs = find_runs(tmp_path)
    assert [(run.method, run.seed) for run in runs] == [("base", 0), ("grpo", 0), ("grpo", 1)]
    run = runs[1]
    assert run.metrics["rollout/reward"].tolist() == [0.25, 0.5], "rows of the test are left out"
    assert run.pass_at_k("test_id", 1).to_dict() == {"q000": 0.25, "q001": 1.0}
    # 1 − C(6, 2) / C(8, 2)
    assert run.pass_at_k("test_id", 2)["q000"] == pytest.approx(1 - 15 / 28)
    assert list(by_method(runs, ["grpo"])) == ["grpo", "base"]


def test_an_empty_root_and_broken_files_are_named(tmp_path, write_run):
    with pytest.raises(FileNotFoundError, match="Run tagrpo-compare first"):
        find_runs(tmp_path)
    path = write_run(tmp_path, "grpo", 0, [1])
    (path / "test.json").write_text('{"stage": \n oops')
    (run,) = find_runs(tmp_path)
    with pytest.raises(ValueError, match=r"test\.json, but line 2"):
        _ = run.test
    (path / "metrics.csv").write_text("")
    with pytest.raises(ValueError, match=r"metrics\.csv"):
        _ = run.metrics
