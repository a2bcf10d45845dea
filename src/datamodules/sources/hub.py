"""Public datasets of the papers, from the hub or from a local copy."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...rewards.extraction import extract_reference
from ...types import QuestionGroup
from ..overlap import words
from .base import Source, SourceReport, fingerprint, plain
from .catalogue import CATALOGUE
from .files import Row, RowError, read_rows, refuse
from .rephrasings import read_rephrasings, with_rephrasings
from .rows import (
    Ranges,
    answers,
    check_ranges,
    locate,
    plain_value,
    question_text,
    read_fields,
    row_id,
    select,
)

LETTERS = "ABCDEFGHIJ"


class HubSource(Source):
    """Source that reads a dataset of `catalogue.CATALOGUE`.

    `report` names the rows that are left out: rows without an answer and, if the catalogue says so,
    duplicates. It also warns if a copy is incomplete or of another version. The choices of a multiple-choice
    question are shuffled by `seed` and the row's id, and follow the question as `A) …`; the answer is the
    letter of the correct choice.

    Args:
        dataset: Name in the catalogue.
        path: A file (JSON lines, JSON, Parquet, CSV), a folder that contains the file `<dataset>.jsonl` or
            the like, or a copy of the hub's repository. None reads from the hub. Ids and content are equal in
            all cases.
        rephrasings: File of JSON lines with `question` and `rephrasings`, as written by `tagrpo-rephrase`.
            Each question gets the rephrasings listed for its text. None for no rephrasings.
        within: Field of the metadata → its smallest and largest value; see `rows.select`. `{level: [3, 5]}`
            leaves out what MATH calls levels 1 and 2, and `Level ?`.
        chunks: Numbers of the chunks to take; None takes all questions. To make chunks, questions are ordered
            by a hash of `seed` and their text, so that chunks are random, disjoint, and equal on every
            machine.
        chunk_size: Questions per chunk.
        seed: Seed of the chunks and of the order of choices.
    """

    setting: str = "source"
    """Name of the source's settings in messages; the data module sets `data.train`, for example."""

    def __init__(
        self,
        dataset: str,
        path: str | Path | None = None,
        rephrasings: str | Path | None = None,
        chunks: Sequence[int] | None = None,
        chunk_size: int = 3749,
        seed: int = 0,
        within: Ranges | None = None,
    ) -> None:
        if dataset not in CATALOGUE:
            raise ValueError(f"Expected `dataset` to be one of {', '.join(CATALOGUE)}, but got {dataset!r}.")
        if chunks is not None and (len(set(chunks)) < len(chunks) or min(chunks, default=-1) < 0):
            raise ValueError(f"Expected `chunks` to be numbers from 0, each once, but got {list(chunks)}.")
        if chunk_size < 1:
            raise ValueError(f"Expected `chunk_size` to be at least 1, but got {chunk_size}.")
        check_ranges(within or {})
        self.dataset = dataset
        self.known = CATALOGUE[dataset]
        self.path = path
        self.rephrasings = rephrasings
        self.seed = seed
        self.within = within or {}
        self.chunks = None if chunks is None else list(chunks)
        self.chunk_size = chunk_size

    def load(self) -> list[QuestionGroup]:
        """Read the dataset.

        Raises:
            ValueError: if columns, fields or chunks are missing, or ids repeat; the message names them.
        """
        known = self.known
        origin = known.hub if self.path is None else locate(self.path, self.dataset, known.hub)
        table = read_rows(
            origin,
            known.config,
            known.split,
            folder=known.folder,
            columns=known.columns,
            setting=self.setting,
        )
        groups, excluded, places = self._read(table, origin)
        read = len(groups) + sum(map(len, excluded.values()))
        notes, warnings = self._compared(read, groups)
        groups, outside = select(groups, self.within, origin)
        if known.wrong_choices:
            groups = [self._with_choices(group) for group in groups]
        if self.chunks is not None:
            groups = self._chunks(groups, self.chunks, origin)
            notes.append(
                f"took chunks {self.chunks} of {self.chunk_size} questions in the order of seed {self.seed}"
            )
        if self.rephrasings is not None:
            groups, told = with_rephrasings(groups, read_rephrasings(self.rephrasings))
            notes.append(told)
        excluded |= outside
        self.report = SourceReport(
            origin=str(origin), read=read, excluded=excluded, notes=notes, warnings=warnings, places=places
        )
        return groups

    def _read(
        self, table: Iterable[Row], origin: str | Path
    ) -> tuple[list[QuestionGroup], dict[str, list[str]], dict[str, str]]:
        """Return the usable questions, the ids of the others by reason, and the places of usable rows by id.

        Raises:
            ValueError: if an answer or an id has the wrong type; the message lists the first such rows.
        """
        known = self.known
        required = {"a question": known.question, "an answer": known.answer}
        required |= {wrong: [wrong] for wrong in known.wrong_choices}
        optional = {name: [name] for name in (*known.metadata, known.id) if name}
        excluded: dict[str, list[str]] = defaultdict(list)
        kept: dict[str, QuestionGroup] = {}
        seen: set[tuple[str, ...]] = set()
        places: dict[str, str] = {}
        wrong = []
        for number, (place, row) in enumerate(read_fields(table, origin, required, optional)):
            try:
                group = self._group(number, row)
            except RowError as error:
                wrong.append(f"{place}: expected {error}.")
                continue
            text = words(group.question) if known.deduplicate else ()
            if not group.question or not group.answer:
                excluded["without_answer" if group.question else "without_question"].append(group.id)
            elif known.deduplicate and text in seen:
                excluded["repeated"].append(group.id)
            elif group.id in kept:
                raise ValueError(
                    f"{origin}: expected every row to have a different id, but {group.id!r} is repeated."
                )
            else:
                kept[group.id] = group
                places[group.id] = place
                seen.add(text)
        refuse(wrong)
        return list(kept.values()), dict(excluded), places

    def _group(self, number: int, row: Mapping[str, Any]) -> QuestionGroup:
        """Return the question of a row; its text or its answer is empty if the row lacks it."""
        known = self.known
        name = row_id(row.get(known.id)) if known.id else None
        metadata = {field: plain_value(row[field]) for field in known.metadata if field in row}
        if known.wrong_choices:
            metadata["wrong_choices"] = [str(row[choice]).strip() for choice in known.wrong_choices]
        question = question_text(row["a question"])
        answer = row["an answer"]
        if known.worked and isinstance(answer, str):
            answer = list(extract_reference(answer, question))
        return QuestionGroup(
            id=f"{self.dataset}-{number if name is None else name}",
            question=question,
            rephrasings=(),
            answer=tuple(text for text in answers(answer) if text.lower() not in known.no_answer),
            metadata=metadata,
        )

    def _with_choices(self, group: QuestionGroup) -> QuestionGroup:
        """Return the question followed by its shuffled choices; the metadata lists them in this order."""
        choices = [group.answer[0], *group.metadata["wrong_choices"]]
        random.Random(f"{self.seed}/{group.id}").shuffle(choices)
        lettered = dict(zip(LETTERS, choices, strict=False))
        lines = [f"{letter}) {choice}" for letter, choice in lettered.items()]
        return group._replace(
            question="\n".join(
                [group.question, "", *lines, "", "Answer with the letter of the correct choice."]
            ),
            answer=tuple(letter for letter, choice in lettered.items() if choice == group.answer[0]),
            metadata={**group.metadata, "choices": choices},
        )

    def _compared(self, rows: int, groups: Sequence[QuestionGroup]) -> tuple[list[str], list[str]]:
        """Compare the copy with the catalogue. Return notes, and warnings if the copy differs."""
        known = self.known
        found = fingerprint(groups)
        unknown = ", which could not be compared with a known one" if known.fingerprint is None else ""
        compared = {
            "rows": (rows, known.rows),
            "questions with an answer": (len(groups), known.questions or len(groups)),
            "as fingerprint": (found, known.fingerprint or found),
        }
        differ = ", ".join(
            f"{is_} {what} instead of {was}" for what, (is_, was) in compared.items() if is_ != was
        )
        warnings = [f"another version of {self.dataset}, or not all of it: {differ}"] if differ else []
        return [f"all {len(groups)} questions have the fingerprint {found}{unknown}"], warnings

    def _chunks(
        self, groups: list[QuestionGroup], chunks: list[int], origin: str | Path
    ) -> list[QuestionGroup]:
        size = self.chunk_size
        needed = (max(chunks, default=-1) + 1) * size
        if needed > len(groups):
            raise ValueError(
                f"{origin}: expected {needed} questions for the chunks {chunks} of {size}, but there are "
                f"{len(groups)}. Take other `chunks`."
            )

        def place(group: QuestionGroup) -> tuple[bytes, str]:
            text = f"{self.seed}/{plain(group.question)}"
            return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), group.id

        ordered = sorted(groups, key=place)
        kept: list[QuestionGroup] = []
        for chunk in chunks:
            kept += ordered[chunk * size : (chunk + 1) * size]
        return kept
