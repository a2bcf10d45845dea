"""Evaluations as Markdown, and two of them compared."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy import stats

from tagrpo.analysis.evaluation import (
    compare_evaluations,
    comparison_markdown,
    evaluation_markdown,
    read_evaluation,
    statement,
    write_comparison,
)
from tagrpo.metrics.evaluation import averages

KS = (1, 2, 4)


def write(folder, splits, groups=None):
    """A `test.json` of splits name → correct of 4 for each question, and groups of them."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for name, correct in splits.items():
        curve = {str(k): {"value": 0.5, "low": 0.4, "high": 0.625} for k in KS}
        questions = [{"id": f"q{i}", "n": 4, "correct": c} for i, c in enumerate(correct)]
        content[name] = {
            "num_questions": len(correct), "pass_at_k": curve, "majority": 0.875,
            "length": 1234.4, "truncated": 0.021, "questions": questions,
        }  # fmt: skip
    averaged = averages({name: summarised(split) for name, split in content.items()}, groups or {})
    (folder / "test.json").write_text(json.dumps({"splits": content, "groups": averaged}))
    return read_evaluation(folder)


def summarised(split):
    return split | {"pass_at_k": dict.fromkeys(KS)}


def test_the_table_holds_every_split_and_how_it_was_sampled(tmp_path):
    run = write(tmp_path / "mine", {"amc": [0, 4, 2, 1], "aime24": [0, 0, 1, 0]})
    (run.path / "provenance.json").write_text('{"git_commit": "abc123"}')
    text = evaluation_markdown(run, {"model": "qwen", "temperature": 0.6})
    interval = "50.0 [40.0, 62.5]"
    assert text.startswith("# Evaluation of qwen\n")
    assert f"| amc | {interval} | {interval} | {interval} | 87.5 | 4 | 4 | 1,234 | 2.1 % |" in text
    assert "- temperature: 0.6\n- git_commit: abc123\n" in text
    assert "average" not in text.partition("In percent")[0]


def test_averages_stand_below_the_splits_and_are_compared_with_another_models(tmp_path):
    groups = {"all": ["large", "small"]}
    run = write(tmp_path / "mine", {"large": [4] * 30, "small": [0] * 3}, groups)
    text = evaluation_markdown(run, {})
    assert "| **all (average)** | 50.0 [50.0, 50.0] |" in text
    assert re.search(r"\| \*\*all \(by question\)\*\* \| 90\.9 \[.*\|  \| 33 \|", text)
    other = write(tmp_path / "other", {"large": [2] * 30, "small": [0] * 3}, groups)
    comparisons = compare_evaluations(run, other)
    assert {c.quantity: c.difference.value for c in comparisons}["pass@k/all (average)/1"] == pytest.approx(0.25)
    text = comparison_markdown(run, other, comparisons)
    assert "| all (average) pass@1 | 50.0 [50.0, 50.0] | 25.0 [25.0, 25.0] | +25.0 [" in text
    without = write(tmp_path / "without", {"large": [2] * 30, "small": [0] * 3})
    assert not any("average" in c.quantity for c in compare_evaluations(run, without))


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
