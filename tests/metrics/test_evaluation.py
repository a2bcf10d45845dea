"""Counts of an evaluation: by hand, merged, and summarised."""

from __future__ import annotations

import pytest

from tagrpo.metrics.evaluation import count_batch, merge_counts, summarise
from tests.helpers import counted


def test_a_question_that_comes_again_adds_its_responses(make_batch):
    # Answers cycle 0 1 2 through the responses of a batch.
    batch = make_batch([[[1.0, 0.0, 0.0, 0.0]]])
    (record,) = count_batch(batch)
    (split,) = merge_counts([record, record]).values()
    tokens = sum(len(ids) for ids in batch.rollouts.token_ids)
    assert split == {
        "q0": {
            "id": "q0", "n": 8, "correct": 2, "distinct_answers": 3, "distinct_wrong": 3, "majority": 0.25,
            "mean_length": tokens / 4, "truncated": 2 * int(batch.rollouts.truncated.sum()),
            "metadata": dict(batch.groups[0].metadata),
        }
    }  # fmt: skip


def test_the_summary_does_not_depend_on_the_order_of_questions():
    counts = counted({str(i): (8, i % 9, i) for i in range(20)})
    backwards = dict(reversed(counts.items()))
    assert summarise(counts, (1, 4)) == summarise(backwards, (1, 4))


def test_majority_and_wrong_answers_are_means_over_questions(make_batch):
    # Answers cycle 0 1 2: right with 0 against 1 and 2, and 0 again wrong against nobody's 1.
    batch = make_batch([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    summary = summarise(merge_counts(count_batch(batch))["train"], (1, 3))
    assert summary["majority"] == pytest.approx((1 / 3 + 0) / 2)
    assert summary["wrong_answers"] == (2 + 3) / 2
    assert [row["distinct_answers"] for row in summary["questions"]] == [3, 3]


def test_a_k_above_the_number_of_responses_is_left_out_also_where_none_remains():
    counts = counted({"a": (4, 1, 4), "b": (4, 0, 4)})
    assert list(summarise(counts, (1, 8))["pass_at_k"]) == [1]
    assert summarise(counts, (8, 16))["pass_at_k"] == {}
