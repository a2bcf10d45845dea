"""Rows of a table, wherever it lies, and what their fields say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def locate(path: str | Path, name: str) -> Path:
    """What holds the dataset `name` at `path`.

    A file is taken as it is. In a folder it is `<name>.jsonl`, `.json`, `.parquet` or `.csv`, or the folder `<name>`, a
    copy of the hub's repository; a folder without any of them is taken for such a copy itself.

    Raises:
        FileNotFoundError: there is nothing at `path`.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"Expected the dataset `{name}` at {path}, but there is nothing. Set its `path` to a file or a folder, or "
            "to null to read it from the hub."
        )
    candidates = [path / f"{name}{suffix}" for suffix in FORMATS] + [path / name]
    return next((candidate for candidate in candidates if candidate.exists()), path)


def read_table(
    origin: str | Path, config: str | None = None, split: str = "train", columns: Sequence[str] | None = None
) -> Any:
    """A `datasets.Dataset` from a file, from a folder in the hub's layout or, given a name, from the hub.

    Local copies are cached by their path and by the sizes and times of their files: `datasets` takes two copies of one
    repository for the same, and a copy that has changed for what it was.

    Args:
        origin: A path, or a name on the hub.
        config: Configuration of a repository.
        split: Split of a repository.
        columns: Of a repository of Parquet files, those to read; None reads all.

    Raises:
        ValueError: a file of an unknown kind.
        RuntimeError: the hub can't be reached or does not give the dataset away; the message names ways out.
    """
    import datasets

    # `datasets` hands further options to the reader of the files' format, and only Parquet's knows this one.
    selected = {} if columns is None else {"columns": list(columns)}
    if isinstance(origin, Path):
        cache = os.path.join(datasets.config.HF_DATASETS_CACHE, "local", _state(origin))
        if origin.is_dir():
            return datasets.load_dataset(os.fspath(origin), config, split=split, cache_dir=cache, **selected)
        if origin.suffix not in FORMATS:
            raise ValueError(f"Expected a file of one of {', '.join(FORMATS)}, but got {origin}.")
        kind = FORMATS[origin.suffix]
        return datasets.load_dataset(kind, data_files=os.fspath(origin), split="train", cache_dir=cache)
    try:
        return datasets.load_dataset(origin, config, split=split, **selected)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise RuntimeError(
            f"Expected to read the dataset {origin} (configuration {config or 'default'}, split {split}), but: {error} "
            "Is the machine online (HF_HUB_OFFLINE unset), and may the account of HF_TOKEN read the dataset, where it "
            "asks for consent? Or download it elsewhere and set `path` to the copy."
        ) from error


def _state(path: Path) -> str:
    """A name for a file or folder as it is now."""
    files = sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]
    states = [(os.fspath(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(states).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def rows_with(table: Any, columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Rows of the table with these columns alone, so that long ones that nobody needs are not decoded."""
    return iter(table.select_columns(sorted(set(columns) & set(table.column_names))))


def present(table: Any, names: Sequence[str], what: str, origin: str | Path) -> str:
    """The first of `names` whose column the table has; `a.b` is field b of the column a.

    Raises:
        ValueError: it has none of them.
    """
    for name in names:
        if column_of(name) in table.column_names:
            return name
    raise ValueError(
        f"{origin}: expected {what} in one of the columns {', '.join(names)}, but there are "
        f"{', '.join(table.column_names)}."
    )


def column_of(name: str) -> str:
    """The column of a field: `extra_info` of `extra_info.index`."""
    return name.partition(".")[0]


def value(row: Mapping[str, Any], name: str) -> Any:
    """A field of a row; None where it is missing.

    >>> value({"extra_info": {"index": 7}}, "extra_info.index"), value({"a": None}, "a.b")
    (7, None)
    """
    found: Any = row
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def question_text(field: Any) -> str:
    """The question of a field that holds a text or a conversation, of which the last user's turn counts.

    >>> question_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1 + 1? "}])
    '1 + 1?'
    >>> question_text(" 1 + 1?"), question_text(None)
    ('1 + 1?', '')
    """
    if isinstance(field, list):
        turns = [turn["content"] for turn in field if turn.get("role") == "user"]
        field = turns[-1] if turns else None
    return field.strip() if isinstance(field, str) else ""


def answers(field: Any) -> tuple[str, ...]:
    """Accepted answers as texts; empty ones left out.

    >>> answers(142.0), answers([" 2 ", ""]), answers(None)
    (('142',), ('2',), ())
    """
    found = field if isinstance(field, list) else [field]
    texts = (str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in found if v is not None)
    return tuple(text.strip() for text in texts if text.strip())
