"""Batches of files, of runs, and the small one."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tagrpo.foreign import ForeignDataError
from tagrpo.starter import starter_path
from tagrpo.verify.batch import Batch, Row, read_batch, small_batch

GOOD = {
    "prompt_ids": [5, 9], "response_ids": [7, 3, 1], "sampled_logprobs": [-0.2, -1.1, -0.4], "reward": 1.0,
    "question": 0, "wording": 0, "truncated": False,
}  # fmt: skip
WRONG = {
    "no tokens": ({"response_ids": []}, "response_ids"),
    "negative token": ({"response_ids": [7, -3, 1]}, "response_ids"),
    "text": ({"prompt_ids": "5 9"}, "prompt_ids"),
    "log-prob of another length": ({"sampled_logprobs": [-0.2]}, "log-prob for each of 3"),
    "positive log-prob": ({"sampled_logprobs": [0.2, -1.1, -0.4]}, "sampled_logprobs"),
    "huge reward": ({"reward": 1e30}, "reward"),
    "reward of text": ({"reward": "good"}, "reward"),
    "fraction as question": ({"question": 0.5}, "question"),
    "truncated by number": ({"truncated": 1}, "truncated"),
    "another prompt of one wording": ({"prompt_ids": [5, 8]}, "prompt_ids of the earlier rows"),
}


def write_lines(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_file_of_lines_and_one_of_parquet_give_the_same_batch(tmp_path):
    rows = [row.model_dump() for row in small_batch().rows]
    rows[3]["reward"] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    read = [read_batch(path) for path in (write_lines(tmp_path / "b.jsonl", rows), tmp_path / "b.parquet")]
    assert read[0].rows == read[1].rows
    assert [row.model_dump() for row in read[0].rows] == rows


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", WRONG)
def test_a_broken_row_is_refused_by_its_number_and_field(name, suffix, tmp_path):
    change, said = WRONG[name]
    rows = [GOOD, {**GOOD, **change}]
    path = tmp_path / f"b.{suffix}"
    if suffix == "jsonl":
        write_lines(path, rows)
    else:
        try:
            pq.write_table(pa.Table.from_pylist(rows), path)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pytest.skip("a column of Parquet has one type")
    with pytest.raises(ForeignDataError, match=said) as error:
        read_batch(path)
    assert f"b.{suffix} row " in str(error.value)


def test_what_is_no_batch_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "b.csv").write_text("a")
    (tmp_path / "b.parquet").write_text("not parquet")
    pq.write_table(pa.table({"prompt_ids": [[1]]}), tmp_path / "columns.parquet")
    (tmp_path / "line.jsonl").write_text(json.dumps(GOOD) + "\n{broken\n")
    for name, kind, said in (
        ("empty.jsonl", ForeignDataError, "at least one row"),
        ("b.csv", FileNotFoundError, "another file"),
        ("none.jsonl", FileNotFoundError, "nothing"),
        ("b.parquet", ForeignDataError, "can't be read"),
        ("columns.parquet", ForeignDataError, "response_ids"),
        ("line.jsonl", ForeignDataError, "line.jsonl row 2"),
    ):
        with pytest.raises(kind, match=said):
            read_batch(tmp_path / name)


def test_rows_are_ordered_by_question_and_wording_and_the_first_questions_are_kept(tmp_path):
    rows = [
        {**GOOD, "question": q, "wording": w, "prompt_ids": [q + 1, w]}
        for q, w in ((7, 1), (2, 0), (7, 0), (2, 0))
    ]
    batch = read_batch(write_lines(tmp_path / "b.jsonl", rows))
    assert [(row.question, row.wording) for row in batch.rows] == [(7, 0), (7, 1), (2, 0), (2, 0)]
    assert len(read_batch(tmp_path / "b.jsonl", questions=1)) == 2


def test_rollouts_have_the_prompts_of_the_original_as_anchors_and_means_for_missing_rewards():
    rows = [
        Row(**{**GOOD, "reward": 1.0}),
        Row(**{**GOOD, "reward": None}),
        Row(**{**GOOD, "wording": 2, "prompt_ids": [4], "reward": 0.5}),
        Row(**{**GOOD, "question": 3, "wording": 1, "prompt_ids": [6], "reward": None}),
    ]
    rollouts = Batch(tuple(rows), "x").rollouts()
    assert rollouts.rewards.tolist() == [1.0, 0.75, 0.5, 0.0]
    assert rollouts.question.tolist() == [0, 0, 0, 1]
    assert rollouts.prompt.tolist() == [0, 0, 1, 2]
    assert [prompt.anchor_ids.tolist() for prompt in rollouts.prompts] == [[5, 9], [5, 9], [6]]
    assert [prompt.num_samples for prompt in rollouts.prompts] == [2, 1, 1]


def test_a_dense_vocabulary_keeps_which_tokens_are_equal():
    batch = small_batch()
    dense = batch.in_dense_vocabulary()
    pairs = set()
    for row, other in zip(batch.rows, dense.rows, strict=True):
        pairs |= set(
            zip([*row.prompt_ids, *row.response_ids], [*other.prompt_ids, *other.response_ids], strict=True)
        )
    assert (
        len(pairs)
        == len({token for token, _ in pairs})
        == len({token for _, token in pairs})
        == dense.vocabulary
    )


def record(run, name="000002-0", **change):
    """A run of the starter policy with one recorded file."""
    rows = {
        "question": ["a", "a", "a", "b"], "rephrasing": [0, 0, 1, 0],
        "prompt": ["1 + 1 <sep>", "1 + 1 <sep>", "2 <sep>", "3 <sep>"],
        "reward": [1.0, 0.0, 1.0, 0.0], "truncated": [False, True, False, False], "token_ids": [[3, 1], [4], [5, 1], [6, 1]],
        "token_logprobs": [[-0.5, -0.1], [-1.0], [-0.3, -0.2], [-2.0, -0.4]],
    }  # fmt: skip
    (run / "rollouts").mkdir(parents=True, exist_ok=True)
    table = {key: values for key, values in {**rows, **change}.items() if values is not None}
    pq.write_table(pa.table(table), run / "rollouts" / f"{name}.parquet")
    OmegaConf.save({"model": {"path": str(starter_path())}}, run / "config.yaml")
    return run


def test_a_run_gives_the_batch_of_its_last_iteration_over_all_ranks(tmp_path):
    run = record(tmp_path / "run")
    record(run, "000001-0", reward=[0.0] * 4)
    record(run, "000002-1", reward=[0.25] * 4)
    batch = read_batch(run)
    assert [row.reward for row in batch.rows] == [1.0, 0.0, 1.0, 0.0] + [0.25] * 4
    assert [(row.question, row.wording) for row in batch.rows][:4] == [(0, 0), (0, 0), (0, 1), (1, 0)]
    tokenizer = AutoTokenizer.from_pretrained(str(starter_path()))
    assert batch.rows[0].prompt_ids == tokenizer("1 + 1 <sep>", add_special_tokens=False)["input_ids"]
    assert batch.rows[1].truncated
    assert [row.reward for row in read_batch(run, iteration=1).rows] == [0.0] * 4


def test_a_run_without_what_is_needed_is_refused_with_the_reason(tmp_path):
    run = record(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"iteration.*2 to 2"):
        read_batch(run, iteration=7)
    record(run, token_ids=None)
    with pytest.raises(ForeignDataError, match=r"token_ids.*callbacks\.recorder\.tokens"):
        read_batch(run)
    record(run, token_logprobs=[[-0.5, 3.0], [-1.0], [-0.3, -0.2], [-2.0, -0.4]])
    with pytest.raises(ForeignDataError, match="row 1 at sampled_logprobs"):
        read_batch(run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="recorder"):
        read_batch(tmp_path / "empty")


def test_the_small_batch_has_what_conventions_differ_in():
    batch = small_batch()
    rewards = torch.tensor([row.reward for row in batch.rows]).view(6, 4)
    assert (rewards.std(1) == 0).any(), "equal rewards"
    assert ((rewards > 0) & (rewards < 1)).any(), "graded rewards"
    assert any(row.truncated for row in batch.rows)
    assert len(set(batch.lengths)) > 5
    assert small_batch(1).rows != batch.rows
