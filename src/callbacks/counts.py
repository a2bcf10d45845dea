"""Keeps the counts of an evaluation in a folder, so that an interrupted evaluation can be continued."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from ..distributed import gather_objects, rank
from ..metrics.evaluation import Record
from ..runs.files import write_json
from ..runs.identity import digest


class CountStore:
    """Stores the records of `count_batch`, one line with a checksum each, in one folder per identity of an evaluation.

    Each rank appends to `<rank>.counts`; all files are read, so that the number of ranks may change in between.
    """

    identify: Callable[[], Mapping[str, str]] | None = None
    """Returns name → value of everything that the counts depend on. If None, all evaluations share one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.root = self.folder = Path(folder)

    def resume(self) -> list[Record]:
        """The counts so far of the present evaluation. Collective: no rank appends before rank 0 has read for all."""
        first = rank() == 0
        self.folder = self.root / gather_objects(self._name() if first else "")[0]
        return gather_objects(self.read() if first else [])[0]

    def _name(self) -> str:
        """Return the name of the present evaluation's folder, and write the evaluation's identity into it."""
        if self.identify is None:
            return ""
        identity = dict(self.identify())
        name = digest(identity)
        others = [path for path in self.root.glob("*/identity.json") if path.parent.name != name]
        if others and not (self.root / name).exists():
            then = json.loads(max(others, key=lambda path: path.stat().st_mtime).read_text())
            changed = ", ".join(part for part, value in identity.items() if then.get(part) != value)
            rank_zero_info(f"Sampled anew: not the same as in the evaluation before under this name ({changed}).")
        write_json(self.root / name / "identity.json", identity)
        return name

    def read(self) -> list[Record]:
        """All counts so far. Damaged lines are left out: their questions are sampled again."""
        records: list[Record] = []
        for file in sorted(self.folder.glob("*.counts")):
            lines = [line.partition("\t") for line in file.read_text(errors="replace").splitlines() if line]
            intact = [json.loads(text) for seal, _, text in lines if seal == _checksum(text)]
            records += intact
            if damaged := len(lines) - len(intact):
                rank_zero_warn(f"Skipping {damaged} of {len(lines)} lines of {file}: they were cut off or changed.")
        return records

    def append(self, number: int, records: Sequence[Record]) -> None:
        """Append the records of one batch to the file of rank `number`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number}.counts"
        # The rest of a line that was cut off must not swallow the next one.
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        texts = [json.dumps(record) for record in records]
        with path.open("a") as file:
            file.write("\n" * bool(torn) + "".join(f"{_checksum(text)}\t{text}\n" for text in texts))


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
