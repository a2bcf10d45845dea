"""The counts of an evaluation in a folder, so that an interrupted evaluation can be continued."""

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
    """Records of `count_batch`, a line with checksum each, in a folder for each evaluation of another identity.

    Each rank appends to `<rank>.counts`; all files are read, so that the number of ranks may change in between.
    """

    identify: Callable[[], Mapping[str, str]] | None = None
    """Says part by part what the counts depend on; None keeps all of them together."""

    def __init__(self, folder: str | Path) -> None:
        self.root = self.folder = Path(folder)

    def resume(self) -> list[Record]:
        """What was counted so far of what is evaluated now. Collective: no rank appends before one has read for all."""
        first = rank() == 0
        self.folder = self.root / gather_objects(self._name() if first else "")[0]
        return gather_objects(self.read() if first else [])[0]

    def _name(self) -> str:
        """Name of the folder for what is evaluated now, which is written there."""
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
        """Everything that was counted so far. Damaged lines are left out: their questions are sampled again."""
        records: list[Record] = []
        for file in sorted(self.folder.glob("*.counts")):
            lines = [line.partition("\t") for line in file.read_text(errors="replace").splitlines() if line]
            intact = [json.loads(text) for seal, _, text in lines if seal == _checksum(text)]
            records += intact
            if damaged := len(lines) - len(intact):
                rank_zero_warn(f"Skipping {damaged} of {len(lines)} lines of {file}: they were cut off or changed.")
        return records

    def append(self, number: int, records: Sequence[Record]) -> None:
        """Add the records of one batch on the rank of this number, at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number}.counts"
        # The rest of a line that was cut off must not swallow the next one.
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        texts = [json.dumps(record) for record in records]
        with path.open("a") as file:
            file.write("\n" * bool(torn) + "".join(f"{_checksum(text)}\t{text}\n" for text in texts))


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
