"""Fields of rows: questions, answers, ids and kinds, and the selection of questions by numbers."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from ...types import QuestionGroup
from .files import EXACT, FORMATS, Row, RowError, take_rows

Ranges = Mapping[str, Sequence[float]]
"""Field → smallest and largest value of a range, both included."""
Columns = Mapping[str, Sequence[str]]
"""Field → names of the columns in which the field may be."""
MISSING = object()
"""Stands for the value of a column that a row lacks."""


def locate(path: str | Path, name: str, repository: str = "") -> Path:
    """Return the file or folder at `path` that contains the dataset `name`.

    If `path` is a file, return `path`. If `path` is a folder, return the first of these that exists:

    1. the file `<name>.jsonl` in `path`, or `<name>` with another suffix of `FORMATS`;
    2. the folder `<name>` in `path`, a copy of the dataset's repository on the hub;
    3. `path`, if it is a copy of this repository. If a `repository` (`owner/name`) is given, `path` must
       contain the name of the dataset or of the repository.

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


def cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or `MISSING` if the row lacks it; `a.b` is key b of column a.

    >>> cell({"a": {"b": 1}}, "a.b"), cell({"a.b": 2}, "a.b"), cell({"a": 3}, "a.b") is MISSING
    (1, 2, True)
    """
    if column in row:
        return row[column]
    first, dot, rest = column.partition(".")
    inner = row.get(first) if dot else None
    return cell(inner, rest) if isinstance(inner, Mapping) else MISSING


def read_fields(
    rows: Iterable[Row], origin: str | Path, required: Columns, optional: Columns
) -> list[tuple[str, dict[str, Any]]]:
    """Return the place and the fields of each row.

    A field is read from the first of its columns that occurs in the table; the column `a.b` is key b of
    column a.

    Raises:
        ValueError: if a row can't be read, or no row has a column of a `required` field; the message names
            the field and the `origin`.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    take_rows(rows, lambda row: found.append((row.place, row.values())))
    names: dict[str, None] = {}
    for _, row in found:
        names |= dict.fromkeys(row)
        for name, value in row.items():
            if isinstance(value, Mapping):
                names |= dict.fromkeys(f"{name}.{key}" for key in value)
    columns: dict[str, str] = {}
    for field, candidates in {**required, **optional}.items():
        there = [name for name in candidates if name in names]
        if there:
            columns[field] = there[0]
        elif field in required and found:
            raise ValueError(
                f"{origin}: expected {field} in one of the columns {', '.join(candidates)}, but "
                f"there are {', '.join(names)}."
            )
    read = []
    for place, row in found:
        fields = {}
        for field, name in columns.items():
            value = cell(row, name)
            fields[field] = None if value is MISSING else value
        read.append((place, fields))
    return read


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


def conversation_text(turns: Sequence[Any]) -> str:
    r"""Return the text of a prompt that is a list of turns: one user turn, optionally after one system turn.

    The text of the system turn precedes the question, with an empty line between.

    Raises:
        RowError: if the list has other turns, for which a question has no field.

    >>> conversation_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}])
    'Be brief.\n\n1 + 1?'
    """
    roles = []
    texts = []
    for turn in turns:
        if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
            raise RowError(f"turns with `role` and `content`, but got {_shown(turn)}")
        roles.append(turn["role"])
        texts.append(_content_text(turn.get("content")))
    if roles not in (["user"], ["system", "user"]):
        raise RowError(
            "a prompt with one turn of the user, perhaps after one of the system, but the roles are "
            f"{', '.join(roles) or 'none'}"
        )
    return "\n\n".join(text for text in texts if text.strip())


def _content_text(content: Any) -> str:
    """Return the text of a turn: a text, or a list of parts `{"type": "text", "text": …}`."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RowError(f"turns whose `content` is text, but got {_shown(content)}")
        texts.append(text)
    return "".join(texts)


def _shown(value: Any) -> str:
    """Describe a value in an error: its type and the start of its `repr`."""
    return f"{type(value).__name__} {repr(value)[:80]}"


def texts_of(field: Any, column: str) -> list[str]:
    """Return the list of texts in a field, such as rephrasings; in a CSV cell, the list is written as JSON.

    A missing or empty field gives an empty list.

    Raises:
        RowError: if the field has other content, or if a text is blank.

    >>> texts_of('["a", "b"]', "rephrasings"), texts_of("", "rephrasings"), texts_of(None, "rephrasings")
    (['a', 'b'], [], [])
    """
    if field is MISSING or not is_known(field) or field == "":
        return []
    found = field
    if isinstance(field, str) and field.lstrip().startswith("["):
        try:
            found = json.loads(field)
        except (ValueError, RecursionError):
            found = field
    if not isinstance(found, list) or not all(isinstance(text, str) and text.strip() for text in found):
        raise RowError(f"a list of texts in `{column}`, in CSV as JSON, but got {_shown(field)}")
    return found


def plain_value(value: Any) -> Any:
    """Return a value of a row in types of JSON: dates, decimals and bytes as text.

    >>> plain_value(Decimal("1.50")), plain_value({"day": date(2026, 1, 2)}), plain_value([1, "a", None])
    ('1.50', {'day': '2026-01-02'}, [1, 'a', None])
    """
    if value is None or isinstance(value, str | int | float):
        return value
    return json.loads(json.dumps(value, default=str))


def is_known(field: Any) -> bool:
    """Check whether a field has a value: not None, and not NaN, which tables without nulls use for None."""
    return field is not None and not (isinstance(field, float) and math.isnan(field))


def answers(field: Any) -> tuple[str, ...]:
    """Return the accepted answers in a field with one answer or a list of answers, as texts.

    Empty and missing answers are left out.

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
        if abs(value) >= EXACT:
            raise RowError(
                f"an answer with all its digits, but got the float {value!r}, which has lost them. Write it as text"
            )
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}"
    if isinstance(value, int | date | time) and not isinstance(value, bool):
        return str(value)
    raise RowError(
        f"an answer that is text, a number, or a list of accepted answers, but got {_shown(value)}. Write it as text"
    )


def row_id(field: Any) -> str | None:
    """Return the id in a field as text; None if the field is missing or empty.

    Raises:
        RowError: if the id is neither text nor number.
    """
    if not is_known(field) or field == "":
        return None
    if isinstance(field, bool) or not isinstance(field, str | int | float):
        raise RowError(f"an id that is text or a number, but got {_shown(field)}")
    return str(field)


def kinds_of(field: Any, count: int, column: str = "kinds") -> tuple[str, ...]:
    """Return the kinds of `count` rephrasings; empty if the field has no kinds.

    Raises:
        RowError: if the field is not a list of `count` names.
    """
    try:
        kinds = texts_of(field, column)
    except RowError as error:
        raise RowError(f"a list of names in `{column}`, but got {_shown(field)}") from error
    if kinds and len(kinds) != count:
        raise RowError(f"a kind for each of its {count} rephrasings in `{column}`, but got {kinds!r}")
    return tuple(kinds)


def check_ranges(within: Ranges) -> None:
    """Check that all ranges are [smallest, largest].

    Raises:
        ValueError: if a range has another form. The message names the field.
    """
    for field, bounds in within.items():
        if len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise ValueError(
                f"Expected the source's `within.{field}` to be [smallest, largest], such as [3, 5], but got {bounds}."
            )


def select(
    groups: Sequence[QuestionGroup], within: Ranges, origin: object
) -> tuple[list[QuestionGroup], dict[str, list[str]]]:
    """Select the questions whose fields all lie `within` their ranges.

    Return these questions, and the ids of the excluded questions by `outside_<field>`, where `field` is the
    first field that excludes a question.

    A field is a number, or a text with a number, such as `Level 3`. A text without a number (`Level ?`) lies
    outside every range.
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
