"""Local files: what is read, and what is refused where."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
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
from tests.helpers import parsed_by_hydra

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


@given(st.lists(LINES, max_size=4), st.booleans(), st.sampled_from([".jsonl", ".json", ".csv", ".parquet"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused_by_name(tmp_path, lines, worked, suffix):
    path = tmp_path / f"q{suffix}"
    path.write_bytes(b"\n".join([b"question,answer", *lines] if suffix == ".csv" else lines))
    groups = read_or_refused(path, TableSource(path, worked=worked).load)
    assert all(group.question.strip() and group.answer and all(group.answer) for group in groups)
    assert len({group.id for group in groups}) == len(groups)
    json.dumps(groups, ensure_ascii=False).encode()  # what was read can be written again
    read_or_refused(path, lambda: read_rephrasings(path))


def read_or_refused(path, read):
    try:
        return read()
    except ValueError as refusal:
        if not re.match(
            rf"{re.escape(str(path))}(, (row|line) \d+( \(line \d+\))?)?: expected ", str(refusal)
        ):
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


# ---------------------------------------------------------------------- columns


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_columns_are_mapped_and_all_others_are_kept(tmp_path, suffix):
    rows = [{"Problem text": "1 + 1?", "final": "007", "key": "a", "ways": '["one and one?"]', "level": "2"}]
    path = tmp_path / f"q{suffix}"
    if suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows[0] if suffix == ".jsonl" else rows))
    columns = {
        "question": "Problem text",
        "answer": "final",
        "id": "key",
        "rephrasings": "ways",
        "kinds": None,
    }
    (group,) = TableSource(path, columns=columns).load()
    assert group == ("a", "1 + 1?", ("one and one?",), ("007",), {"level": "2"}, ())


def test_a_column_may_lie_within_another(tmp_path):
    row = {"prompt": "1 + 1?", "reward_model": {"ground_truth": "2", "style": "rule"}}
    path = write(tmp_path / "q.jsonl", row)
    columns = {"question": "prompt", "answer": "reward_model.ground_truth"}
    (group,) = TableSource(path, columns=columns).load()
    assert (group.answer, group.metadata) == (("2",), {"reward_model": row["reward_model"]})


def test_a_field_that_is_none_of_a_question_is_refused(tmp_path):
    path = write(tmp_path / "q.jsonl", {"question": "x", "answer": "1"})
    with pytest.raises(ValueError, match="`columns`.*level"):
        TableSource(path, columns={"level": "level"})
    with pytest.raises(ValueError, match="`delimiter`"):
        TableSource(path, delimiter=";;")
    with pytest.raises(ValueError, match="`path` or `dataset`"):
        TableSource()


@pytest.mark.shell
@pytest.mark.parametrize(
    ("header", "field", "override"),
    [
        ("prompt,answer", "question", "data.train.columns.question=prompt"),
        ("question,Solution", "answer", "data.train.columns.answer=Solution"),
        ("question,Right Answer", "answer", """'data.train.columns.answer="Right Answer"'"""),
        ("question;answer", "question", "data.train.delimiter='\";\"'"),
    ],
)
def test_a_missing_column_is_refused_with_an_override_that_reads_the_file(tmp_path, header, field, override):
    path = write(tmp_path / "q.csv", header, "a;1" if ";" in header else "a,1")
    source = TableSource(path)
    source.setting = "data.train"
    with pytest.raises(ValueError, match=rf"row 1 \(line 2\): .* {field} in `{field}`") as error:
        source.load()
    assert override in str(error.value)
    (word,) = shlex.split(override)
    parsed = parsed_by_hydra(word)
    option = {"data.train.delimiter": "delimiter"}.get(parsed.key_or_group, "columns")
    value = str(parsed.value())
    arguments = {option: value if option == "delimiter" else {field: value}}
    assert TableSource(path, **arguments).load()[0].answer == ("1",)


# ---------------------------------------------------------------------- conversations

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "1 + 1?"}
ASSISTANT = {"role": "assistant", "content": "2"}


@pytest.mark.parametrize(
    ("turns", "question"),
    [
        ([USER], "1 + 1?"),
        ([SYSTEM, USER], "Be brief.\n\n1 + 1?"),
        ([{"role": "system", "content": ""}, USER], "1 + 1?"),
        ([{"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]}], "1 + 1?"),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_list_of_turns_is_a_question_with_all_of_its_text(tmp_path, turns, question, suffix):
    path = tmp_path / f"q{suffix}"
    rows = [{"prompt": turns, "answer": "2"}]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, *rows)
    (group,) = TableSource(path, columns={"question": "prompt"}).load()
    assert (group.question, group.metadata) == (question, {})


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        ([], "none"),
        ([SYSTEM], "system"),
        ([USER, ASSISTANT], "user, assistant"),
        ([USER, ASSISTANT, USER], "user, assistant, user"),
        ([USER, SYSTEM], "user, system"),
        ([{"role": "human", "content": "1 + 1?"}], "human"),
        ([{"from": "human", "value": "1 + 1?"}], "`role`"),
        ([[USER]], "`role`"),
        (["1 + 1?"], "`role`"),
        ([{"role": "user", "content": None}], "`content`"),
        ([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}], "`content`"),
        ([{"role": "user", "content": " "}], "empty"),
        (USER, "dict"),
        (7, "int"),
        (None, "NoneType"),
        ("  ", "empty"),
    ],
)
def test_a_prompt_that_is_no_question_is_refused_by_row(tmp_path, turns, found):
    path = write(tmp_path / "q.jsonl", {"question": "x", "answer": "1"}, {"question": turns, "answer": "2"})
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}, row 2: expected .*{found}"):
        TableSource(path).load()


# ---------------------------------------------------------------------- more than one of everything


def test_a_folder_of_files_is_one_table_with_distinct_ids(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / "mine" / folder).mkdir(parents=True)
        write(tmp_path / "mine" / folder / "q.jsonl", {"question": f"{folder}?", "answer": "1"})
    (source := TableSource(tmp_path / "mine")).load()
    assert [(group.id, group.question) for group in source.load()] == [("a/q-1", "a?"), ("b/q-1", "b?")]
    assert source.report.places["b/q-1"] == f"{tmp_path}/mine/b/q.jsonl, row 1"


def test_an_id_that_two_files_have_is_refused_with_both_places(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "mine" / f"{name}.jsonl", {"id": 7, "question": f"{name}?", "answer": "1"})
    with pytest.raises(ValueError, match=r"b\.jsonl, row 1: .*'7'.*a\.jsonl, row 1"):
        TableSource(tmp_path / "mine").load()


def test_a_copy_of_a_dataset_of_the_hub_is_found_by_its_name(tmp_path):
    for place in ("gsm8k", "datasets--openai--gsm8k/snapshots/abc"):
        (folder := tmp_path / place / "main").mkdir(parents=True)
        for split in ("train", "test"):
            row = {"question": f"{split}?", "answer": "3 + 4 = 7\n#### 7"}
            pq.write_table(pa.Table.from_pylist([row]), folder / f"{split}-00000-of-00001.parquet")
        files = [{"split": split, "path": f"main/{split}-*"} for split in ("train", "test")]
        card = {"configs": [{"config_name": "main", "data_files": files}]}
        (tmp_path / place / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    options = {"dataset": "openai/gsm8k", "config": "main", "split": "test", "worked": True}
    for path in (tmp_path, tmp_path / "datasets--openai--gsm8k" / "snapshots" / "abc"):
        (group,) = TableSource(path, **options).load()
        assert (group.question, group.answer) == ("test?", ("7",))
    with pytest.raises(FileNotFoundError, match="openai/other"):
        TableSource(tmp_path, dataset="openai/other").load()


def test_a_table_without_rows_is_refused(tmp_path):
    for name, content in (("q.jsonl", ""), ("q.json", "[]"), ("q.csv", "question,answer\n,\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=rf"{name}: "):
            TableSource(tmp_path / name).load()


def test_an_answer_that_is_none_is_refused_by_row_with_its_value(tmp_path):
    values = [math.nan, math.inf, True, {"value": 1}, [["4"]], [True], None]
    rows = [{"question": f"{n}?", "answer": value} for n, value in enumerate(values)]
    path = write(tmp_path / "q.jsonl", {"question": "x", "answer": "007"}, *rows)
    with pytest.raises(ValueError, match="row 2") as error:
        TableSource(path).load()
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{path}, row {n}" for n in range(2, 9)]
    for line, shown in zip(lines, ["nan", "inf", "True", "'value': 1", "'4'", "True", "empty"], strict=True):
        assert shown in line
