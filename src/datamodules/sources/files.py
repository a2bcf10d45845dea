"""Read rows from files, from folders and from datasets of the Hugging Face hub; text stays text.

A reader that guesses types would read `007` in a CSV file as 7, `NA` as a missing value and `2024-01-05` in
JSON lines as a time. Cells of CSV files are therefore text, and JSON is parsed row by row. `datasets` finds
the files of a folder or of the hub, and reads all other formats.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...foreign import printable

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
"""Suffix of a file → its format. `.gz`, `.bz2` or `.xz` may follow the suffix of a JSON or CSV file."""
EXACT = 2**53
"""Smallest whole number from which a 64-bit float can't distinguish neighbouring whole numbers."""
_NARROW = {16: 2**11, 32: 2**24}
"""Bits of a narrower float → smallest whole number from which it can't distinguish neighbours."""
_OPENED_BY: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
_SPACE = re.compile(r"[ \t\n\r]*")
_FILES_OF_DATASETS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


class RowError(ValueError):
    """Error for a row that is not as expected; the message says what was expected and what was found."""


@dataclass(frozen=True)
class Row:
    """Row of a table."""

    place: str
    """File and row, counted from 1, for messages."""
    label: str
    """Name of the row within its table: file name without suffix, and row number."""
    content: Mapping[str, Any] | RowError
    """Column → value, or the reason why the row can't be read."""

    def values(self) -> dict[str, Any]:
        """Return the values of the row by column.

        Raises:
            RowError: if the row can't be read.
        """
        if isinstance(self.content, RowError):
            raise self.content
        return dict(self.content)


def refuse(mistakes: Sequence[str], remedy: str = "") -> None:
    """Raise a ValueError that lists the first ten mistakes and the remedy, if there are mistakes."""
    if mistakes:
        more = [f"and {len(mistakes) - 10} more."] if len(mistakes) > 10 else []
        last = [remedy] if remedy else []
        raise ValueError("\n".join([*mistakes[:10], *more, *last]))


def take_rows(rows: Iterable[Row], take: Callable[[Row], None]) -> None:
    """Call `take` with each row.

    Raises:
        ValueError: if rows can't be read, or `take` raises a `RowError`; the message lists the first ten by
            file and row.
    """
    wrong = []
    for row in rows:
        try:
            take(row)
        except RowError as error:
            wrong.append(f"{row.place}: expected {error}.")
    refuse(wrong)


def read_rows(
    origin: str | Path,
    config: str | None = None,
    split: str | None = None,
    *,
    folder: str | None = None,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    setting: str = "source",
) -> Iterator[Row]:
    """Yield the rows of a file, of a folder or, if `origin` is a text, of a dataset on the hub.

    A folder may have files of one format (read in the order of their names), the layout of a dataset on the
    hub, or a dataset that `save_to_disk` wrote. Empty lines are skipped, but counted.

    Args:
        origin: File or folder; a text is the name of a dataset on the hub, `owner/name`.
        config: Configuration of the dataset; None takes the only one.
        split: Split of the dataset; None takes the only one.
        folder: Folder inside the dataset whose files are read; None reads the whole dataset.
        columns: Columns to read from Parquet files; None reads all columns.
        delimiter: Character between the cells of CSV files; None is a comma, and a tab for `.tsv`.
        setting: Name of the source's settings in messages, such as `data.train`.

    Raises:
        ValueError: if a file has an unknown format or encoding, or if the configuration or the split is
            ambiguous; the message names the setting to change. A row that can't be read raises no error here:
            see `Row`.
        RuntimeError: if the hub can't be reached.
    """
    if isinstance(origin, str):
        yield from _hub_rows(origin, config, split, folder, columns, delimiter, setting)
    elif not origin.is_dir():
        yield from _file_rows(origin, origin.name, columns, delimiter)
    elif any((origin / name).is_file() for name in ("state.json", "dataset_dict.json")):
        yield from _saved_rows(origin, split, setting)
    else:
        yield from _folder_rows(origin, config, split, folder, columns, delimiter, setting)


def format_of(name: str) -> str | None:
    """Return the format of a file, `json`, `csv` or `parquet`, from its name; None for other formats.

    >>> format_of("a.jsonl"), format_of("a.b.CSV.gz"), format_of("a.parquet.gz"), format_of("a.txt")
    ('json', 'csv', None, None)
    """
    stem, suffix = os.path.splitext(name.lower())
    packed = suffix in _OPENED_BY
    if packed:
        suffix = os.path.splitext(stem)[1]
    found = FORMATS.get(suffix)
    return None if packed and found == "parquet" else found


def stem_of(name: str) -> str:
    """Return the name of a file without the suffixes of its format and compression.

    >>> stem_of("a.jsonl"), stem_of("a.b.csv.gz")
    ('a', 'a.b')
    """
    stem, suffix = os.path.splitext(name)
    return os.path.splitext(stem)[0] if suffix.lower() in _OPENED_BY else stem


def _file_rows(
    path: Path, name: str, columns: Sequence[str] | None, delimiter: str | None, shown: str | None = None
) -> Iterator[Row]:
    """Yield the rows of one file. The suffix of `name` decides the format; messages name the file `shown`."""
    kind = format_of(name)
    place = shown or str(path)
    if kind is None:
        raise ValueError(
            f"Expected a file of one of {', '.join(FORMATS)} (JSON and CSV also with "
            f"{', '.join(_OPENED_BY)}), but got {place}. Convert it."
        )
    if kind == "parquet":
        found = _parquet_rows(path, place, columns)
    elif kind == "csv":
        tab = ".tsv" in name.lower()
        found = _csv_rows(_text(path, name, place), place, delimiter or ("\t" if tab else ","))
    else:
        found = _json_rows(_content(path, name, place), place)
    for number, where, content in found:
        yield Row(f"{place}, row {where}", f"{stem_of(name)}-{number}", content)


Found = Iterator[tuple[int, str, Mapping[str, Any] | RowError]]
"""Number of a row, its place in the file for messages, and its content."""


def _content(path: Path, name: str, place: str) -> bytes:
    """Return the bytes of a file, unpacked, without a byte order mark."""
    opened = _OPENED_BY.get(os.path.splitext(name.lower())[1], open)
    try:
        with opened(path, "rb") as file:
            content: bytes = file.read()
    except _BROKEN as error:
        raise ValueError(
            f"{place}: expected a file that can be read and unpacked, but {type(error).__name__}: {error}."
        ) from error
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            f"{place}, row 1: expected text in UTF-8, but it is UTF-16. Save the file as UTF-8, for example "
            "by `iconv -f utf-16 -t utf-8`."
        )
    return content.removeprefix(codecs.BOM_UTF8)


def _text(path: Path, name: str, place: str) -> str:
    """Return the text of a file.

    Raises:
        ValueError: if the file is not in UTF-8; the message names the line.
    """
    return _decoded(_content(path, name, place), place)


def _decoded(content: bytes, place: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{place}, line {line}: expected text in UTF-8, but got the byte 0x{content[error.start]:02x} "
            f"({error.reason}). Save the file as UTF-8, for example by `iconv -f latin1 -t utf-8`."
        ) from error


# ---------------------------------------------------------------------- JSON


def _json_rows(content: bytes, place: str) -> Found:
    """Yield the objects of a list, or of JSON lines."""
    if content.lstrip().startswith(b"["):
        for number, row in enumerate(_list_items(_decoded(content, place)), start=1):
            yield number, str(number), row
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        row = _line(line)
        if number == 1 and isinstance(row, RowError):
            whole = _line(content)
            if isinstance(whole, dict):
                yield (
                    1,
                    "1",
                    RowError(
                        f"a list of objects, or one a line, but the file is one with {', '.join(whole)}"
                    ),
                )
                return
        yield number, str(number), row


def _line(line: bytes) -> Mapping[str, Any] | RowError:
    try:
        return _object(json.loads(line.decode(), **_PARSING))
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested brackets
        return _broken_json(error)


def _list_items(text: str) -> Iterator[Mapping[str, Any] | RowError]:
    """Yield the items of a JSON list of objects; stop after the first item that is not JSON."""
    decoder = json.JSONDecoder(**_PARSING)
    place = _after_space(text, 0) + 1
    before = "["
    while True:
        place = _after_space(text, place)
        if before == "[" and text.startswith("]", place):
            break
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            yield _broken_json(error)
            return
        yield _checked(value)
        place = _after_space(text, place)
        before = text[place : place + 1]
        if before == "]":
            break
        if before != ",":
            yield RowError(f"a comma or the end of the list before it, but got {text[place : place + 20]!r}")
            return
        place += 1
    rest = text[place + 1 :].strip()
    if rest:
        yield RowError(f"nothing after the list, but got {rest[:80]!r}. Write one list, or one object a line")


def _after_space(text: str, place: int) -> int:
    """Return the first position from `place` on that is not white space in JSON."""
    found = _SPACE.match(text, place)
    assert found is not None  # the pattern matches the empty text too
    return found.end()


def _checked(value: Any) -> Mapping[str, Any] | RowError:
    try:
        return _object(value)
    except (ValueError, RecursionError) as error:
        return _broken_json(error)


def _object(value: Any) -> Mapping[str, Any] | RowError:
    """Check that a value is an object, and that UTF-8 can encode its texts."""
    json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        return RowError(f"a JSON object, but got {type(value).__name__}")
    return value


def _broken_json(error: Exception) -> RowError:
    return RowError(f"a JSON object in UTF-8, but {type(error).__name__}: {printable(str(error))}")


def _number_or_text(written: str) -> float | str:
    """Return a number, or its text if a float would change the digits.

    >>> _number_or_text("142.0"), _number_or_text("1e23"), _number_or_text("0.12345678901234567890")
    (142.0, '1e23', '0.12345678901234567890')
    """
    number = float(written)
    same = abs(number) < EXACT and Decimal(repr(number)) == Decimal(written)
    return number if same else written


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON object with these keys and values.

    Raises:
        ValueError: if a key has two different values.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise ValueError(f"the key {key!r} is there twice, with different values")
        found[key] = value
    return found


_PARSING: dict[str, Any] = {"parse_float": _number_or_text, "object_pairs_hook": _without_repetition}


# ---------------------------------------------------------------------- CSV


def _csv_rows(text: str, place: str, delimiter: str) -> Found:
    """Yield the rows below the header; every cell is text. Rows of empty cells are skipped, but counted."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = _header(next(reader, []), place)
    except csv.Error as error:
        raise ValueError(f"{place}, row 1: expected a CSV file with a header, but {error}.") from error
    number = 0
    while True:
        number += 1
        where = f"{number} (line {reader.line_num + 1})"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, where, RowError(f"a CSV row, but {error}. Check the quotes")
            return
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            yield (
                number,
                where,
                RowError(
                    f"{len(header)} cells, as the header has, but got {len(cells)}. Put a cell that contains "
                    f"{delimiter!r}, quotes or line breaks between double quotes"
                ),
            )
        else:
            yield number, where, dict(zip(header, cells, strict=True))


def _header(cells: Sequence[str], place: str) -> list[str]:
    """Return the names of the columns; a column without a name is named by its number."""
    names = []
    for number, cell in enumerate(cells, start=1):
        names.append(cell.strip() or f"column {number}")
    repeated = {name for name in names if names.count(name) > 1}
    if not any(cell.strip() for cell in cells) or repeated:
        found = f"{', '.join(sorted(repeated))} more than once" if repeated else "an empty line"
        raise ValueError(
            f"{place}: expected a CSV file whose first line names each column once, but got {found}."
        )
    return names


# ---------------------------------------------------------------------- tables with types


def _parquet_rows(path: Path, place: str, columns: Sequence[str] | None) -> Found:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            there = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            yield from _numbered(
                table_rows(pa.Table.from_batches([batch]) for batch in file.iter_batches(columns=there))
            )
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{place}: expected a Parquet file, but {type(error).__name__}: {error}.") from error


def _numbered(rows: Iterable[Mapping[str, Any]]) -> Found:
    for number, row in enumerate(rows, start=1):
        yield number, str(number), row


def table_rows(tables: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    """Yield the rows of Arrow tables as Python objects; narrow floats are converted by `_widened`."""
    for table in tables:
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            columns[name] = _widened(column.to_pylist(), column.type)
        for row in range(table.num_rows):
            yield {name: values[row] for name, values in columns.items()}


def _widened(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Return float16 and float32 values, also in lists, as floats of their shortest decimal form.

    For example, a float32 of 0.1 becomes 0.1, not 0.10000000149.
    """
    import numpy as np
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [None if value is None else _widened(value, kind.value_type) for value in values]
    if not pa.types.is_floating(kind) or kind.bit_width == 64:
        return values
    narrow = np.float16 if kind.bit_width == 16 else np.float32
    found: list[Any] = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(value)
        elif abs(value) < _NARROW[kind.bit_width]:
            found.append(float(str(narrow(value))))
        else:
            found.append(narrow(value))  # digits may be lost: no answer
    return found


# ---------------------------------------------------------------------- folders and the hub


def _saved_rows(folder: Path, split: str | None, setting: str) -> Iterator[Row]:
    """Yield the rows of a dataset that `save_to_disk` wrote."""
    import datasets

    saved = datasets.load_from_disk(os.fspath(folder))
    if isinstance(saved, datasets.DatasetDict):
        saved = saved[_chosen(list(saved), split, folder, setting)]
    yield from _dataset_rows(saved, str(folder), folder.name)


def _dataset_rows(table: Any, place: str, label: str) -> Iterator[Row]:
    tables = table.with_format("arrow").iter(batch_size=1000)
    for number, row in enumerate(table_rows(tables), start=1):
        yield Row(f"{place}, row {number}", f"{label}-{number}", row)


def _folder_rows(
    folder: Path,
    config: str | None,
    split: str | None,
    data_dir: str | None,
    columns: Sequence[str] | None,
    delimiter: str | None,
    setting: str,
) -> Iterator[Row]:
    import datasets

    card = folder / "README.md"
    described = card.is_file() and "data_files" in card.read_text(encoding="utf-8", errors="replace")
    there = [] if described or config else _data_files(folder / (data_dir or ""))
    if there:
        _check_one_format(folder, there, setting)
    try:
        builder = datasets.load_dataset_builder(os.fspath(folder), config, data_dir=data_dir)
        splits = {str(name): list(found) for name, found in (builder.config.data_files or {}).items()}
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(
            f"{folder}: expected a folder with files of questions, but {type(error).__name__}: "
            f"{printable(str(error))}. Set {setting}.path to a file, or {setting}.config to a configuration."
        ) from error
    chosen = _chosen(list(splits), split, folder, setting)
    files = sorted(Path(file) for file in splits[chosen])
    known = {file for found in splits.values() for file in map(Path, found)}
    left = [file for file in there if file.resolve() not in {path.resolve() for path in known}]
    if left:
        raise ValueError(
            f"{folder}: expected every file to belong to a split, as its name says (train.csv, test.csv), "
            f"but {_listed(folder, left)} are in none of {', '.join(splits)}. Set {setting}.path to a file."
        )
    if not all(format_of(file.name) for file in files):
        streamed = datasets.load_dataset(
            os.fspath(folder), config, split=chosen, data_dir=data_dir, streaming=True
        )
        yield from _dataset_rows(streamed, str(folder), folder.name)
        return
    for file in files:
        label = file.name if len(files) == 1 else os.path.relpath(file, folder)
        yield from _file_rows(file, label, columns, delimiter, shown=str(file))


def _data_files(folder: Path) -> list[Path]:
    """Return the files with rows in a folder and its subfolders, except hidden files and metadata."""
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path.name not in _FILES_OF_DATASETS and format_of(path.name):
            found.append(path)
    return found


def _check_one_format(folder: Path, files: Sequence[Path], setting: str) -> None:
    """Check that all files of a folder have the same format."""
    formats = {format_of(file.name) for file in files}
    if len(formats) > 1:
        raise ValueError(
            f"{folder}: expected files of one format, but there are {_listed(folder, files)}. Set "
            f"{setting}.path to one of them, or move the others."
        )


def _listed(folder: Path, files: Sequence[Path]) -> str:
    names = [os.path.relpath(file, folder) for file in files[:6]]
    return ", ".join([*names, *(["…"] if len(files) > 6 else [])])


def _chosen(splits: Sequence[str], split: str | None, origin: object, setting: str) -> str:
    """Return the split to read: the given one, or the only one."""
    if split is None and len(splits) == 1:
        return splits[0]
    if split not in splits:
        wanted = "a split, since there are several" if split is None else f"the split {split}"
        raise ValueError(
            f"{origin}: expected {wanted}, but there are {', '.join(splits) or 'none'}. Set "
            f"{setting}.split={splits[0] if splits else 'null'}."
        )
    return str(split)


def _hub_rows(
    name: str,
    config: str | None,
    split: str | None,
    folder: str | None,
    columns: Sequence[str] | None,
    delimiter: str | None,
    setting: str,
) -> Iterator[Row]:
    """Yield the rows of a dataset on the hub. JSON and CSV files are downloaded and read like local files."""
    import datasets

    unreachable = (ConnectionError, FileNotFoundError, datasets.exceptions.DatasetNotFoundError)
    try:
        builder = datasets.load_dataset_builder(name, config, data_dir=folder)
    except ValueError as error:
        raise ValueError(
            f"{name}: expected one of its configurations, but {printable(str(error))} Set {setting}.config."
        ) from error
    except unreachable as error:
        raise RuntimeError(_out_of_reach(name, config, split, setting, error)) from error
    try:
        files = {str(name): found for name, found in (builder.config.data_files or {}).items()}
        chosen = _chosen(list(files), split, name, setting) if files else split or "train"
        urls = [str(url) for url in files.get(chosen, ())]
        if urls and all(format_of(url) in ("json", "csv") for url in urls):
            paths = datasets.DownloadManager(dataset_name=name).download(urls)
            table = None
        else:
            paths = []
            chosen_columns = {"columns": list(columns)} if columns else {}
            table = datasets.load_dataset(name, config, split=chosen, data_dir=folder, **chosen_columns)
    except unreachable as error:
        raise RuntimeError(_out_of_reach(name, config, split, setting, error)) from error
    except datasets.exceptions.DatasetsError as error:
        raise ValueError(f"{name}: expected a dataset, but {printable(str(error))}.") from error
    if table is not None:
        yield from _dataset_rows(table, name, name.rpartition("/")[2])
        return
    for url, path in zip(urls, paths, strict=True):
        shown = f"{name}/{url.rpartition('/')[2]}"
        yield from _file_rows(Path(path), url.rpartition("/")[2], columns, delimiter, shown=shown)


def _out_of_reach(name: str, config: str | None, split: str | None, setting: str, error: Exception) -> str:
    """Return the message for a dataset that can't be downloaded."""
    return (
        f"Expected to read the dataset {name} (configuration {config or 'default'}, split "
        f"{split or 'train'}), but: {error} Check that the machine is online, that HF_HUB_OFFLINE is not set, "
        "and that the account of HF_TOKEN has access where the dataset asks for consent. Or download it elsewhere and set "
        f"{setting}.path to the copy (`path`)."
    )
