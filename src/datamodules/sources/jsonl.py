"""Questions from a local file: JSON lines or Parquet, with or without rephrasings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...rewards.extraction import extract_reference
from ...types import QuestionGroup
from .base import Source, SourceReport
from .rows import RowError, answers, is_known, kinds_of, read_rows
from .selection import Ranges, check_ranges, select


class JsonLinesSource(Source):
    r"""One question per row: an object with a question, its answer, and perhaps rephrasings and an id.

    Args:
        path: `.jsonl` or `.parquet`.
        question: Field with the question's text.
        answer: Field with the answer: text, a number (142.0 reads as 142), or a list of accepted answers.
        rephrasings: Field with a list of rephrasings; rows may lack it.
        id: Field with a unique id; rows without one are called `<file name>-<row>`.
        within: Field → its smallest and largest value; see `selection.select`. For a curriculum, such as
            `{success_rate: [0, 0.75]}`.
        worked: Whether the answer is a worked solution, of which the last `\boxed{}` or what follows `####` counts.

    A field `kinds` may say of each rephrasing how it changes the question, for `data.kinds`. All other fields are kept
    in the metadata.
    """

    def __init__(
        self,
        path: str | Path,
        question: str = "question",
        answer: str = "answer",
        rephrasings: str = "rephrasings",
        id: str = "id",
        worked: bool = False,
        within: Ranges | None = None,
    ) -> None:
        check_ranges(within or {})
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(
                f"Expected a file of questions at {self.path}, but found none. Set the source's `path`."
            )
        if self.path.suffix not in (".jsonl", ".parquet"):
            raise ValueError(f"Expected a .jsonl or .parquet file, but got {self.path}.")
        self.question, self.answer, self.rephrasings, self.id = question, answer, rephrasings, id
        self.worked = worked
        self.within = within or {}

    def load(self) -> list[QuestionGroup]:
        """Read the file.

        One ValueError lists the first rows that are broken, lack question or answer, or repeat an id. Another names the
        first question without a field of `within`.
        """
        groups: dict[str, QuestionGroup] = {}

        def take(number: int, row: dict[str, Any]) -> None:
            group = self._group(number, row)
            if group.id in groups:
                raise RowError(f"a new id, but {group.id!r} stands in an earlier row")
            groups[group.id] = group

        read_rows(self.path, take)
        kept, outside = select(list(groups.values()), self.within, self.path)
        self.report = SourceReport(origin=str(self.path), read=len(groups), excluded=outside)
        return kept

    def _group(self, number: int, row: dict[str, Any]) -> QuestionGroup:
        question = row.get(self.question)
        if not isinstance(question, str) or not question.strip():
            raise RowError(
                f"a question in `{self.question}`, but the fields are {', '.join(row)}. Set the source's `question`"
            )
        rephrasings = row.get(self.rephrasings) or []
        if not isinstance(rephrasings, list) or not all(isinstance(text, str) and text.strip() for text in rephrasings):
            raise RowError(f"a list of texts in `{self.rephrasings}`, but got {rephrasings!r}")
        answer, name = row.get(self.answer), row.get(self.id)
        accepted = answers(extract_reference(str(answer)) if self.worked and is_known(answer) else answer)
        if not accepted:
            said = "has no box and no `####`, where `worked` looks" if self.worked and is_known(answer) else "is empty"
            raise RowError(f"an answer in `{self.answer}`, but it {said}. Correct the row, or leave it out")
        known = (self.question, self.answer, self.rephrasings, self.id, "kinds")
        return QuestionGroup(
            id=str(name) if is_known(name) else f"{self.path.stem}-{number}",
            question=question,
            rephrasings=tuple(rephrasings),
            answer=accepted,
            metadata={name: value for name, value in row.items() if name not in known},
            kinds=kinds_of(row, len(rephrasings)),
        )
