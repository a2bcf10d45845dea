"""Early stopping: chosen on one half of the questions, measured on the other."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from tagrpo.analysis.early_stopping import evaluations_of, stopped, stopped_tables
from tagrpo.analysis.runs import find_runs

IDS = [f"q{i:02d}" for i in range(40)]


def evaluation(correct, n=8, ids=IDS):
    return {"questions": [{"id": id, "n": n, "correct": int(c)} for id, c in zip(ids, correct, strict=True)]}


def keep(run, iteration, correct, n=8, split="test_id"):
    """Add a validation to a run."""
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    content = {"stage": "validation", "iteration": iteration, "splits": {split: evaluation(correct, n)}}
    (folder / f"validation-{iteration:06d}.json").write_text(json.dumps(content))


def test_each_half_is_measured_where_the_other_half_was_best():
    rng = np.random.default_rng(0)
    evaluations = [
        {"a": pd.Series(rng.random(40), IDS), "b": pd.Series(rng.random(11), IDS[:11])} for _ in range(5)
    ]
    found = stopped(evaluations)
    for half in (0, 1):
        scores = [np.mean([curve.iloc[1 - half :: 2].mean() for curve in e.values()]) for e in evaluations]
        best = evaluations[int(np.argmax(scores))]
        for split, values in found.items():
            assert values.iloc[half::2].tolist() == best[split].iloc[half::2].tolist()


def test_noise_alone_gains_nothing():
    """The maximum of equal evaluations is too high; the estimate is not: its mean over many trials is the truth."""
    rng = np.random.default_rng(1)
    naive, ours = [], []
    for _ in range(400):
        evaluations = [{"a": pd.Series(rng.binomial(8, 0.5, 40) / 8, IDS)} for _ in range(6)]
        naive.append(max(e["a"].mean() for e in evaluations))
        ours.append(stopped(evaluations)["a"].mean())
    error = np.std(ours) / 20
    assert abs(np.mean(ours) - 0.5) < 4 * error
    assert np.mean(naive) > 0.5 + 8 * error


def test_a_run_that_was_best_early_is_stopped_there(tmp_path, write_run):
    peak = [6] * 30 + [5] * 10
    run = write_run(tmp_path, "grpo", 0, [2] * 40)
    test = json.loads((run / "test.json").read_text())
    for row, id in zip(test["splits"]["test_id"]["questions"], IDS, strict=True):
        row["id"] = id
    (run / "evaluations").mkdir()
    (run / "evaluations" / "test-000004.json").write_text(json.dumps({**test, "iteration": 4}))
    keep(run, 1, [3] * 40)
    keep(run, 2, peak)
    (found,) = find_runs(tmp_path)
    (table,) = stopped_tables([found], ["test_id"], 1)
    assert table.loc[0].tolist() == [c / 8 for c in peak]
    assert table.columns.tolist() == IDS
    assert stopped_tables([found], ["test_id"], 16) is None, "there are eight responses"
    assert stopped_tables([found], ["other"], 1) is None


def test_the_untrained_policy_is_the_first_evaluation_unless_the_run_has_one_of_its_own(tmp_path, write_run):
    start = write_run(tmp_path, "base", 0, [7] * 40)
    (start / "ledger.json").unlink()
    run = write_run(tmp_path, "grpo", 0, [2] * 40)
    content = json.loads((start / "test.json").read_text())
    for place, name in ((start, "base"), (run, "grpo")):
        test = json.loads((place / "test.json").read_text())
        for row, id in zip(test["splits"]["test_id"]["questions"], IDS, strict=True):
            row["id"] = id
        test["iteration"] = 0 if name == "base" else 4
        (place / "test.json").write_text(json.dumps(test))
    assert content
    keep(run, 2, [3] * 40)
    runs = {found.method: found for found in find_runs(tmp_path)}
    (table,) = stopped_tables([runs["grpo"]], ["test_id"], 1, [runs["base"]])
    assert set(table.loc[0]) == {7 / 8}, "training made it worse at once"
    assert len(evaluations_of(runs["grpo"], ["test_id"], 1, runs["base"])) == 2
    keep(run, 0, [1] * 40)
    (again,) = [found for found in find_runs(tmp_path) if found.method == "grpo"]
    first = evaluations_of(again, ["test_id"], 1, runs["base"])[0]["test_id"]
    assert set(first) == {1 / 8}


def test_evaluations_of_other_questions_are_not_compared(tmp_path, write_run):
    run = write_run(tmp_path, "grpo", 0, [2] * 40)
    keep(run, 1, [3] * 40)
    keep(run, 2, [3] * 40)
    (found,) = find_runs(tmp_path)
    assert len(stopped_tables([found], ["test_id"], 1)) == 1
    file = run / "evaluations" / "validation-000002.json"
    file.write_text(file.read_text().replace('"q07"', '"another"'))
    (found,) = find_runs(tmp_path)
    assert stopped_tables([found], ["test_id"], 1) is None


def test_one_question_alone_does_not_choose():
    first, last = {"a": pd.Series([1.0], ["x"])}, {"a": pd.Series([0.0], ["x"])}
    assert stopped([first, last])["a"].tolist() == [0.0], "the end of training"
