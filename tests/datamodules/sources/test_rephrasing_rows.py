"""Rows in the authors' layout, in both forms in which such data is kept."""

from __future__ import annotations

import math

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.datamodules.sources.base import fingerprint
from tagrpo.datamodules.sources.rephrasing_rows import RephrasingRowsSource
from tagrpo.datamodules.sources.rows import RowError, answers, question_text

INSTRUCTION = "Think first.\nPut the answer in \\boxed{}.\n"
TABLE = [  # index, sub_index, question, answer: two questions of two rows each; one is filled up
    (7, 0, "What is 1 + 1?", "2"),
    (3, 1, "Solve for x:\nx = 5", "5"),
    (7, 2, "Sum of 1 and 1?", "2"),
    (7, 1, "1 plus 1 is?", "2"),
    (3, 0, "Let x = 5.\nFind x.", "5"),
    (3, 2, "", "5"),
]
EXPECTED = [
    ("7", "What is 1 + 1?", ("1 plus 1 is?", "Sum of 1 and 1?"), ("2",), {}, ()),
    ("3", "Let x = 5.\nFind x.", ("Solve for x:\nx = 5",), ("5",), {}, ()),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def table_row(index, sub_index, question, answer):
    return {"index": index, "sub_index": sub_index, "question": question, "answer": answer}


def verl_row(index, sub_index, question, answer):
    return {
        "data_source": "lighteval/MATH",
        "prompt": [{"role": "user", "content": INSTRUCTION + question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {
            "split": "train",
            "index": index,
            "sub_index": sub_index,
            "type": "train" if question else "pad",
        },
    }


def source_of(tmp_path, rows):
    folder = tmp_path / "MATH-A9-U"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    return RephrasingRowsSource(path=tmp_path)


def test_rows_of_one_index_become_one_group_in_the_order_of_sub_index(tmp_path):
    source = source_of(tmp_path, [verl_row(*row) for row in TABLE])
    assert source.load() == EXPECTED
    assert source.report.read == 6
    assert "6 rows are 2 questions; 1 rows without question or index left out" in source.report.notes
    assert any("Put the answer in" in note for note in source.report.notes)


def test_the_plain_table_reads_like_the_parquet_files_made_from_it(tmp_path):
    source = source_of(tmp_path, [table_row(*row) for row in TABLE])
    assert source.load() == EXPECTED
    assert any(fingerprint(source.load()) in note for note in source.report.notes)


def test_rows_without_a_position_stay_in_the_order_of_the_file(tmp_path):
    rows = [verl_row(index, 0, text, "1") for index, text in ((1, "b"), (1, "a"), (2, "c"), (1, "d"))]
    for row in rows:
        del row["extra_info"]["sub_index"]
    groups = source_of(tmp_path, rows).load()
    assert [(g.question, g.rephrasings) for g in groups] == [("b", ("a", "d")), ("c", ())]


def test_rows_of_one_question_with_different_answers_are_left_out_and_named(tmp_path):
    rows = [(1, 0, "a", "1"), (1, 1, "b", "2"), (2, 0, "c", ""), (3, 0, "d", "3")]
    source = source_of(tmp_path, [verl_row(*row) for row in rows])
    assert [group.id for group in source.load()] == ["3"]
    assert source.report.excluded == {"answers_differ": ["1"], "without_answer": ["2"]}


def test_a_table_without_an_index_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"extra_info.index"):
        source_of(tmp_path, [{"question": "a", "answer": "1"}]).load()


def test_rows_without_an_index_are_left_out(tmp_path):
    rows = [
        table_row(*row) for row in [(1.0, None, "a?", "1"), (None, 0.0, "b?", "2"), (1.0, 0.0, "c?", "1")]
    ]
    source = source_of(tmp_path, rows)
    assert [(group.question, group.rephrasings) for group in source.load()] == [("a?", ("c?",))]
    assert "3 rows are 1 questions; 1 rows without question or index left out" in source.report.notes


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "content"]), inner | st.just("user"), max_size=2)
        ),
        max_leaves=6,
    )
)
def test_any_field_holds_a_question_and_answers_or_is_refused(field):
    assert isinstance(question_text(field), str)
    values = field if isinstance(field, list) else [field]
    plain = all(v is None or type(v) in (int, str) or is_small_float(v) for v in values)
    try:
        texts = answers(field)
    except RowError:
        assert not plain
    else:
        assert plain
        assert all(isinstance(text, str) and text for text in texts)


def is_small_float(value):
    return isinstance(value, float) and (math.isnan(value) or abs(value) < 2**53)


def test_positions_in_text_are_numbers_and_others_are_refused_by_row(tmp_path):
    rows = [{"question": f"q{n}?", "answer": "1", "index": "7", "sub_index": n} for n in ("10", "9", "")]
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    assert RephrasingRowsSource(path).load() == [("7", "q?", ("q9?", "q10?"), ("1",), {}, ())]
    pd.DataFrame([{**rows[0], "sub_index": "first"}]).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"rows\.csv.*1.*`sub_index`"):
        RephrasingRowsSource(path).load()
