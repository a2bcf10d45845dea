"""Evaluations as Markdown, and two of them compared."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy import stats

from tagrpo.analysis.evaluation import (
    average_over_questions,
    average_over_splits,
    compare_evaluations,
    evaluation_markdown,
    read_evaluation,
    statement,
    write_comparison,
    write_evaluation,
)

KS = (1, 2, 4)


def write(folder, splits):
    """A `test.json` of splits name → correct of 4 for each question."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for name, correct in splits.items():
        curve = {str(k): {"value": 0.5, "low": 0.4, "high": 0.625} for k in KS}
        questions = [{"id": f"q{i}", "n": 4, "correct": c} for i, c in enumerate(correct)]
        content[name] = {
            "num_questions": len(correct), "pass_at_k": curve, "majority_at_k": curve,
            "length": 1234.4, "truncated": 0.021, "questions": questions,
        }  # fmt: skip
    (folder / "test.json").write_text(json.dumps({"splits": content}))
    return read_evaluation(folder)


def test_the_table_holds_every_split_and_how_it_was_sampled(tmp_path):
    run = write(tmp_path / "mine", {"amc": [0, 4, 2, 1], "aime24": [0, 0, 1, 0]})
    (run.path / "provenance.json").write_text('{"git_commit": "abc123"}')
    text = write_evaluation(run.path, {"model": "qwen", "temperature": 0.6}).read_text()
    interval = "50.0 [40.0, 62.5]"
    assert text.startswith("# Evaluation of qwen\n")
    assert f"| amc | {interval} | {interval} | {interval} | {interval} | 4 | 4 | 1,234 | 2.1 % |" in text
    assert "- temperature: 0.6\n- git_commit: abc123\n" in text
    # pass@1 of the splits: 7/16 and 1/16.
    assert f"| **average of splits** | {100 * (7 + 1) / 32:.1f} [" in text


def test_the_average_weighs_splits_equally(tmp_path):
    run = write(tmp_path, {"large": [4] * 30, "small": [0] * 3})
    assert average_over_splits(run, 1).as_dict() == pytest.approx({"value": 0.5, "low": 0.5, "high": 0.5})
    assert average_over_questions(run, 1).value == pytest.approx(30 / 33)
    text = evaluation_markdown(run, {})
    assert re.search(r"\| \*\*average of questions\*\* \| 90\.9 \[.*\|  \| 33 \|", text)
    assert "**average" not in evaluation_markdown(write(tmp_path / "one", {"small": [0, 1]}), {})


def test_differences_are_the_paired_t_test_with_holms_correction(tmp_path):
    rng = np.random.default_rng(0)
    theirs = rng.integers(0, 3, 40)
    ours = np.minimum(theirs + (np.arange(40) % 2), 4)
    a, b = write(tmp_path / "ours", {"amc": ours.tolist()}), write(tmp_path / "theirs", {"amc": theirs.tolist()})
    comparisons = compare_evaluations(a, b)
    assert [c.quantity for c in comparisons] == ["pass@k/amc/1", "pass@k/amc/2", "pass@k/amc/4"]
    first = comparisons[0]
    test = stats.ttest_rel(ours / 4, theirs / 4)
    assert first.difference.value == pytest.approx((ours - theirs).mean() / 4)
    assert (first.difference.low, first.difference.high) == pytest.approx(tuple(test.confidence_interval()))
    smallest = min(c.p_value for c in comparisons)
    assert first.p_value == pytest.approx(3 * test.pvalue) or first.p_value > smallest
    assert "ours is higher in amc pass@1" in statement("ours", "theirs", comparisons)
    page = write_comparison(a, b, tmp_path)
    assert "**ours is higher in" in page.read_text()
    assert len(json.loads((tmp_path / "comparison.json").read_text())) == 3


def test_equal_models_are_not_told_apart(tmp_path):
    correct = [0, 1, 2, 3, 4] * 8
    shifted = correct[1:] + correct[:1]
    a, b = write(tmp_path / "a", {"amc": correct}), write(tmp_path / "b", {"amc": shifted})
    assert statement("a", "b", compare_evaluations(a, b)) == "**No difference between a and b is beyond noise.**"
    assert compare_evaluations(a, a)[0].p_value == 1


def test_other_questions_are_refused(tmp_path):
    a = write(tmp_path / "a", {"amc": [1, 2, 3]})
    with pytest.raises(ValueError, match="same questions"):
        compare_evaluations(a, write(tmp_path / "b", {"amc": [1, 2]}))
    with pytest.raises(ValueError, match="test split that all runs have, but .*amc.*aime24"):
        compare_evaluations(a, write(tmp_path / "c", {"aime24": [1, 2]}))
