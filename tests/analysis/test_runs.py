"""Reading run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.runs import by_method, find_runs, pass_at_k_table


def test_runs_are_found_and_read(tmp_path, write_run):
    write_run(tmp_path, "grpo", 1, [0, 4])
    write_run(tmp_path, "grpo", 0, [2, 8])
    write_run(tmp_path, "base", 0, [0, 0])
    runs = find_runs(tmp_path)
    assert [(run.method, run.seed) for run in runs] == [("base", 0), ("grpo", 0), ("grpo", 1)]
    run = runs[1]
    assert run.metrics["rollout/reward"].to_dict() == {0: 0.25, 1: 0.5}, "rows of the test are left out"
    assert run.pass_at_k("test_id", 1).to_dict() == {"q000": 0.25, "q001": 1.0}
    # 1 − C(6, 2) / C(8, 2)
    assert run.pass_at_k("test_id", 2)["q000"] == pytest.approx(1 - 15 / 28)
    assert list(by_method(runs, ["grpo"])) == ["grpo", "base"]


def test_evaluations_are_read_below_a_relative_path_too(tmp_path, write_run, monkeypatch):
    path = write_run(tmp_path, "grpo", 0, [1, 2])
    monkeypatch.chdir(tmp_path)
    (run,) = find_runs(Path("grpo"))
    assert [sorted(evaluation["splits"]) for evaluation in run.evaluations] == [["test_id"]]
    (path / "evaluations").mkdir(exist_ok=True)
    for name in ("test-000003", "exact-000003"):
        content = {"iteration": 3, "splits": {name: {"questions": []}}}
        (path / "evaluations" / f"{name}.json").write_text(json.dumps(content))
    (run,) = find_runs(Path("grpo"))
    assert [sorted(evaluation["splits"]) for evaluation in run.evaluations] == [["test-000003"]]
    assert [sorted(evaluation["splits"]) for evaluation in run.exact] == [["exact-000003"]]


def test_the_configuration_names_a_run_wherever_it_lies(tmp_path, write_run):
    path = write_run(tmp_path, "experiment=ta_grpo", 0, [1])
    (path / "config.yaml").write_text(yaml.safe_dump({"name": "ta_grpo", "seed": 5}))
    (run,) = find_runs(tmp_path)
    assert (run.method, run.seed) == ("ta_grpo", 5)
    other = write_run(tmp_path, "again", 0, [1])
    (other / "config.yaml").write_text(yaml.safe_dump({"name": "ta_grpo", "seed": 5}))
    assert [run.method for run in find_runs(tmp_path)] == [f"ta_grpo ({path})" for path in (other, path)]


def test_a_run_says_how_to_repeat_it(tmp_path, write_run):
    path = write_run(tmp_path, "grpo", 0, [1])
    assert find_runs(tmp_path)[0].command is None
    (path / ".hydra").mkdir()
    overrides = {
        "task": ["seed=0", "name=x", "data.train.path=a b.jsonl", "resume=auto"],
        "hydra": ["hydra.run.dir=x", "hydra.mode=RUN", "hydra.searchpath=[file:///more]"],
    }
    sources = [
        {"path": "tagrpo.configs", "provider": "main"},
        {"path": "/my configs", "provider": "command-line"},
    ]
    noted = {
        "hydra": {"job": {"name": "train"}, "overrides": overrides, "runtime": {"config_sources": sources}}
    }
    (path / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(noted))
    folders = "'--config-dir=/my configs' 'hydra.searchpath=[file:///more]'"
    command = f"tagrpo-train {folders} seed=0 'data.train.path=a b.jsonl' name=grpo-again"
    assert find_runs(tmp_path)[0].command == command
    del noted["hydra"]["runtime"]
    (path / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(noted))
    (run,) = find_runs(tmp_path)
    assert run.command is None, "its folders of options are unknown"
    assert run.overrides == ["name=x", "data.train.path=a b.jsonl", "resume=auto"]


def test_a_resumed_run_counts_what_it_measured_twice_once(tmp_path, write_run):
    path = write_run(tmp_path, "grpo", 0, [1])
    before = find_runs(tmp_path)[0].diversity
    with (path / "embedding_diversity.csv").open("a") as file:
        file.write("5,q5,rephrasings,8,0.9\n")
    after = find_runs(tmp_path)[0].diversity
    assert len(after) == len(before)
    assert after["distance"].iloc[-1] == 0.9


def test_seconds_belong_to_their_iteration_and_none_is_left_out(tmp_path, write_run):
    """They are logged with the next iteration; those of the last one have a row of their own."""
    path = write_run(tmp_path, "grpo", 0, [1])
    late = [
        {"step": 1, "seconds/update": 2.0, "seconds/iteration": 3.0},
        {"step": 2, "seconds/iteration": 5.0},
    ]
    frame = pd.read_csv(path / "metrics.csv").filter(regex="^(?!seconds)")
    pd.concat([frame, pd.DataFrame(late)]).to_csv(path / "metrics.csv", index=False)
    run = find_runs(tmp_path)[0]
    assert run.metrics["seconds/iteration"].to_dict() == {0: 3.0, 1: 5.0}
    assert run.metrics["zero_gradient/percentage"].index.tolist() == [0, 1]
    assert run.wall_seconds == 8.0
    assert run.metrics["seconds/update"].sum() == 2.0


def test_tables_are_by_seed_and_question_or_iteration(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [2, 8], zero=10.0)
    write_run(tmp_path, "grpo", 3, [4, 0], zero=30.0)
    seeds = find_runs(tmp_path)
    table = pass_at_k_table(seeds, "test_id", 1)
    assert table.to_dict("index") == {0: {"q000": 0.25, "q001": 1.0}, 3: {"q000": 0.5, "q001": 0.0}}
    zero = Methods(by_method(seeds)).zero_gradient["grpo"]
    assert zero.to_dict("index") == {0: {0: 10.0, 1: 10.0}, 3: {0: 30.0, 1: 30.0}}
    pd.DataFrame({"step": [0], "rollout/reward": [1.0]}).to_csv(seeds[0].path / "metrics.csv", index=False)
    assert list(Methods(by_method(find_runs(tmp_path))).zero_gradient["grpo"].index) == [3], (
        "the others logged none"
    )


def test_seeds_on_different_questions_are_refused(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [2])
    write_run(tmp_path, "grpo", 1, [2, 3])
    with pytest.raises(ValueError, match="test_id.*q001"):
        pass_at_k_table(find_runs(tmp_path), "test_id", 1)


def test_an_empty_root_and_broken_files_are_named(tmp_path, write_run):
    with pytest.raises(FileNotFoundError, match=r"Expected test\.json.*exact\.json.*metrics\.csv"):
        find_runs(tmp_path)
    path = write_run(tmp_path, "grpo", 0, [1])
    (path / "test.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.json"):
        find_runs(tmp_path)
    (path / "test.json").write_text('{"stage": \n oops')
    (path / "metrics.csv").write_text("")
    (run,) = find_runs(tmp_path)
    with pytest.raises(ValueError, match=r"test\.json, but line 2"):
        _ = run.test
    with pytest.raises(ValueError, match=r"metrics\.csv"):
        _ = run.metrics


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "step,rollout/reward\n0,0.5\n1,half\n",
            r"metrics\.csv, but it can't be read: could not convert .*'half'",
        ),
        ("step,rollout/reward\n0,0.5\n1,0.5,7\n", "Expected 2 fields in line 3, saw 3"),
    ],
)
def test_a_broken_file_is_named(tmp_path, write_run, content, message):
    (write_run(tmp_path, "grpo", 0, [1]) / "metrics.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        _ = find_runs(tmp_path)[0].metrics
