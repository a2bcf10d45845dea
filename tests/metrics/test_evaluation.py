"""Counts of an evaluation: by hand, merged, and summarised."""

from __future__ import annotations

from collections import Counter

import pytest

from tagrpo.metrics.evaluation import QuestionCounts, count_batch, merge_counts, summarise


def test_a_question_that_comes_again_adds_its_responses(make_batch):
    # Answers cycle 0 1 2 through the responses of a batch.
    batch = make_batch([[[1.0, 0.0, 0.0, 0.0]]])
    (record,) = count_batch(batch)
    (split,) = merge_counts([record, record]).values()
    tokens = sum(len(ids) for ids in batch.rollouts.token_ids)
    assert split == {
        "q0": QuestionCounts(
            metadata=dict(batch.groups[0].metadata), n=8, correct=2, right={"0"},
            wrong=Counter({"1": 2, "2": 2, "0": 2}),
            tokens=2 * tokens, truncated=2 * int(batch.rollouts.truncated.sum()),
        )
    }  # fmt: skip


def test_the_summary_does_not_depend_on_the_order_of_questions():
    counts = {str(i): QuestionCounts({}, n=8, correct=i % 9, tokens=i) for i in range(20)}
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
    counts = {"a": QuestionCounts({}, n=4, correct=1, tokens=4), "b": QuestionCounts({}, n=4, correct=0, tokens=4)}
    assert list(summarise(counts, (1, 8))["pass_at_k"]) == [1]
    assert summarise(counts, (8, 16))["pass_at_k"] == {}
