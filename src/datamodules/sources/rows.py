"""Read tables of questions from files and from the hub, read fields of rows, and select rows by numbers.

Text stays text: `datasets` would read `007` in a CSV file as 7, `NA` as missing, and `2024-01-05` in JSON
lines as a time. Local JSON is therefore read here, and every column of a local CSV file is text.
"""

import codecs
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

from ...types import QuestionGroup

Ranges = Mapping[str, Sequence[float]]
"""Field → its smallest and largest value, both included."""
Columns = Mapping[str, Sequence[str]]
"""Field → names of the columns in which the field may be."""
FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_EXACT = 2**53
"""Smallest whole number from which a 64-bit float can't distinguish neighbouring whole numbers."""


def locate(path: str | Path, name: str, repository: str = "") -> Path:
    """Return the file or folder at `path` that contains the dataset `name`.

    A file is returned as given. In a folder, the file `<name>.jsonl`, `.json`, `.parquet` or `.csv` is
    returned, or the folder `<name>`, a copy of the hub's repository. Otherwise the folder itself is taken as
    such a copy; if `repository` (`owner/name`) is given, only if the folder's path has the name of the
    dataset or of the repository.

    Raises:
        FileNotFoundError: if there is no such file or folder.
    """
    path = Path(path)
    candidates = [*(path / f"{name}{suffix}" for suffix in FORMATS), path / name]
    copies = {
        name.casefold(),
        repository.rpartition("/")[2].casefold(),
        repository.replace("/", "--").casefold(),
    }
    parts = {part.casefold().removeprefix("datasets--") for part in path.resolve().parts}
    if path.is_file() or (path.is_dir() and (not repository or copies & parts)):
        candidates.append(path)
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise FileNotFoundError(
        f"Expected the dataset `{name}` at {path}, but there is neither such a file, nor {candidates[0]} (or "
        f".json, .parquet, .csv), nor a folder {path / name} with a copy of "
        f"{repository or 'its repository'}. Put one of them there, or set its `path` to null to read it from "
        "the hub."
    )


def read_table(
    origin: str | Path,
    config: str | None,
    split: str,
    columns: Sequence[str] | None = None,
    folder: str | None = None,
) -> Iterable[Mapping[str, Any]]:
    """Read the rows of a file, of a folder in the hub's layout or, given a name, of a dataset on the hub.

    `config`, `split`, `columns` (None reads all) and `folder` apply to repositories. Local copies are
    streamed: otherwise `datasets` would make another copy, and confuse two copies of one repository. Cells of
    local JSON and CSV files are returned unchanged; on the hub, `datasets` guesses the types of such files.
    """
    import datasets

    if isinstance(origin, Path):
        if not origin.is_dir():
            return _read_files([origin], split)
        files = _files_of(origin, config, split, folder)
        if files:
            return _read_files(files, split)
    options: dict[str, Any] = {"data_dir": folder, **({"columns": list(columns)} if columns else {})}
    table: Iterable[Mapping[str, Any]]
    if isinstance(origin, Path):
        table = datasets.load_dataset(os.fspath(origin), config, split=split, streaming=True, **options)
        return table
    try:
        table = datasets.load_dataset(origin, config, split=split, **options)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise RuntimeError(
            f"Expected to read the dataset {origin} (configuration {config or 'default'}, split {split}), "
            f"but: {error} Check that the machine is online, that HF_HUB_OFFLINE is not set, and that the "
            "account of HF_TOKEN has access where the dataset asks for consent. Or download it elsewhere "
            "and set `path` to the copy."
        ) from error
    return table


def _files_of(repository: Path, config: str | None, split: str, folder: str | None) -> list[Path]:
    """Return the JSON or CSV files of a split in a local repository; empty if it has other formats."""
    import datasets

    builder = datasets.load_dataset_builder(os.fspath(repository), config, data_dir=folder)
    found = builder.config.data_files or {}
    files = [Path(file) for file in found.get(split, ())]
    guessed = all(file.suffix in FORMATS and FORMATS[file.suffix] != "parquet" for file in files)
    return files if guessed else []


def _read_files(files: Sequence[Path], split: str) -> Iterable[Mapping[str, Any]]:
    """Read local files of one format; JSON and CSV files are read into memory whole."""
    import datasets

    kind = FORMATS.get(files[0].suffix)
    if kind is None:
        raise ValueError(f"Expected a file of one of {', '.join(FORMATS)}, but got {files[0]}.")
    if kind == "parquet":
        data_files = {split: [os.fspath(file) for file in files]}
        table: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            kind, data_files=data_files, split=split, streaming=True
        )
        return table
    read = _csv_rows if kind == "csv" else _json_rows
    rows = list(chain.from_iterable(map(read, files)))
    columns = dict.fromkeys(chain.from_iterable(rows))
    return [{name: row.get(name) for name in columns} for row in rows]


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    """Read a CSV file with every cell as text."""
    import pandas as pd

    try:
        table = pd.read_csv(path, dtype=str, na_filter=False, index_col=False)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a CSV file in UTF-8, but {type(error).__name__}: {error}."
        ) from error
    return [{str(name): cell for name, cell in row.items()} for row in table.to_dict("records")]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """Read a list of JSON objects, or JSON lines.

    Raises:
        ValueError: if the content is neither; the message names file and row.
    """
    rows: list[dict[str, Any]] = []
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8).lstrip()
    if not content.startswith(b"["):
        read_rows(path, lambda _, row: rows.append(row))
        return rows
    try:
        found = _loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON in UTF-8, but {type(error).__name__}: {error}.") from error
    wrong = []
    for number, row in enumerate(found, start=1):
        if isinstance(row, dict):
            rows.append(row)
        else:
            wrong.append(f"{path}, row {number}: expected a JSON object, but got {type(row).__name__}.")
    refuse(wrong)
    return rows


class RowError(ValueError):
    """Error for a row that is not as expected; the message says what was expected and what was found."""


def refuse(mistakes: Sequence[str], remedy: str = "") -> None:
    """Raise a ValueError that lists the first ten mistakes and the remedy, if there are mistakes."""
    if mistakes:
        more = [f"and {len(mistakes) - 10} more."] if len(mistakes) > 10 else []
        last = [remedy] if remedy else []
        raise ValueError("\n".join([*mistakes[:10], *more, *last]))


def read_rows(path: Path, take: Callable[[int, dict[str, Any]], None]) -> None:
    """Call `take` with the number and the content of each row of a Parquet file or of JSON lines in UTF-8.

    Rows are counted from 1. Empty lines are skipped.

    Raises:
        ValueError: if a line is not a JSON object, or `take` raises a `RowError`; the message names file and
            row of each.
    """
    wrong = []
    for number, row in enumerate(_rows(path), start=1):
        try:
            if isinstance(row, dict) or row.strip():
                take(number, row if isinstance(row, dict) else _parsed(row))
        except RowError as error:
            wrong.append(f"{path}, row {number}: expected {error}.")
    refuse(wrong)


def _rows(path: Path) -> Iterator[bytes | dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        # dates and bytes as text
        yield from json.loads(json.dumps(pq.read_table(path).to_pylist(), default=str))
        return
    with path.open("rb") as file:  # a file in text mode would not name the row with a broken encoding
        yield next(file, b"").removeprefix(codecs.BOM_UTF8)
        yield from file


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = _loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested brackets
        raise RowError(f"a JSON object in UTF-8, but {type(error).__name__}: {error}") from error
    if not isinstance(row, dict):
        raise RowError(f"a JSON object, but got {type(row).__name__}")
    return row


def _loads(text: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: if a text can be spelled in JSON but not encoded in UTF-8.
    """
    value = json.loads(text.decode(), parse_float=_number_or_text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _number_or_text(written: str) -> float | str:
    """Return a number, or its text if a float would change the digits.

    >>> _number_or_text("142.0"), _number_or_text("1e23"), _number_or_text("0.12345678901234567890")
    (142.0, '1e23', '0.12345678901234567890')
    """
    number = float(written)
    same = abs(number) < _EXACT and Decimal(repr(number)) == Decimal(written)
    return number if same else written


def read_fields(
    rows: Iterable[Mapping[str, Any]], origin: str | Path, required: Columns, optional: Columns
) -> Iterator[dict[str, Any]]:
    """Yield the fields of each row; the field `a.b` is key b of column a.

    Each field is read from the first of its columns that the first row has.

    Raises:
        ValueError: if a column of a `required` field is missing; the message names the field and the
            `origin`.
    """
    columns: dict[str, str] = {}
    for row in rows:
        flat = dict(row)
        for name, value in row.items():
            if isinstance(value, Mapping):
                flat |= {f"{name}.{key}": found for key, found in value.items()}
        if not columns:
            for field, names in {**required, **optional}.items():
                there = [name for name in names if name in flat]
                if there:
                    columns[field] = there[0]
            for field in [field for field in required if field not in columns]:
                raise ValueError(
                    f"{origin}: expected {field} in one of the columns {', '.join(required[field])}, but "
                    f"there are {', '.join(flat)}."
                )
        yield {field: flat.get(name) for field, name in columns.items()}


def question_text(field: Any) -> str:
    """Return the question in a field: its text, or the user's last turn if the field is a conversation.

    >>> question_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1 + 1? "}])
    '1 + 1?'
    >>> question_text(" 1 + 1?"), question_text(None)
    ('1 + 1?', '')
    """
    if isinstance(field, list):
        turns = [
            turn.get("content") for turn in field if isinstance(turn, Mapping) and turn.get("role") == "user"
        ]
        field = turns[-1] if turns else None
    return field.strip() if isinstance(field, str) else ""


def is_known(field: Any) -> bool:
    """Check whether a field has a value: not None, and not NaN, which tables without nulls use for None."""
    return field is not None and not (isinstance(field, float) and math.isnan(field))


def answers(field: Any) -> tuple[str, ...]:
    """Return the accepted answers in a field with one answer or a list of answers, as texts.

    Empty and unknown answers are left out.

    Raises:
        RowError: if an answer is not a text, a number or a date, such as an object, a list within a list,
            true or infinity; or if it is a float so large that its last digits are lost.

    >>> answers(142.0), answers([" 2 ", ""]), answers(None), answers(float("nan"))
    (('142',), ('2',), (), ())
    """
    found = field if isinstance(field, list) else [field]
    texts = [_answer_text(value) for value in found if is_known(value)]
    return tuple(text for text in texts if text)


def _answer_text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and math.isfinite(value):
        if abs(value) >= _EXACT:
            raise RowError(
                f"an answer with all its digits, but got the float {value!r}, which has lost them. Write it as text"
            )
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, int | Decimal | date | time) and not isinstance(value, bool):
        return str(value)
    raise RowError(
        "an answer that is text, a number, or a list of accepted answers, but got "
        f"{type(value).__name__} {repr(value)[:80]}. Write it as text"
    )


def row_id(field: Any) -> str | None:
    """Return the id in a field as text; None if the field is unknown or empty.

    Raises:
        RowError: if the id is neither text nor number.
    """
    if not is_known(field) or field == "":
        return None
    if isinstance(field, bool) or not isinstance(field, str | int | float):
        raise RowError(f"an id that is text or a number, but got {type(field).__name__} {repr(field)[:80]}")
    return str(field)


def kinds_of(row: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the field `kinds` of a row with `count` rephrasings; empty if the row has none."""
    kinds = row.get("kinds") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind for kind in kinds):
        raise RowError(f"a list of names in `kinds`, but got {kinds!r}")
    if kinds and len(kinds) != count:
        raise RowError(f"a kind for each of its {count} rephrasings in `kinds`, but got {kinds!r}")
    return tuple(kinds)


def check_ranges(within: Ranges) -> None:
    """Check that all ranges are [smallest, largest]; raise a ValueError otherwise."""
    for field, bounds in within.items():
        if len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise ValueError(
                f"Expected the source's `within.{field}` to be [smallest, largest], such as [3, 5], but got {bounds}."
            )


def select(
    groups: Sequence[QuestionGroup], within: Ranges, origin: object
) -> tuple[list[QuestionGroup], dict[str, list[str]]]:
    """Select the questions whose fields all lie `within` their ranges.

    Returns these questions, and `outside_<field>` → ids of the others, each under the first field that
    excludes it.

    A field is a number, or a text with a number, such as `Level 3`. A text without a number (`Level ?`) lies
    outside.
    """
    kept = list(groups)
    excluded = {}
    for field, (low, high) in within.items():
        inside = {group.id for group in kept if low <= _number(group, field, origin) <= high}
        outside = [group.id for group in kept if group.id not in inside]
        if outside:
            excluded[f"outside_{field}"] = outside
        kept = [group for group in kept if group.id in inside]
    return kept, excluded


def _number(group: QuestionGroup, field: str, origin: object) -> float:
    value = group.metadata.get(field)
    if value is None:
        raise ValueError(
            f"{origin}: expected `{field}` of every question, because the source's `within` asks for it, but "
            f"{group.id} has {', '.join(group.metadata) or 'no metadata'}. Take a file that has it, or drop "
            "it."
        )
    found = re.search(r"-?\d+(\.\d+)?", value) if isinstance(value, str) else [value]
    return float(found[0]) if found else math.nan
