"""Text that stays text, answers that are refused, and ranges of metadata, from all kinds of files."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.datamodules.sources.files import RowError, read_rows
from tagrpo.datamodules.sources.hub import HubSource
from tagrpo.datamodules.sources.rows import answers
from tagrpo.datamodules.sources.table import TableSource

LEVELS = ["Level 1", "Level 3", "Level 5", "Level ?", "Level 4", "Level 2"]


def written(path, **columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore:another version")
def test_levels_3_to_5_of_math_are_three_levels(tmp_path):
    solutions = [rf"It is $\boxed{{{i}}}$." for i in range(6)]
    written(
        tmp_path / "math_train.jsonl", problem=[f"q{i}?" for i in range(6)], level=LEVELS, solution=solutions
    )
    source = HubSource("math_train", path=tmp_path, within={"level": [3, 5]})
    assert [group.metadata["level"] for group in source.load()] == ["Level 3", "Level 5", "Level 4"]
    assert source.report.excluded == {"outside_level": ["math_train-0", "math_train-3", "math_train-5"]}
    assert len(HubSource("math_train", path=tmp_path).load()) == 6


def test_a_stage_of_a_curriculum_is_a_range_of_success_rates(tmp_path):
    rates, levels = [0, 0.75, 0.751, 1, 1e-05], [3, 3, 3, 3, 1]
    path = written(
        tmp_path / "a.jsonl", question=list("abcde"), answer=[1] * 5, success_rate=rates, level=levels
    )
    source = TableSource(path, within={"success_rate": [0, 0.75], "level": [2, 5]})
    assert [group.question for group in source.load()] == ["a", "b"]
    assert source.report.excluded == {"outside_success_rate": ["a-3", "a-4"], "outside_level": ["a-5"]}
    assert source.report.read == 5


def test_questions_without_the_field_are_refused_by_name(tmp_path):
    path = written(
        tmp_path / "a.jsonl", question=["a", "b"], answer=[1, 2], level=["Level 3", None], x=["x", "y"]
    )
    with pytest.raises(ValueError, match=r"a\.jsonl.*`level`.*a-2"):
        TableSource(path, within={"level": [3, 5]}).load()
    with pytest.raises(ValueError, match=r"`difficulty`"):
        TableSource(path, within={"difficulty": [3, 5]}).load()


@pytest.mark.parametrize("bounds", [[3], [5, 3], [1, 2, 3]])
def test_what_is_no_range_is_refused_before_anything_is_read(tmp_path, bounds):
    path = written(tmp_path / "a.jsonl", question=["a"], answer=[1])
    for make in (lambda: TableSource(path, within={"level": bounds}),
                 lambda: HubSource("math_train", within={"level": bounds})):  # fmt: skip
        with pytest.raises(ValueError, match=r"within\.level`"):
            make()


TEXTS = [
    *(
        "007",
        "None",
        "NA",
        "nan",
        "null",
        "N/A",
        "inf",
        "true",
        "1e5",
        "1_000",
        "+5",
        "0x10",
        "12:30",
        "1,000",
    ),
    *(
        "2024-01-05",
        "2024-01-05T10:00:00",
        "01/05/2024",
        "12345678901234567890",
        "12345678901234567890123",
        "0.50",
    ),
    *("1/2", "-0", "3.10", "1.0", "٣", "{1, 2}", "[1, 2]"),
]
"""Texts that a reader which guesses types would change."""


def as_csv(folder, rows):
    pd.DataFrame(rows).to_csv(path := folder / "q.csv", index=False)
    return path


def as_json_lines(folder, rows):
    (path := folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def as_json(folder, rows):
    (path := folder / "q.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return path


def as_parquet(folder, rows):
    pq.write_table(pa.Table.from_pylist(rows), path := folder / "q.parquet")
    return path


def in_a_repository(write):
    def written(folder, rows):
        (folder / "copy" / "main").mkdir(parents=True)
        file = write(folder / "copy" / "main", rows)
        card = {
            "configs": [
                {"config_name": "main", "data_files": [{"split": "test", "path": f"main/{file.name}"}]}
            ]
        }
        (folder / "copy" / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
        return folder / "copy"

    return written


WRITERS = [as_csv, as_json_lines, as_json, as_parquet]


@pytest.mark.parametrize("texts", [[text] for text in TEXTS] + [TEXTS], ids=[*TEXTS, "all"])
def test_text_stays_text_in_every_format(tmp_path, texts):
    rows = [{"problem": f"q{n}?", "answer": text, "unique_id": text} for n, text in enumerate(texts)]
    for number, write in enumerate([*WRITERS, *map(in_a_repository, WRITERS)]):
        (folder := tmp_path / str(number)).mkdir()
        path = write(folder, rows)
        found = [row.values() for row in read_rows(path, "main" if path.is_dir() else None, "test")]
        assert [(row["problem"], row["answer"], row["unique_id"]) for row in found] == [
            (row["problem"], row["answer"], row["unique_id"]) for row in rows
        ], path


@pytest.mark.filterwarnings("ignore:another version")
@pytest.mark.parametrize("write", [as_csv, as_json_lines, as_json, as_parquet])
def test_questions_have_their_answers_as_they_stand(tmp_path, write):
    path = write(tmp_path, [{"problem": f"q{n}?", "answer": text} for n, text in enumerate(TEXTS)])
    assert [group.answer for group in HubSource("minerva", path=path).load()] == [(text,) for text in TEXTS]
    if path.suffix in (".jsonl", ".parquet"):
        source = TableSource(path, columns={"question": "problem"})
        assert [group.answer for group in source.load()] == [(text,) for text in TEXTS]


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("12345678901234567890123", "12345678901234567890123"),
        ("142.0", "142"),
        ("0.5", "0.5"),
        ("1e23", "1e23"),
        ("1e400", "1e400"),
        ("0.12345678901234567890", "0.12345678901234567890"),
        ("9007199254740993.0", "9007199254740993.0"),
        ("-7", "-7"),
    ],
)
def test_a_number_in_json_keeps_its_digits(tmp_path, written, answer):
    (tmp_path / "a.jsonl").write_text(f'{{"question": "x?", "answer": {written}}}\n')
    assert TableSource(tmp_path / "a.jsonl").load()[0].answer == (answer,)
    (tmp_path / "a.json").write_text(f'[{{"question": "x?", "answer": {written}}}]')
    assert HubSource("minerva", path=tmp_path / "a.json").load()[0].answer == (answer,)


WRONG = [{"value": "4"}, [["4"]], ["4", {"value": 4}], True, [False], math.inf, -math.inf, {}, [[]]]


@pytest.mark.filterwarnings("ignore:another version")
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_an_answer_that_is_no_text_or_number_is_refused_by_row(tmp_path, wrong):
    rows = [{"question": "a?", "answer": "4"}, {"question": "b?", "answer": wrong}]
    path = as_json_lines(tmp_path, rows)
    for read in (TableSource(path).load, HubSource("minerva", path=path).load):
        with pytest.raises(ValueError, match=r"q\.jsonl.*2") as error:
            read()
        assert len(str(error.value).splitlines()) == 1


def test_a_float_of_a_table_that_has_lost_digits_is_refused_by_row(tmp_path):
    path = as_parquet(
        tmp_path, [{"question": "a?", "answer": 4.0}, {"question": "b?", "answer": 1.2345678901234567e19}]
    )
    with pytest.raises(ValueError, match=r"q\.parquet.*2"):
        TableSource(path).load()


def test_dates_and_decimals_of_tables_are_answers_and_bytes_are_none():
    assert answers([date(2024, 1, 5), Decimal("1.50")]) == ("2024-01-05", "1.50")
    assert answers(datetime(2024, 1, 5, 10)) == ("2024-01-05 10:00:00",)
    with pytest.raises(RowError, match="bytes"):
        answers(b"4")


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_an_accepted_number_keeps_its_value(number):
    try:
        (text,) = answers(json.loads(json.dumps(number)))
    except RowError:
        assert isinstance(number, float)
        assert abs(number) >= 2**53
    else:
        assert Decimal(text) == Decimal(repr(number))


@pytest.mark.parametrize("wrong", [{"a": 1}, ["a"], True])
def test_an_id_that_is_no_text_or_number_is_refused_by_row(tmp_path, wrong):
    path = as_json_lines(tmp_path, [{"question": "a?", "answer": "4", "id": wrong}])
    with pytest.raises(ValueError, match=r"row 1: .* id .*text"):
        TableSource(path).load()


def test_every_question_has_its_place_in_the_file(tmp_path):
    path = as_json_lines(
        tmp_path, [{"question": "a?", "answer": "4", "id": "x"}, {"question": "b?", "answer": "4"}]
    )
    (source := TableSource(path)).load()
    assert source.report.places == {"x": f"{path}, row 1", "q-2": f"{path}, row 2"}


def test_a_list_with_a_row_that_is_no_object_is_refused_by_row(tmp_path):
    (tmp_path / "a.json").write_text('[{"question": "x?", "answer": 1}, 3]')
    with pytest.raises(ValueError, match=r"a\.json.*2.*JSON"):
        HubSource("minerva", path=tmp_path / "a.json").load()


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"", ""),
        (b"problem,answer\n\xff,1\n", ", line 2"),
        (b'problem,answer\n"a,1\n', r", row 1 \(line 2\)"),
    ],
)
def test_a_broken_csv_file_is_named(tmp_path, content, place):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.csv{place}: expected"):
        HubSource("minerva", path=tmp_path / "a.csv").load()
