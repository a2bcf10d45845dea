"""Local files: what is read, and what is refused where."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tagrpo.datamodules.sources.rephrasings import read_rephrasings, with_rephrasings
from tagrpo.datamodules.sources.table import TableSource

DATA = Path(__file__).parents[3].parent / "shared" / "data"


def write(path, *rows):
    lines = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n")
    return path


def test_rows_become_groups(tmp_path):
    path = write(
        tmp_path / "questions.jsonl",
        {"id": "a", "question": "1 + 1 ?", "answer": 2.0, "rephrasings": ["what is 1 + 1 ?"], "level": 3},
        "",
        {"question": "x ?", "answer": ["1/2", "0.5"]},
    )
    first, second = TableSource(path).load()
    assert first == ("a", "1 + 1 ?", ("what is 1 + 1 ?",), ("2",), {"level": 3}, ())
    assert second == ("questions-3", "x ?", (), ("1/2", "0.5"), {}, ())


def test_rephrasings_have_the_kinds_that_their_row_names(tmp_path):
    row = {"question": "1 + 1 ?", "answer": "2", "rephrasings": ["add 1 to 1", "1 + 1: 2 or 3 ?"]}
    path = write(tmp_path / "q.jsonl", {**row, "kinds": ["wording", "format"]})
    (group,) = TableSource(path).load()
    assert (group.kinds, group.metadata) == (("wording", "format"), {})
    joined, _ = with_rephrasings([group.select_rephrasings([])], read_rephrasings(path))
    assert joined == [group]
    for kinds, message in (
        (["wording"], "a kind for each of its 2"),
        ("format", "a list of names"),
        ([1, 2], "names"),
    ):
        write(path, {**row, "kinds": kinds})
        for read in (TableSource(path).load, lambda: read_rephrasings(path)):
            with pytest.raises(ValueError, match=rf"row 1: .*{message}"):
                read()


def test_parquet_reads_like_json_lines(tmp_path):
    rows = [{"id": "a", "problem": "1 + 1 ?", "answer": "2", "rephrasings": ["b", "c"]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    expected = TableSource(write(tmp_path / "q.jsonl", *rows), columns={"question": "problem"}).load()
    assert TableSource(tmp_path / "q.parquet", columns={"question": "problem"}).load() == expected


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"question": ', r"row 2: expected a JSON object"),
        (
            b'{"question": "\xff", "answer": "1"}',
            r"row 2: expected a JSON object in UTF-8, but UnicodeDecodeError",
        ),
        (
            r'{"id": "\ud83d", "question": "x", "answer": "1"}',
            r"row 2: .*: surrogates not allowed",
        ),
        (r'{"question": "x", "answer": ["1", "\uDC00"]}', r"row 2: .*: surrogates not allowed"),
        ("[" * 100_000, r"row 2: expected a JSON object in UTF-8, but RecursionError"),
        (
            '{"question": "x", "answer": ' + "9" * 5000 + "}",
            r"row 2: expected a JSON object in UTF-8, but ValueError",
        ),
        ('{"question": "x", "answer": NaN}', r"row 2: .*`answer`"),
        ("[1]", r"row 2: expected a JSON object, but got list"),
        (
            {"problem": "x", "answer": "1"},
            r"row 2: expected a question in `question`, .* problem, answer.* source.columns.question=problem",
        ),
        ({"question": "x", "answer": "  "}, r"row 2: .*`answer`"),
        ({"question": "x"}, r"row 2: .*`answer`"),
        ({"id": "ok", "question": "x", "answer": "1"}, r"row 2: expected a new id, but 'ok'"),
        ({"question": "x", "answer": "1", "rephrasings": "y"}, r"row 2: expected a list of texts"),
    ],
)
def test_a_broken_row_is_named(tmp_path, bad, message):
    path = write(tmp_path / "q.jsonl", {"id": "ok", "question": "x", "answer": "1"}, bad)
    with pytest.raises(ValueError, match=message) as error:
        TableSource(path).load()
    assert str(path) in str(error.value)


def test_a_worked_solution_without_its_mark_is_not_called_empty(tmp_path):
    source = TableSource(write(tmp_path / "q.jsonl", {"question": "x", "answer": "It is 42."}), worked=True)
    with pytest.raises(ValueError, match=r"`answer`.*`####`.*source.worked=false"):
        source.load()


def test_all_bad_rows_are_in_one_report_and_of_many_the_first_ten(tmp_path):
    rows = [{"question": f"{i} ?", "answer": "" if i % 2 else "1"} for i in range(206)]
    path = write(tmp_path / "q.jsonl", *rows, "{")
    with pytest.raises(ValueError, match="row 2: .*`answer`") as error:
        TableSource(path).load()
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines[:10]] == [f"{path}, row {row}" for row in range(2, 22, 2)]
    assert lines[10:] == ["and 94 more."]  # of 103 empty answers and a broken line


def test_a_whole_character_may_be_spelled_as_a_pair_of_surrogates(tmp_path):
    path = write(tmp_path / "q.jsonl", r'{"id": "\ud83d\ude00", "question": "x", "answer": "1"}')
    assert TableSource(path).load()[0].id == "😀"


def test_a_row_without_an_id_is_called_after_its_place(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"id": None, "question": "x", "answer": 0},
        {"id": 0, "question": "y", "answer": 1},
    )
    assert [(group.id, group.answer) for group in TableSource(path).load()] == [
        ("q-1", ("0",)),
        ("0", ("1",)),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = write(tmp_path / "q.jsonl", b'\xef\xbb\xbf{"question": "x", "answer": "1"}')
    assert TableSource(path).load()[0].question == "x"


LINES = st.binary(max_size=30) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["question", "answer", "id", "rephrasings", "x"]), inner)
    ),
    max_leaves=8,
).map(lambda row: json.dumps(row).encode())


@given(st.lists(LINES, max_size=4), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused_by_name(tmp_path, lines, worked):
    path = tmp_path / "q.jsonl"
    path.write_bytes(b"\n".join(lines))
    groups = read_or_refused(path, TableSource(path, worked=worked).load)
    assert all(group.question.strip() and group.answer and all(group.answer) for group in groups)
    assert len({group.id for group in groups}) == len(groups)
    json.dumps(groups, ensure_ascii=False).encode()  # what was read can be written again
    read_or_refused(path, lambda: read_rephrasings(path))


def read_or_refused(path, read):
    try:
        return read()
    except ValueError as refusal:
        if not re.match(rf"{re.escape(str(path))}(, (row|line) \d+)?: expected ", str(refusal)):
            raise
        return []


def test_worked_solutions_give_their_final_answer(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"question": "x", "answer": "So $x=\\boxed{\\frac{1}{2}}$."},
        {"question": "y", "answer": "6*7=42\n#### 42"},
    )
    groups = TableSource(path, worked=True).load()
    assert [group.answer for group in groups] == [("\\frac{1}{2}",), ("42",)]


def test_a_missing_file_and_an_unknown_kind_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl.*`path`"):
        TableSource(tmp_path / "none.jsonl")
    for name in ("q.txt", "q.xlsx", "q.jsonl.zip", "q.parquet.gz"):
        with pytest.raises(ValueError, match=rf"{name}"):
            TableSource(write(tmp_path / name, "a"))


@pytest.mark.skipif(not DATA.exists(), reason="needs the benchmark files beside the project")
@pytest.mark.parametrize(
    ("name", "rows"), [("amc", 83), ("math500", 500), ("minerva", 272), ("olympiadbench", 675)]
)
def test_benchmarks_load_whole(name, rows):
    groups = TableSource(DATA / f"{name}.jsonl", columns={"question": "problem"}).load()
    assert len(groups) == rows
    assert all(group.answer and group.question for group in groups)


def test_dates_decimals_and_bytes_of_parquet_files_are_text(tmp_path):
    row = {
        "question": "1 + 1 ?",
        "answer": "2",
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "raw": b"ab",
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "q.parquet")
    (group,) = TableSource(tmp_path / "q.parquet").load()
    assert {name: group.metadata[name] for name in ("day", "price", "raw")} == {
        "day": "2026-01-02", "price": "1.50", "raw": "b'ab'",
    }  # fmt: skip
