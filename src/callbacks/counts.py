"""Counts of an evaluation on disk, so that an interrupted evaluation can be continued."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from ..digests import json_digest
from ..distributed import gather_objects, rank
from ..files import check_kind, write_json
from ..foreign import Count, ForeignDataError, Message, Text, read_json
from ..metrics.evaluation import QuestionCounts, joined

MOST = 2**53
"""Exclusive upper limit of a count: a float represents every smaller whole number exactly."""
Key = tuple[str, str]
"""Split and id of a question."""


class StoredCounts(Message):
    """Counts of one question, as `count_batch` returns them."""

    metadata: dict[str, Any]
    n: Count
    correct: Count
    right: list[Any]
    wrong: dict[str, Count]
    tokens: Count
    truncated: Count


class StoredRecord(Message):
    """One line of a file of counts."""

    split: Text
    id: Text
    counts: StoredCounts


class CountStore:
    """Store for the records of `count_batch`, with one folder per identity of an evaluation.

    Each record is a line with a checksum. Each rank appends to `<rank>.counts` and all files are read, so
    that a continued evaluation may have another number of ranks. Checksums also depend on the identity: a
    line copied from another evaluation is treated as damaged.
    """

    identify: Callable[[], Mapping[str, str]] | None = None
    """Function that returns the identity of the evaluation: name → value of everything the counts depend on.

    If None, all evaluations share one folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.root = self.folder = Path(folder)
        self._name = ""

    def resume(self) -> dict[Key, QuestionCounts]:
        """Read the counts that earlier attempts at this evaluation have stored.

        Collective: rank 0 reads for all ranks, before any rank appends.

        Raises:
            FileExistsError: if something other than a file is at the path of a file to be written.
        """
        first = rank() == 0
        self._name = gather_objects(self._begin() if first else "")[0]
        self.folder = self.root / self._name
        check_free(self.folder / f"{rank()}.counts")
        return gather_objects(self.read() if first else {})[0]

    def _begin(self) -> str:
        """Write the evaluation's identity to its folder, and return the folder's name."""
        if self.identify is None:
            return ""
        identity = dict(self.identify())
        name = json_digest(identity)
        if not (self.root / name).exists() and (differ := self._nearest(identity)):
            rank_zero_info(
                "Sampled anew: there are no counts of the same evaluation. The most similar one before "
                f"differs in {', '.join(differ)}."
            )
        check_free(self.root / name / "identity.json")
        write_json(self.root / name / "identity.json", identity)
        return name

    def _nearest(self, identity: Mapping[str, str]) -> list[str]:
        """Return the parts of `identity` in which the most similar earlier evaluation differs, if any."""
        found = []
        for path in sorted(self.root.glob("*/identity.json")):
            try:
                then = read_json(dict[str, str], path.read_bytes(), source=str(path), remedy="Delete it.")
            except (ForeignDataError, OSError):  # damage of another evaluation does not matter here
                continue
            found.append([part for part, value in identity.items() if then.get(part) != value])
        return min(found, key=len, default=[])

    def read(self) -> dict[Key, QuestionCounts]:
        """Return the record of each question of this evaluation.

        Damaged lines, lines of other evaluations and duplicates are skipped with a warning. Questions of
        damaged lines are sampled again. If a question has several records, the record with the most responses
        is returned.

        Raises:
            ForeignDataError: if two records of a question differ but have the same number of responses.
        """
        records: dict[Key, QuestionCounts] = {}
        places: dict[Key, str] = {}
        for file in sorted(self.folder.glob("*.counts")):
            if not (file.stem.isascii() and file.stem.isdecimal() and file.is_file()):
                rank_zero_warn(f"Skipping {file}: no rank has written it. If it is a copy, delete it.")
                continue
            lines = [line for line in file.read_bytes().split(b"\n") if line]
            damaged = copies = 0
            for line in lines:
                try:
                    record = read_line(line, self._name, str(file))
                except ForeignDataError:
                    damaged += 1
                    continue
                key = record["split"], record["id"]
                before = records.get(key)
                if before == record:
                    copies += 1
                    continue
                n, earlier = record["counts"]["n"], before["counts"]["n"] if before else 0
                if n == earlier:
                    raise ForeignDataError(
                        f"Expected one record of each question, but {places[key]} and {file} have different "
                        f"ones of {key[1]!r} of {key[0]!r}, both with {n} responses. Delete the file that "
                        "you have put there, or both: missing questions are sampled again."
                    )
                if n > earlier:
                    records[key], places[key] = record, str(file)
            if damaged:
                rank_zero_warn(
                    f"Skipping {damaged} of {len(lines)} lines of {file}: they were cut off or changed, or "
                    "are of another evaluation."
                )
            if copies:
                rank_zero_warn(
                    f"Skipping {copies} of {len(lines)} lines of {file}: they are copies of others."
                )
        return records

    def suffices(self, record: QuestionCounts, wanted: int) -> bool:
        """Return whether a record has all `wanted` responses to its question.

        An evaluation with an identity always wants the same number of responses. A record with more responses
        is from another evaluation: it is refused with a warning.
        """
        found = int(record["counts"]["n"])
        if self.identify is None or found <= wanted:
            return found >= wanted
        rank_zero_warn(
            f"Skipping the counts of {record['id']!r} of {record['split']!r} in {self.folder}: they are of "
            f"{found} responses, but this evaluation samples {wanted}. The question is sampled again."
        )
        return False

    def append(self, number: int, records: Sequence[QuestionCounts]) -> None:
        """Append the records of one batch to the file of rank `number`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number}.counts"
        # The rest of a line that was cut off must not swallow the next one.
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        texts = [json.dumps(record) for record in joined(records)]
        with path.open("a") as file:
            file.write(
                "\n" * bool(torn) + "".join(f"{seal_of(text, self._name)}\t{text}\n" for text in texts)
            )


def check_free(path: Path) -> None:
    """Check that nothing is in the way of a file at `path`.

    Raises:
        FileExistsError: if `path` exists but is not a file, or a parent exists but is not a folder.
    """
    check_kind(path, "file")
    for folder in path.absolute().parents:
        check_kind(folder, "folder")


def read_line(line: bytes, name: str, source: str) -> QuestionCounts:
    """Read a line of counts of the evaluation `name`.

    Raises:
        ForeignDataError: if the line is damaged or belongs to another evaluation.
    """
    remedy = "Delete the line; its question is sampled again."
    text = line.decode("utf-8", "replace")
    seal, _, content = text.partition("\t")
    if seal != seal_of(content, name):
        raise ForeignDataError(
            f"Expected a line of {source} to begin with its checksum, not {seal[:8]!r}. {remedy}"
        )
    record = read_json(StoredRecord, content, source=f"a line of {source}", remedy=remedy).model_dump()
    counts = record["counts"]
    answers = [*counts["right"], *counts["wrong"]]
    sound = (
        counts["n"] <= counts["tokens"] < MOST  # no response is empty
        and counts["n"] >= max(1, counts["correct"] + sum(counts["wrong"].values()), counts["truncated"])
        and len(counts["right"]) <= counts["correct"]
        and all(isinstance(answer, str) for answer in answers)
    )
    if not sound:
        raise ForeignDataError(
            f"Expected a line of {source} with counts that add up, but got {counts}. {remedy}"
        )
    return record


def seal_of(text: str, name: str) -> str:
    """Return the checksum of a record's JSON text in the evaluation `name`, as 8 hex digits."""
    sealed = f"{name}\t{text}" if name else text
    return f"{zlib.crc32(sealed.encode('utf-8', 'surrogatepass')):08x}"
