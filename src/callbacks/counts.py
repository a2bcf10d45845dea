"""The counts of an evaluation in a folder, so that an interrupted evaluation can be continued."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_json
from ..metrics.evaluation import Record


class CountStore:
    """Records of `EvaluationCounts` in `folder`, one line of JSON each, beside the `settings.json` of the evaluation.

    Each rank appends to `<rank>.jsonl`; all files are read, so that the number of ranks may change in between.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Write down the settings of this evaluation, or refuse to add to the counts of another one.

        Raises:
            ValueError: the counts in the folder were made with other settings.
        """
        path = self.folder / "settings.json"
        if not path.exists():
            write_json(path, dict(settings))
            return
        then = json.loads(path.read_text())
        if odd := sorted(name for name in {*then, *settings} if then.get(name) != settings.get(name)):
            raise ValueError(
                f"Expected the counts in {self.folder} to be of the same evaluation, but "
                + ", ".join(f"{name} was {then.get(name)!r} and is {settings.get(name)!r}" for name in odd)
                + ". Give this evaluation a name of its own (name=…), or delete that folder."
            )

    def read(self) -> list[Record]:
        """Everything that was counted so far; a line that was cut off when the process died is left out."""
        records = []
        for file in sorted(self.folder.glob("*.jsonl")):
            for line in file.read_text().splitlines():
                try:
                    records.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return records

    def append(self, rank: int, records: Sequence[Record]) -> None:
        """Add the records of one batch, at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{rank}.jsonl"
        # The rest of a line that was cut off must not swallow the next one.
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        with path.open("a") as file:
            file.write("\n" * bool(torn) + "".join(json.dumps(record) + "\n" for record in records))
