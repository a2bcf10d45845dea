"""Rows of files, folders and datasets: what is read as it stands, and what is refused where."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import os
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tagrpo.datamodules.sources import files
from tagrpo.datamodules.sources.files import RowError, format_of, read_rows
from tagrpo.datamodules.sources.rows import answers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def read(path, *arguments, **options):
    return [row.values() for row in read_rows(path, *arguments, **options)]


def refused(path, *arguments, **options):
    """The message of the first row, or of the file, that can't be read."""
    try:
        for row in read_rows(path, *arguments, **options):
            try:
                row.values()
            except RowError as error:
                return f"{row.place}: expected {error}."
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{path} was read")


def as_csv(rows, **options):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), **options)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_list(rows):
    return json.dumps(rows, indent=2).encode()


CELL = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    st.lists(st.fixed_dictionaries({"question": CELL, "answer": CELL}), min_size=1, max_size=4), st.booleans()
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_text_arrives_as_it_stands_in_every_format(tmp_path, rows, mark):
    """Quotes, line breaks of all kinds, separators of Unicode, byte order marks, NUL, commas."""
    found = {}
    for name, content in (("a.csv", as_csv(rows)), ("a.jsonl", as_lines(rows)), ("a.json", as_list(rows))):
        (tmp_path / name).write_bytes((b"\xef\xbb\xbf" if mark else b"") + content)
        found[name] = read(tmp_path / name)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found["a.parquet"] = read(tmp_path / "a.parquet")
    whole = [row for row in rows if any(value.strip() for value in row.values())]
    assert found == {"a.csv": whole, "a.jsonl": rows, "a.json": rows, "a.parquet": rows}


def test_line_ends_of_windows_and_blank_rows_are_no_rows_but_count(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'question,answer\r\n"a\r\nb",1\r\n\r\n,\r\nc,2\r\n')
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "a"}\r\n\r\n{"question": "b"}\r\n')
    rows = list(read_rows(tmp_path / "a.csv"))
    assert [row.values() for row in rows] == [
        {"question": "a\r\nb", "answer": "1"},
        {"question": "c", "answer": "2"},
    ]
    assert [row.place for row in rows] == [
        f"{tmp_path}/a.csv, row 1 (line 2)",
        f"{tmp_path}/a.csv, row 4 (line 6)",
    ]
    assert [row.label for row in rows] == ["a-1", "a-4"]
    assert [row.place for row in read_rows(tmp_path / "a.jsonl")] == [
        f"{tmp_path}/a.jsonl, row {n}" for n in (1, 3)
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz"])
def test_packed_files_read_alike(tmp_path, name, packed):
    rows = [{"question": "a", "answer": "007"}]
    content = {"a.csv": as_csv, "a.jsonl": as_lines, "a.json": as_list}[name](rows)
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[packed]
    path = tmp_path / f"{name}{packed}"
    path.write_bytes(pack(content))
    assert read(path) == rows
    assert next(iter(read_rows(path))).label == "a-1"
    if packed:
        path.write_bytes(pack(content)[:-5])
        assert refused(path).startswith(f"{path}: ")
        path.write_bytes(content)
        assert refused(path).startswith(f"{path}: ")


def test_what_separates_cells_may_be_said(tmp_path):
    rows = [{"question": "a, b", "answer": "1,5"}]
    (tmp_path / "a.csv").write_bytes(as_csv(rows, delimiter=";"))
    assert read(tmp_path / "a.csv", delimiter=";") == rows
    (tmp_path / "a.tsv").write_bytes(as_csv(rows, delimiter="\t"))
    assert read(tmp_path / "a.tsv") == rows


def test_an_index_without_a_name_and_long_cells_are_read(tmp_path):
    (tmp_path / "a.csv").write_text(f",question,answer\n0,a,{'x' * 200_000}\n")
    assert read(tmp_path / "a.csv") == [{"column 1": "0", "question": "a", "answer": "x" * 200_000}]


BROKEN = [
    ("a.csv", b"question,answer\na,1\nb,2,3\n", "row 2 (line 3)"),
    ("a.csv", b"question,answer\na\n", "row 1 (line 2)"),
    ("a.csv", b'question,answer\n"a"b,1\n', "row 1 (line 2)"),
    ("a.csv", b'question,answer\n"a,1\n', "row 1 (line 2)"),
    ("a.csv", "question,answer\né,1\n".encode("latin1"), "line 2"),
    ("a.csv", "question,answer\na,1\n".encode("utf-16"), "row 1"),
    ("a.csv", b"question,question\na,1\n", None),
    ("a.csv", b"", None),
    ("a.jsonl", '{"question": "é"}\n'.encode("latin1"), "row 1"),
    ("a.jsonl", '{"question": "a"}\n'.encode("utf-16"), "row 1"),
    ("a.jsonl", b'{"question": "a"}\n{"question": "b"\n', "row 2"),
    ("a.jsonl", b'{"answer": 1, "answer": 2}\n', "row 1"),
    ("a.json", b'{\n "question": "a"\n}\n', "row 1"),
    ("a.json", b'[{"question": "a"},\n {"question": }]', "row 2"),
    ("a.json", b'[{"question": "a"} {"question": "b"}]', "row 2"),
    ("a.json", b'[{"question": "a"}', "row 2"),
    ("a.json", b'[{"question": "a"}, ]', "row 2"),
    ("a.json", b'[{"question": "a"}]\n[{"question": "b"}]', "row 2"),
    ("a.json", b'[{"question": "a"}, 3]', "row 2"),
    ("a.json", '[{"question": "é"}]'.encode("latin1"), "line 1"),
    ("a.json", b'[{"question": "\\ud800"}]', "row 1"),
    ("a.json", b"[" * 100_000, "row 1"),
    ("a.parquet", b"question,answer", None),
]


@pytest.mark.parametrize(("name", "content", "place"), BROKEN, ids=lambda value: repr(value)[:30])
def test_a_broken_file_is_refused_by_its_place(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    found = refused(tmp_path / name)
    assert found.startswith(f"{tmp_path / name}{', ' + place if place else ''}: "), found
    assert len(found.splitlines()) == 1


def test_a_file_that_is_one_object_is_told_from_a_broken_row(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "data": [{"question": "a"}]}, indent=1))
    assert "version, data" in refused(tmp_path / "a.json")


def test_rows_before_a_broken_one_are_read(tmp_path):
    (tmp_path / "a.json").write_text('[{"question": "a"}, {"question": ')
    first, second = read_rows(tmp_path / "a.json")
    assert first.values() == {"question": "a"}
    with pytest.raises(RowError):
        second.values()


def test_the_format_of_a_file_follows_from_its_name():
    assert [format_of(name) for name in ("A.CSV", "a.tsv.gz", "a.ndjson", "a.jsonl.xz", "b.parquet")] == [
        "csv", "csv", "json", "json", "parquet",
    ]  # fmt: skip
    assert {format_of(name) for name in ("a", "a.gz", "a.txt", "a.parquet.gz", "a.zip")} == {None}


# ---------------------------------------------------------------------- columns with types


TYPED = [
    (pa.int64(), 12345678901234567, "12345678901234567"),
    (pa.uint64(), 2**64 - 1, str(2**64 - 1)),
    (pa.int8(), -7, "-7"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float32(), 0.1, "0.1"),
    (pa.float16(), np.float16(0.1), "0.1"),
    (pa.float32(), 3.0, "3"),
    (pa.list_(pa.float32()), [0.1], "0.1"),
    (pa.decimal128(30, 2), Decimal("12345678901234567890.50"), "12345678901234567890.50"),
    (pa.date32(), date(2024, 1, 5), "2024-01-05"),
    (pa.timestamp("ns"), datetime(2024, 1, 5, 10), "2024-01-05 10:00:00"),
    (pa.string(), "007", "007"),
    (pa.large_string(), "None", "None"),
    (pa.dictionary(pa.int8(), pa.string()), "1e5", "1e5"),
]


@pytest.mark.parametrize(("kind", "value", "text"), TYPED, ids=lambda value: str(value)[:24])
def test_a_typed_column_becomes_the_shortest_text_of_its_value(tmp_path, kind, value, text):
    pq.write_table(pa.table({"answer": pa.array([value], kind)}), tmp_path / "a.parquet")
    assert answers(read(tmp_path / "a.parquet")[0]["answer"]) == (text,)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.bool_(), True),
        (pa.struct([("value", pa.int64())]), {"value": 1}),
        (pa.float64(), math.inf),
        (pa.float32(), -math.inf),
        (pa.float64(), 2.0**60),
        (pa.float32(), 2.0**25),  # the next float32 is 4 larger
        (pa.binary(), b"4"),
        (pa.list_(pa.list_(pa.int64())), [[1]]),
    ],
    ids=str,
)
def test_a_typed_value_that_is_no_answer_is_refused(tmp_path, kind, value):
    pq.write_table(pa.table({"answer": pa.array([value], kind)}), tmp_path / "a.parquet")
    with pytest.raises(RowError):
        answers(read(tmp_path / "a.parquet")[0]["answer"])


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2**24) + 1, max_value=2**24 - 1)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_float32_is_read_as_its_shortest_text(tmp_path, number):
    pq.write_table(pa.table({"answer": pa.array([number], pa.float32())}), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    assert np.float32(row["answer"]) == np.float32(number)
    assert repr(row["answer"]) == repr(float(str(np.float32(number))))


# ---------------------------------------------------------------------- folders


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    (folder := tmp_path / "mine").mkdir()
    for name in ("b.csv", "a.csv"):
        (folder / name).write_bytes(as_csv([{"question": name, "answer": "007"}]))
    rows = list(read_rows(folder))
    assert [row.values() for row in rows] == [
        {"question": "a.csv", "answer": "007"},
        {"question": "b.csv", "answer": "007"},
    ]
    assert [row.place for row in rows] == [f"{folder}/{name}.csv, row 1 (line 2)" for name in "ab"]
    assert [row.label for row in rows] == ["a-1", "b-1"]


def test_a_folder_of_several_formats_is_refused_with_their_names(tmp_path):
    (tmp_path / "a.csv").write_bytes(as_csv([{"question": "a", "answer": "1"}]))
    (tmp_path / "b.jsonl").write_bytes(as_lines([{"question": "a", "answer": "1"}]))
    found = refused(tmp_path, setting="data.train")
    assert "a.csv, b.jsonl" in found
    assert "data.train.path" in found


def test_a_folder_without_questions_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused(tmp_path / "empty", setting="data.train")


def test_of_a_folder_with_splits_one_is_named(tmp_path):
    (folder := tmp_path / "mine").mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_bytes(as_lines([{"question": split, "answer": "1"}]))
    assert "data.train.split=train" in refused(folder, setting="data.train")
    assert "train" in refused(folder, None, "dev", setting="data.train")
    assert [row["question"] for row in read(folder, None, "test")] == ["test"]
    (folder / "more.jsonl").write_bytes(as_lines([{"question": "more", "answer": "1"}]))
    assert "more.jsonl" in refused(folder, None, "test", setting="data.train")


def test_linked_files_of_the_hubs_cache_are_read(tmp_path):
    (blobs := tmp_path / "blobs").mkdir()
    (blobs / "0a1b").write_bytes(as_csv([{"question": "a", "answer": "1"}]))
    (snapshot := tmp_path / "snapshots" / "abc").mkdir(parents=True)
    os.symlink("../../blobs/0a1b", snapshot / "train.csv")
    assert read(snapshot) == [{"question": "a", "answer": "1"}]


@pytest.mark.parametrize("several", [False, True])
def test_what_datasets_has_saved_is_read(tmp_path, several):
    table = datasets.Dataset.from_dict({"question": ["a", "b"], "answer": ["007", "1"]})
    saved = datasets.DatasetDict(train=table, test=table.select([1])) if several else table
    saved.save_to_disk(str(tmp_path / "saved"))
    found = list(read_rows(tmp_path / "saved", None, "train" if several else None))
    assert [row.values()["answer"] for row in found] == ["007", "1"]
    assert found[1].place == f"{tmp_path}/saved, row 2"
    if several:
        assert "source.split=train" in refused(tmp_path / "saved")


def test_other_formats_are_read_by_datasets(tmp_path):
    (folder := tmp_path / "mine").mkdir()
    table = pa.table({"question": ["a"], "answer": ["007"]})
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    assert read(folder) == [{"question": "a", "answer": "007"}]


# ---------------------------------------------------------------------- the hub


def test_text_of_csv_and_json_files_on_the_hub_stays_text(tmp_path, monkeypatch):
    """The hub is a folder here: what `datasets` finds and downloads is replaced, the reading is not."""
    rows = [{"question": "a", "answer": "007"}, {"question": "b", "answer": "2024-01-05"}]
    (tmp_path / "blob").write_bytes(as_csv(rows))
    url = "hf://datasets/owner/name@abc/data/train.csv"

    class Builder:
        config = type("Config", (), {"data_files": {"train": [url]}})

    class Downloads:
        def __init__(self, dataset_name):
            assert dataset_name == "owner/name"

        def download(self, urls):
            assert urls == [url]
            return [str(tmp_path / "blob")]

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda name, config, data_dir: Builder)
    monkeypatch.setattr(datasets, "DownloadManager", Downloads)
    found = list(read_rows("owner/name", None, "train"))
    assert [row.values() for row in found] == rows
    assert found[0].place == "owner/name/train.csv, row 1 (line 2)"
    assert "data.train.split=train" in refused("owner/name", None, "dev", setting="data.train")


def test_other_datasets_of_the_hub_are_read_by_datasets(tmp_path, monkeypatch):
    pq.write_table(
        pa.table({"question": ["a"], "answer": pa.array([0.1], pa.float32())}), tmp_path / "a.parquet"
    )
    load = datasets.load_dataset

    class Builder:
        config = type("Config", (), {"data_files": None})

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda name, config, data_dir: Builder)
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name, config, split, data_dir: load(
            "parquet", data_files=str(tmp_path / "a.parquet"), split=split
        ),
    )
    assert read("owner/name", None, "train") == [{"question": "a", "answer": 0.1}]


def test_a_dataset_with_several_configurations_is_refused_with_the_setting(monkeypatch):
    def several(name, config, data_dir):
        raise ValueError("Config name is missing. Please pick one: ['main', 'socratic']")

    monkeypatch.setattr(datasets, "load_dataset_builder", several)
    with pytest.raises(ValueError, match=r"owner/name: .*socratic.*data\.train\.config"):
        read("owner/name", setting="data.train")


def test_a_hub_out_of_reach_is_reported_with_the_setting(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(RuntimeError, match=r"data\.train\.path"):
        read("owner/name-that-is-not-there", setting="data.train")


def test_the_files_module_imports_nothing_heavy():
    assert "datasets" not in vars(files)
    assert Path(files.__file__).name == "files.py"
