"""The three telling questions of a run are those that an enumeration of its responses finds."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest

from tagrpo.analysis.runs import RunFiles, find_directories
from tagrpo.report.assemble import explore
from tagrpo.report.blocks import Responses
from tagrpo.report.telling import repeated, starts_of, telling
from tests.helpers import read_blocks


def told(run, start=None):
    own = Responses(run, "run0") if any((run.path / "rollouts").glob("*.parquet")) else None
    return {one["kind"]: one for one in telling(run, own, start)}, own


@pytest.fixture
def copied(trained, tmp_path):
    folder = tmp_path / "small" / "seed0"
    shutil.copytree(trained, folder)
    for file in (folder / "evaluations").glob("*.json"):
        file.unlink()
    return folder


def recorded(folder):
    return pd.concat([pd.read_parquet(file) for file in sorted((folder / "rollouts").glob("*.parquet"))])


def evaluated(folder, stage, iteration, correct, examples=()):
    """Write an evaluation of four responses to each question, and the responses of some."""
    (folder / "evaluations").mkdir(exist_ok=True)
    rows = [{"id": f"q{i}", "n": 4, "correct": c} for i, c in enumerate(correct)]
    split = {
        "num_questions": len(rows),
        "questions": rows,
        "pass_at_k": {"1": {"value": 0.5, "low": 0, "high": 1}},
    }
    content = {"stage": stage, "iteration": iteration, "splits": {"hard": split}}
    (folder / "evaluations" / f"{stage}-{iteration:06d}.json").write_text(json.dumps(content))
    if stage == "test":
        (folder / "test.json").write_text(json.dumps(content))
    kept = {f"q{i}": {"prompt": f"prompt {i}", "reference": ["1"], "n": 4, "correct": correct[i],
                      "responses": [{"text": "#### 1", "answer": "1", "correct": True}]} for i in examples}  # fmt: skip
    (folder / "evaluations" / f"examples-{stage}-{iteration:06d}.json").write_text(json.dumps({"hard": kept}))


def test_the_rescued_question_has_equal_rewards_for_its_original_alone(copied):
    found, own = told(RunFiles("small", 0, copied))
    one = found["Rescued by pooling"]
    rows = recorded(copied)
    rows = rows[
        (rows["iteration"] == one["iteration"]) & (rows["question"] == own.names["question"][one["question"]])
    ]
    original = rows[rows["rephrasing"] == 0]
    assert original["reward"].nunique() == 1
    assert rows["reward"].nunique() > 1
    assert (rows["advantage"] != 0).any()
    assert f"Iteration {one['iteration']}: the {len(original)} responses" in one["said"]
    assert (
        f"{int(rows['correct'].sum() - original['correct'].sum())} of {len(rows) - len(original)} responses"
        in one["said"]
    )


def test_without_rephrasings_nothing_is_rescued(copied):
    for file in (copied / "rollouts").glob("*.parquet"):
        rows = pd.read_parquet(file)
        rows[rows["rephrasing"] == 0].to_parquet(file)
    found, _ = told(RunFiles("small", 0, copied))
    assert found["Rescued by pooling"] == {
        "kind": "Rescued by pooling",
        "said": "This run sampled no rephrasings.",
    }


def test_what_is_lost_in_evaluation_fell_most_among_those_that_can_be_read(copied):
    evaluated(copied, "validation", 1, [4, 4, 3, 0])
    evaluated(copied, "test", 3, [0, 1, 1, 0], examples=[1, 2])
    found, _ = told(RunFiles("small", 0, copied))
    one = found["Lost in training"]
    assert (one["split"], one["id"]) == ("hard", "q1"), "q0 fell further, but its responses were not kept"
    assert one["before"] == {"iteration": 1, "n": 4, "correct": 4}
    assert one["after"]["prompt"] == "prompt 1"
    assert one["after"]["responses"][0]["text"] == "#### 1"
    assert "4 of 4 responses were right after 1 iterations, 1 of 4 after 3." in one["said"]


def test_what_is_lost_is_lost_since_the_untrained_policy(copied, tmp_path):
    start = tmp_path / "base" / "seed0"
    start.mkdir(parents=True)
    (start / "config.yaml").write_text("name: base\nseed: 0\n")
    evaluated(start, "test", 0, [4, 2, 2, 2], examples=[0])
    evaluated(copied, "test", 3, [1, 2, 2, 4], examples=[0])
    runs = find_directories(tmp_path)
    starts = starts_of(runs)
    (run,) = [run for run in runs if run.method == "small"]
    assert {seed: start.method for seed, start in starts.items()} == {0: "base"}
    found, _ = told(run, starts[0])
    one = found["Lost in training"]
    assert one["id"] == "q0"
    assert "4 of 4 responses were right before training, 1 of 4 after 3." in one["said"]
    assert one["before"]["responses"]


def test_what_is_lost_in_training_is_the_last_visit_of_a_question(copied):
    file = sorted((copied / "rollouts").glob("*.parquet"))[0]
    rows = pd.read_parquet(file)
    first = rows["question"].iloc[0]
    own = rows[rows["question"] == first]
    pd.concat([rows[rows["question"] != first], own.assign(correct=True, reward=1.0)]).to_parquet(file)
    later = own.assign(iteration=7, correct=False, reward=0.0)
    later.to_parquet(file.with_name("000007-0.parquet"))
    (copied / "test.json").unlink()
    found, responses = told(RunFiles("small", 0, copied))
    one = found["Lost in training"]
    assert (responses.names["question"][one["question"]], one["iteration"]) == (first, 7)
    assert (
        one["said"]
        == f"{len(own)} of {len(own)} responses were right in iteration 0, 0 of {len(own)} in iteration 7."
    )
    assert repeated(responses)


def test_what_was_never_solved_has_no_right_response(copied):
    for file in (copied / "rollouts").glob("*.parquet"):
        rows = pd.read_parquet(file)
        worst = rows["question"].iloc[-1]
        rows.loc[rows["question"] == worst, "correct"] = False
        rows.to_parquet(file)
    found, own = told(RunFiles("small", 0, copied))
    one = found["Never solved"]
    rows = recorded(copied)
    rates = rows.groupby("question")["correct"].sum()
    label = own.names["question"][one["question"]]
    assert rates[label] == 0
    assert one["iteration"] == max(rows[rows["question"].isin(rates[rates == 0].index)]["iteration"])
    assert f"{(rates == 0).sum()} of {len(rates)} questions were never solved" in one["said"]


def test_a_question_of_the_evaluations_may_never_be_solved(copied):
    for file in (copied / "rollouts").glob("*.parquet"):
        pd.read_parquet(file).assign(correct=True).to_parquet(file)
    evaluated(copied, "validation", 1, [4, 0, 3, 0])
    evaluated(copied, "test", 3, [4, 0, 4, 0], examples=[3])
    found, _ = told(RunFiles("small", 0, copied))
    one = found["Never solved"]
    assert one["id"] == "q3"
    assert "none of 8 responses in 2 evaluations was right. 2 of 4" in one["said"]
    assert one["after"]["prompt"] == "prompt 3"


def test_the_same_runs_give_the_same_page(copied, tmp_path):
    first, second = (explore(copied, output=tmp_path / f"{name}.html").read_bytes() for name in "ab")
    assert first == second


def test_a_run_of_an_earlier_version_is_shown(write_run, tmp_path):
    write_run(tmp_path, "grpo", 0, [1, 2, 3])
    (about,) = read_blocks(explore(tmp_path, output=tmp_path / "page.html"))["index"]["index"]["runs"]
    assert [one["kind"] for one in about["telling"]] == [
        "Rescued by pooling",
        "Lost in training",
        "Never solved",
    ]
    assert about["telling"][0]["said"] == "This run recorded no responses."
    assert not about["repeated"]
