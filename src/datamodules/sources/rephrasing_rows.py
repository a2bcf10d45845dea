"""Data as published by the authors of TA-GRPO: a row per prompt; the rows of a question share an index."""

from collections import defaultdict
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any

from ...types import QuestionGroup
from .base import Source, SourceReport, fingerprint
from .files import RowError, read_rows, refuse
from .rows import answers, is_known, locate, question_text, read_fields, row_id

DATASET = "lhkhiem28/TA-GRPO-datasets"
REQUIRED = {
    "a question": ("question", "prompt"),
    "an answer": ("answer", "reward_model.ground_truth"),
    "the index of a question": ("index", "extra_info.index"),
}
POSITION = {"position": ("sub_index", "extra_info.sub_index")}


class RephrasingRowsSource(Source):
    """Source that groups rows into questions by `extra_info.index`; each row is one phrasing of a question.

    Reads the Parquet files of verl (`prompt`, a conversation; `reward_model.ground_truth`; `extra_info` with
    `index` and perhaps `sub_index`), and the table that they are made from (`question`, `answer`, `index`,
    `sub_index`).

    - Rows with the same index are ordered by `sub_index` or, without this field, as in the file. The first
      row is taken as the original question. The layout does not mark the original, so look at a few questions
      of a file that you did not make.
    - Lines that every prompt begins with are the instruction. They are removed, since templates add an
      instruction, and `report.notes` quotes them.
    - Rows without a question or an index only pad groups to the same size, and are left out. Questions whose
      rows have different answers are left out and listed under `answers_differ`; questions without an answer
      are left out and listed under `without_answer`.

    Args:
        path: A file, or a folder as for `HubSource`. None reads `DATASET` from the hub.
        config: Configuration on the hub; `MATH-A9-U` is the authors' training set, and `MATH` is the same set
            without rephrasings.
        split: `train` or `test`.
    """

    def __init__(
        self, path: str | Path | None = None, config: str | None = "MATH-A9-U", split: str = "train"
    ) -> None:
        self.path = path
        self.config = config
        self.split = split

    def load(self) -> list[QuestionGroup]:
        """Read the rows and group them into questions."""
        origin = (
            DATASET if self.path is None else locate(self.path, f"{self.config or 'default'}/{self.split}")
        )
        table = read_rows(origin, self.config, self.split)
        rows = read_fields(table, origin, REQUIRED, POSITION)
        texts = [question_text(row["a question"]) for _, row in rows]
        instruction = shared_lines([text for text in texts if text])
        linked: dict[str, list[tuple[float, str, tuple[str, ...]]]] = defaultdict(list)
        places: dict[str, str] = {}
        wrong = []
        for (place, row), text in zip(rows, texts, strict=True):
            question = f"{text}\n".removeprefix(instruction).strip()
            try:
                index = row_id(row["the index of a question"])
                if question and index is not None:
                    linked[index].append(
                        (_position(row.get("position")), question, answers(row["an answer"]))
                    )
                    places.setdefault(index, place)
            except RowError as error:
                wrong.append(f"{place}: expected {error}.")
        refuse(wrong)
        groups = []
        excluded: dict[str, list[str]] = defaultdict(list)
        for index, found in linked.items():
            (_, question, answer), *others = sorted(found, key=lambda row: row[0])
            if not answer:
                excluded["without_answer"].append(index)
            elif any(other != answer for *_, other in others):
                excluded["answers_differ"].append(index)
            else:
                groups.append(QuestionGroup(index, question, tuple(text for _, text, _ in others), answer))
        padding = len(rows) - sum(map(len, linked.values()))
        notes = [
            f"{len(rows)} rows are {len(linked)} questions; {padding} rows without question or index left out",
            f"the questions have the fingerprint {fingerprint(groups)}",
            *([f"removed from the start of every prompt: {instruction.strip()!r}"] if instruction else []),
        ]
        self.report = SourceReport(
            origin=str(origin), read=len(rows), excluded=dict(excluded), notes=notes, places=places
        )
        return groups


def _position(field: Any) -> float:
    """Return a row's position among the rows of its question, from a number or its text; 0 if unknown."""
    if not is_known(field) or field == "":
        return 0.0
    try:
        return float(field)
    except (TypeError, ValueError) as error:
        raise RowError(f"a number in `{POSITION['position'][0]}`, but got {repr(field)[:80]}") from error


def shared_lines(texts: Sequence[str]) -> str:
    r"""Return the lines that all texts begin with, including line breaks.

    Returns an empty text if there are fewer than two different texts.

    >>> shared_lines(["Think.\nBox it.\n1 + 1?", "Think.\nBox it.\n1 + 2?"])
    'Think.\nBox it.\n'
    """
    same = commonprefix([f"{text}\n" for text in texts]) if len(set(texts)) > 1 else ""  # noqa: RUF071 (texts, no paths)
    return same[: same.rfind("\n") + 1]
