"""Difficulty of rephrasings over the rollouts of a run."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from tagrpo.analysis.difficulty import difficulty_of_run, rated_questions, success_by
from tagrpo.datamodules.sources.jsonl import JsonLinesSource


def rollouts(rates, samples, seed=0):
    """Rows with success rates [questions, versions]."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "iteration": q // 4,
            "question": f"q{q}",
            "rephrasing": v,
            "template": "plain",
            "correct": bool(rng.random() < p),
        }
        for q, versions in enumerate(rates)
        for v, p in enumerate(versions)
        for _ in range(samples)
    ]
    return pd.DataFrame(rows)


def test_success_is_the_mean_over_questions_with_an_interval():
    rows = [("a", 0, True), ("a", 0, False), ("b", 0, True), ("b", 1, False), ("b", 1, False)]
    frame = pd.DataFrame(rows, columns=["question", "rephrasing", "correct"])
    found = success_by(frame)
    assert found.loc[0, "correct"] == pytest.approx((0.5 + 1) / 2)
    assert found.loc[1, ["responses", "correct", "low", "high"]].tolist() == [2, 0, 0, 0]


def test_rephrasings_of_other_difficulty_are_found_and_their_spread_estimated():
    rates = np.tile([0.8, 0.5, 0.2, 0.5], (60, 1))
    test, spread = difficulty_of_run(rollouts(rates, 8))
    assert test.p_value < 1e-9
    assert spread == pytest.approx(np.std([0.8, 0.5, 0.2, 0.5], ddof=1), abs=0.03)


def test_equal_rephrasings_are_not():
    rates = np.tile(np.linspace(0.1, 0.9, 60)[:, None], (1, 4))
    test, spread = difficulty_of_run(rollouts(rates, 8))
    assert test.p_value > 0.05
    assert spread < 0.08


def test_questions_are_rated_by_the_last_responses_to_their_originals_and_chosen_by_it(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"question": "a?", "answer": "1", "level": 5}, {"id": "b", "question": "b?", "answer": "2"},
            {"question": "c?", "answer": "3"}]  # fmt: skip
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    sampled = [
        (0, "mine-1", 0, True), (0, "mine-1", 0, True), (3, "mine-1", 0, True), (3, "mine-1", 0, False),
        (3, "mine-1", 1, True), (1, "b", 0, True), (1, "b", 0, True),
    ]  # fmt: skip
    frame = pd.DataFrame(sampled, columns=["iteration", "question", "rephrasing", "correct"])
    rated = rated_questions(frame, path)
    assert rated == [
        {"question": "a?", "answer": "1", "level": 5, "id": "mine-1", "success_rate": 0.5},
        {"question": "b?", "answer": "2", "id": "b", "success_rate": 1.0},
    ]
    next_stage = tmp_path / "rated.jsonl"
    next_stage.write_text("".join(json.dumps(row) + "\n" for row in rated))
    chosen = JsonLinesSource(next_stage, within={"success_rate": [0, 0.75]}).load()
    assert [group.id for group in chosen] == ["mine-1"]
    path.write_text(json.dumps({"id": "another", "question": "a?", "answer": "1"}))
    with pytest.raises(ValueError, match=r"such as b, mine-1, in .*mine\.jsonl, but found none"):
        rated_questions(frame, path)
