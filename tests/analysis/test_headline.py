"""The first lines of a report: which pair, and what is said of it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.headline import (
    break_even,
    break_even_note,
    by_task,
    in_words,
    pair_of,
    stopped_early,
    verdict_line,
)
from tagrpo.analysis.runs import by_method, find_runs
from tagrpo.analysis.sections import sections
from tagrpo.analysis.statistics import Estimate

BASE = [i % 3 for i in range(60)]


def sampled(path, rollouts):
    """Change the number of responses that a run sampled; 0 for an untrained one."""
    if not rollouts:
        (path / "ledger.json").unlink()
        return
    ledger = json.loads((path / "ledger.json").read_text())
    (path / "ledger.json").write_text(json.dumps({**ledger, "rollouts": rollouts}))


@pytest.fixture
def compared(tmp_path, write_run):
    """A function that makes methods from name → sampled responses, in this order."""

    def make(**rollouts):
        for number, (name, count) in enumerate(rollouts.items()):
            sampled(write_run(tmp_path, name, 0, [min(8, c + number % 3) for c in BASE]), count)
        return Methods(by_method(find_runs(tmp_path), list(rollouts)))

    return make


@pytest.mark.parametrize(
    ("rollouts", "method", "baseline", "said"),
    [
        (
            {"base": 0, "grpo": 64, "matched": 256, "ta": 256},
            "ta",
            "matched",
            "matched, with as many samples",
        ),
        ({"grpo": 64, "dapo": 64, "ta": 256}, "dapo", "grpo", "grpo, with as many samples"),
        ({"grpo": 64, "dapo": 64, "gspo": 66}, "gspo", "grpo", "grpo, with as many samples"),
        ({"base": 0, "grpo": 64, "ta": 256}, "ta", "grpo", "grpo, with 4 times as many samples"),
        ({"ta": 256, "grpo": 64}, "grpo", "ta", "ta, with 0.25 times as many samples"),
        ({"base": 0, "grpo": 64}, "grpo", "base", "the untrained policy (base)"),
    ],
)
def test_the_pair_has_as_many_samples_where_there_are_such(compared, rollouts, method, baseline, said):
    methods = compared(**rollouts)
    pair = pair_of(methods)
    assert (pair.method, pair.baseline) == (method, baseline)
    assert verdict_line(methods, pair).startswith(f"{method} against {said}, on test_id: pass@1 ")


@pytest.mark.parametrize("seed", range(20))
def test_the_words_follow_the_interval(seed):
    rng = np.random.default_rng(seed)
    low, value, high = sorted(rng.normal(size=3))
    word = in_words(Estimate(value, low, high))
    assert (word == "cannot be told") == (low <= 0 <= high)
    turned = in_words(Estimate(-value, -high, -low))
    fewer = in_words(Estimate(value, low, high), higher_is_better=False)
    assert turned == fewer
    assert {word, turned} in ({"better", "worse"}, {"cannot be told"})
    assert in_words(Estimate(0.0, 0.0, 0.0)) == "cannot be told"
    assert in_words(Estimate(0.1, float("nan"), float("nan"))) == "cannot be told", (
        "one question has no interval"
    )


def test_the_first_line_has_the_differences_of_the_comparisons(compared):
    methods = compared(grpo=64, ta=64)
    line = verdict_line(methods, pair_of(methods))
    for k in (1, 8):
        estimate = methods.difference(["test_id"], "ta", "grpo", k).estimate
        assert f"pass@{k} {in_words(estimate)} ({estimate.signed}" in line
    assert "questions without gradient cannot be told (+0.0 [+0.0, +0.0])" in line


def test_each_task_stands_beside_its_average_and_the_untrained_policy(tmp_path, write_run):
    for method, count, gains in (("base", 0, (0, 0)), ("grpo", 64, (1, 1)), ("ta", 64, (4, 0))):
        path = write_run(tmp_path, method, 0, [c + gains[0] for c in BASE])
        test = json.loads((path / "test.json").read_text())
        other = json.loads(json.dumps(test["splits"]["test_id"]))
        for row, c in zip(other["questions"], BASE, strict=True):
            row["correct"] = c + gains[1]
        test["splits"]["hard"] = other
        test["groups"] = {"both": {"splits": ["test_id", "hard"]}}
        (path / "test.json").write_text(json.dumps(test))
        sampled(path, count)
    methods = Methods(by_method(find_runs(tmp_path), ["base", "grpo", "ta"]))
    header, rows = by_task(methods, pair_of(methods))
    assert header == ["on", "measure", "base", "grpo", "ta", "difference", "in words"]
    assert [row[:2] for row in rows] == [
        ["both (average)", "pass@1"], ["both (average)", "pass@8"], ["test_id", "pass@1"], ["test_id", "pass@8"],
        ["hard", "pass@1"], ["hard", "pass@8"], ["training", "% without gradient"],
    ]  # fmt: skip
    # 3 of 8 responses more on the one task, 1 of 8 fewer on the other.
    first, _, easy, _, hard, _, zero = rows
    assert easy[2:5] == ["12.5", "25.0", "62.5"]
    assert easy[5].startswith("+37.5 [")
    assert easy[6] == "better"
    assert (hard[5].partition(" ")[0], hard[6]) == ("−12.5", "worse")
    assert first[5].startswith("+12.5 [")
    assert zero[2:5] == ["50.0", "50.0", "50.0"]


def test_both_are_stopped_early_on_the_same_questions(tmp_path, write_run):
    for method, early in (("grpo", 6), ("ta", 3)):
        path = write_run(tmp_path, method, 0, [2] * 60)
        (path / "evaluations").mkdir()
        test = json.loads((path / "test.json").read_text())
        for name, iteration, correct in (("test", 4, 2), ("validation", 2, early)):
            for row in test["splits"]["test_id"]["questions"]:
                row["correct"] = correct
            content = {**test, "stage": name, "iteration": iteration}
            (path / "evaluations" / f"{name}-{iteration:06d}.json").write_text(json.dumps(content))
    methods = Methods(by_method(find_runs(tmp_path), ["grpo", "ta"]))
    header, rows = stopped_early(methods, pair_of(methods))
    assert header == ["on", "measure", "grpo", "ta", "difference", "in words"]
    assert rows[0] == ["test_id", "pass@1", "75.0", "37.5", "−37.5 [−37.5, −37.5]", "worse"]
    titles = [section.title for section in sections(methods)]
    assert titles[:2] == [
        "ta against grpo, task by task",
        "The same, each run stopped at its best validation",
    ]


def test_without_evaluations_during_training_nothing_is_said_of_early_stopping(compared):
    titles = [section.title for section in sections(compared(grpo=64, ta=64))]
    assert not [title for title in titles if re.search("stopped", title)]


def test_at_the_break_even_both_pay_the_same_for_a_question_with_a_gradient():
    rng = np.random.default_rng(0)
    for ours, theirs, cost in rng.uniform(0, 99, (50, 3)):
        ratio = break_even(ours, theirs)
        price = cost / (1 - theirs / 100)
        assert ratio * cost / (1 - ours / 100) == pytest.approx(price)
    assert break_even(10.0, 100.0) == float("inf")


def test_the_break_even_is_told_against_the_first_method_with_fewer_samples(tmp_path, write_run):
    for name, count, zero in (("grpo", 64, 40.0), ("matched", 256, 20.0), ("ta", 256, 10.0)):
        sampled(write_run(tmp_path, name, 0, BASE, zero=zero), count)
    methods = Methods(by_method(find_runs(tmp_path), ["grpo", "matched", "ta"]))
    note = break_even_note(methods, pair_of(methods))
    assert note.startswith("Break-even of ta against grpo: 1.50 = (100 − 10.0) / (100 − 40.0).")
    assert note.endswith("Here it costs 4.00 times as many samples.")
    (budgets,) = [section for section in sections(methods) if section.title == "Budgets"]
    assert note in budgets.notes


def test_without_a_cheaper_method_there_is_no_break_even(compared):
    methods = compared(grpo=64, ta=64)
    assert break_even_note(methods, pair_of(methods)) is None
