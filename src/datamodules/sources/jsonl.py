"""Questions from a local JSON lines or Parquet file, and rephrasings for the questions of any source."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...rewards.extraction import extract_reference
from ...types import QuestionGroup
from .base import Source, SourceReport, plain
from .rows import Ranges, RowError, answers, check_ranges, is_known, kinds_of, read_rows, row_id, select

Rephrasings = Mapping[str, Mapping[str, Any]]
"""Map from the `plain` text of a question to its `rephrasings` and `kinds`, as in `QuestionGroup`."""


class JsonLinesSource(Source):
    r"""Source that reads one question per row of a local file.

    A row is an object with a question, its answer, and perhaps rephrasings and an id.

    A field `kinds` may name, for each rephrasing, how it changes the question, for `data.kinds`. All other
    fields are kept in the metadata.

    Args:
        path: `.jsonl` or `.parquet`.
        question: Field with the question's text.
        answer: Field with the answer: text, a number (142.0 reads as 142), or a list of accepted answers.
            Text is kept unchanged, also `007`, `None` and `2024-01-05`.
        rephrasings: Field with a list of rephrasings; rows may lack it.
        id: Field with a unique id; rows without one are called `<file name>-<row>`.
        within: Field → its smallest and largest value; see `rows.select`. For a curriculum, such as
            `{success_rate: [0, 0.75]}`.
        worked: Whether the answer is a worked solution; its last `\boxed{}`, or the text after `####`, is the
            answer.
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
        self.question = question
        self.answer = answer
        self.rephrasings = rephrasings
        self.id = id
        self.worked = worked
        self.within = within or {}

    def load(self) -> list[QuestionGroup]:
        """Read the file.

        Raises:
            ValueError: if rows are malformed, lack a required field, or repeat an id; the message lists the
                first of them. Also if a question lacks a field of `within`; the message names the first such
                question.
        """
        groups: dict[str, QuestionGroup] = {}
        places: dict[str, str] = {}

        def take(number: int, row: dict[str, Any]) -> None:
            group = self._group(number, row)
            if group.id in groups:
                raise RowError(f"a new id, but {group.id!r} stands in an earlier row")
            groups[group.id] = group
            places[group.id] = f"{self.path}, row {number}"

        read_rows(self.path, take)
        kept, outside = select(list(groups.values()), self.within, self.path)
        self.report = SourceReport(origin=str(self.path), read=len(groups), excluded=outside, places=places)
        return kept

    def _group(self, number: int, row: dict[str, Any]) -> QuestionGroup:
        question = row.get(self.question)
        answer = row.get(self.answer)
        if not isinstance(question, str) or not question.strip():
            raise RowError(
                f"a question in `{self.question}`, but the fields are {', '.join(row)}. Set the source's `question`"
            )
        rephrasings = row.get(self.rephrasings) or []
        if not isinstance(rephrasings, list) or not all(
            isinstance(text, str) and text.strip() for text in rephrasings
        ):
            raise RowError(f"a list of texts in `{self.rephrasings}`, but got {rephrasings!r}")
        worked = self.worked and is_known(answer)
        if not worked:
            accepted = answers(answer)
        elif isinstance(answer, str):
            accepted = answers(list(extract_reference(answer, question)))
        else:
            raise RowError(
                f"a worked solution in `{self.answer}`, but got {type(answer).__name__}. Set worked=false"
            )
        if not accepted:
            said = "has no box and no `####`, where `worked` looks" if worked else "is empty"
            raise RowError(f"an answer in `{self.answer}`, but it {said}. Correct the row, or leave it out")
        known = (self.question, self.answer, self.rephrasings, self.id, "kinds")
        return QuestionGroup(
            id=row_id(row.get(self.id)) or f"{self.path.stem}-{number}",
            question=question,
            rephrasings=tuple(rephrasings),
            answer=accepted,
            metadata={name: value for name, value in row.items() if name not in known},
            kinds=kinds_of(row, len(rephrasings)),
        )


def read_rephrasings(path: str | Path) -> Rephrasings:
    """Read rephrasings from JSON lines.

    The fields are `question`, `rephrasings` (a list of texts) and perhaps `kinds`. Other fields are ignored.

    Raises:
        ValueError: if rows are malformed, or repeat a question with other rephrasings; the message names
            them.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected a file of rephrasings at {path}, but found none. Set `rephrasings`."
        )
    found: dict[str, dict[str, Any]] = {}

    def take(_: int, row: dict[str, Any]) -> None:
        question = row.get("question")
        texts = row.get("rephrasings")
        if not (
            isinstance(question, str)
            and isinstance(texts, list)
            and all(t and isinstance(t, str) for t in texts)
        ):
            raise RowError(
                "`question`, a text, and `rephrasings`, a list of texts, but got "
                f"{str(question)[:80]!r} and {str(texts)[:80]!r}"
            )
        made = {"rephrasings": tuple(texts), "kinds": kinds_of(row, len(texts))}
        if found.setdefault(plain(question), made) != made:
            raise RowError(
                f"each question once, but an earlier row has other rephrasings of {question[:80]!r}"
            )

    read_rows(path, take)
    return found


def with_rephrasings(
    groups: Sequence[QuestionGroup], rephrasings: Rephrasings
) -> tuple[list[QuestionGroup], str]:
    """Attach rephrasings to questions. Return the questions, and a sentence on how many have rephrasings.

    Raises:
        ValueError: if no question has any.
    """
    joined = [group._replace(**rephrasings.get(plain(group.question), {})) for group in groups]
    count = sum(bool(group.rephrasings) for group in joined)
    if groups and not count:
        raise ValueError(
            f"Expected rephrasings of the {len(groups)} questions, but the file has {len(rephrasings)} "
            f"others. Its questions must read as in the source, for example {groups[0].question[:80]!r}."
        )
    return joined, f"{count} of {len(groups)} questions have rephrasings"
