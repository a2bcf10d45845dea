"""Source of a user's questions: a table in files or on the hub, with a mapping of columns."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...overrides import override
from ...rewards.extraction import extract_reference
from ...types import QuestionGroup
from .base import Source, SourceReport
from .files import FORMATS, Row, RowError, format_of, read_rows, take_rows
from .rows import (
    MISSING,
    Ranges,
    answers,
    cell,
    check_ranges,
    conversation_text,
    is_known,
    kinds_of,
    locate,
    plain_value,
    row_id,
    select,
    texts_of,
)

FIELDS = ("question", "answer", "rephrasings", "id", "kinds")
"""Fields of a question; each is read from the column of its name unless `columns` names another."""
USUAL = {
    "question": ("problem", "prompt", "query", "input", "instruction", "text", "messages"),
    "answer": ("solution", "final_answer", "ground_truth", "target", "label", "output"),
}
"""Field → usual names of its column in files."""


class TableSource(Source):
    r"""Source that reads one question per row of a table.

    Files are JSON (lines or a list), CSV and Parquet. Text is kept unchanged, for example `007`, `None`,
    `2024-01-05` and numbers of 23 digits; every cell of a CSV file is text. Columns that belong to no field
    are kept in the metadata, with dates, decimals and bytes as text.

    - A question is text, or a list of turns (`role`, `content`): one user turn, optionally after a system
      turn, whose text then precedes the question.
    - An answer is text, a number (142.0 reads as 142), a date, or a list of accepted answers.
    - Rephrasings are a list of texts, and `kinds` may name how each rephrasing changes the question. In a CSV
      cell, a list is written as JSON. Rows may lack both fields.
    - A row without an id is called `<file name>-<row>`.

    Args:
        path: File, folder with files of one format (read in the order of their names), or copy of a dataset
            on the hub. None reads `dataset` from the hub.
        dataset: Name on the hub, `owner/name`. With a `path`, a copy of the dataset is looked for there
            (`rows.locate`).
        config: Configuration of the dataset; None takes the only one.
        split: Split of the dataset; None takes the only one.
        columns: Field (one of `FIELDS`) → name of its column; `a.b` is key b of column a, and None leaves
            the field out. A field that is not named is read from the column of its own name.
        worked: Whether the answer is a worked solution; its last `\boxed{}`, or the text after `####`, is the
            answer.
        within: Column → smallest and largest value in the questions to select (`rows.select`). For example,
            `{success_rate: [0, 0.75]}` leaves out questions that are too easy.
        delimiter: Character between the cells of a CSV file; None is a comma, and a tab for `.tsv`.
    """

    setting: str = "source"
    """Name of the source's settings in messages; the data module sets `data.train`, for example."""

    def __init__(
        self,
        path: str | Path | None = None,
        dataset: str | None = None,
        config: str | None = None,
        split: str | None = None,
        columns: Mapping[str, str | None] | None = None,
        worked: bool = False,
        within: Ranges | None = None,
        delimiter: str | None = None,
    ) -> None:
        check_ranges(within or {})
        if path is None and dataset is None:
            raise ValueError("Expected `path` or `dataset` of a source of questions, but both are null.")
        if dataset is None and path is not None and not Path(path).exists():
            raise FileNotFoundError(
                f"Expected a file or folder of questions at {path}, but found none. Set the source's `path`."
            )
        if path is not None and Path(path).is_file() and format_of(Path(path).name) is None:
            raise ValueError(
                f"Expected the source's `path` to be a file of one of {', '.join(FORMATS)} (JSON and CSV "
                f"also with .gz, .bz2 or .xz), or a folder of such files, but got {path}. Convert it."
            )
        unknown = [name for name in columns or {} if name not in FIELDS]
        if unknown:
            raise ValueError(
                f"Expected the source's `columns` to name columns of {', '.join(FIELDS)}, but got "
                f"{', '.join(unknown)}. All other columns are kept without being named."
            )
        if delimiter is not None and len(delimiter) != 1:
            raise ValueError(f"Expected the source's `delimiter` to be one character, but got {delimiter!r}.")
        self.path = path
        self.dataset = dataset
        self.config = config
        self.split = split
        self.columns = {name: (columns or {}).get(name, name) for name in FIELDS}
        self.worked = worked
        self.within = within or {}
        self.delimiter = delimiter

    @property
    def origin(self) -> str | Path:
        """File, folder, or name on the hub.

        Raises:
            FileNotFoundError: if there is no copy of `dataset` at `path`.
        """
        if self.path is None:
            return str(self.dataset)
        if self.dataset is None:
            return Path(self.path)
        return locate(self.path, self.dataset.rpartition("/")[2], self.dataset)

    def load(self) -> list[QuestionGroup]:
        """Read the table.

        Raises:
            ValueError: if rows are malformed, lack a required field, or repeat an id (the message lists the
                first ten by file and row), or if a question lacks a column of `within` (the message names the
                first such question).
            RuntimeError: if the hub can't be reached.
        """
        origin = self.origin
        groups: dict[str, QuestionGroup] = {}
        places: dict[str, str] = {}

        def take(row: Row) -> None:
            group = self._group(row)
            if group.id in groups:
                raise RowError(f"a new id, but {group.id!r} stands in an earlier row ({places[group.id]})")
            groups[group.id] = group
            places[group.id] = row.place

        take_rows(self._rows(origin), take)
        if not groups:
            raise ValueError(f"{origin}: expected rows with questions, but there are none.")
        kept, outside = select(list(groups.values()), self.within, origin)
        self.report = SourceReport(origin=str(origin), read=len(groups), excluded=outside, places=places)
        return kept

    def _rows(self, origin: str | Path) -> Iterator[Row]:
        return read_rows(origin, self.config, self.split, delimiter=self.delimiter, setting=self.setting)

    def _group(self, row: Row) -> QuestionGroup:
        values = row.values()
        question = self._question(values)
        column = self.columns["rephrasings"]
        rephrasings = texts_of(self._field(values, "rephrasings"), str(column))
        metadata = {}
        for name, value in values.items():
            if name not in self.columns.values():
                metadata[name] = plain_value(value)
        return QuestionGroup(
            id=row_id(self._field(values, "id")) or row.label,
            question=question,
            rephrasings=tuple(rephrasings),
            answer=self._answers(values, question),
            metadata=metadata,
            kinds=kinds_of(self._field(values, "kinds"), len(rephrasings), str(self.columns["kinds"])),
        )

    def _field(self, values: Mapping[str, Any], field: str) -> Any:
        """Return the value of an optional field; None if the row lacks it."""
        column = self.columns[field]
        value = MISSING if column is None else cell(values, column)
        return None if value is MISSING else value

    def _question(self, values: Mapping[str, Any]) -> str:
        column = str(self.columns["question"])
        found = cell(values, column)
        if found is MISSING:
            raise RowError(self._without_column("question", values))
        text = conversation_text(found) if isinstance(found, list) else found
        if not isinstance(text, str):
            raise RowError(
                f"a question in `{column}` that is text or a list of turns, but got {type(text).__name__} "
                f"{repr(text)[:80]}"
            )
        if not text.strip():
            raise RowError(f"a question in `{column}`, but it is empty")
        return text

    def _answers(self, values: Mapping[str, Any], question: str) -> tuple[str, ...]:
        column = str(self.columns["answer"])
        found = cell(values, column)
        if found is MISSING:
            raise RowError(self._without_column("answer", values))
        worked = self.worked and is_known(found)
        if not worked:
            accepted = answers(found)
        elif isinstance(found, str):
            accepted = answers(list(extract_reference(found, question)))
        else:
            raise RowError(
                f"a worked solution in `{column}`, but got {type(found).__name__} {repr(found)[:80]}. Set "
                f"{self.setting}.worked=false"
            )
        if accepted:
            return accepted
        if worked:
            raise RowError(
                f"an answer in `{column}`, but it has no box and no `####`, where {self.setting}.worked=true "
                f"looks. Correct the row, leave it out, or set {self.setting}.worked=false"
            )
        shown = "it is empty" if found in (None, "", []) else f"it is empty: {repr(found)[:80]}"
        raise RowError(f"an answer in `{column}`, but {shown}. Correct the row, or leave it out")

    def _without_column(self, field: str, values: Mapping[str, Any]) -> str:
        """Return the error message for a row without the column of a required field; it names the setting."""
        taken = [column for name, column in self.columns.items() if name != field]
        free = [name for name in values if name not in taken]
        usual = [name for name in free if name.lower() in USUAL[field]]
        named = (usual or free or ["…"])[0]
        hint = ""
        if len(values) == 1 and re.search(r"[;\t|]", named):
            character = re.findall(r"[;\t|]", named)[0]
            hint = (
                f" The cells may be separated by {character!r}: {self.setting}.delimiter='\"{character}\"'."
            )
        return (
            f"{'an' if field == 'answer' else 'a'} {field} in `{self.columns[field]}`, but the columns are "
            f"{', '.join(values) or 'none'}. Set the right one, such as "
            f"{shlex.quote(override(f'{self.setting}.columns.{field}', named))}{hint}"
        )
