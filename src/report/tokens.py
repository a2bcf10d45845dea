"""The tokens of a run's responses in blocks, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ..analysis.rollouts import TOKENS
from .blocks import block
from .recorded import Recorded, stretches

TOKENS_PER_BLOCK = 1 << 17
LEAST_BYTES = 3
"""Fewest bytes that a token takes in the page, which bounds the number of tokens that are tried."""


class Responses:
    """The responses of a run, to be written token by token.

    A response whose tokens do not reproduce its text, or that was recorded without tokens, is written with its text.

    Args:
        folder: The Parquet files.
        recorded: The run's rows.
        shown: Token → its text, see `pieces_of`.
        prefix: Prefix of the names of the run's blocks.
    """

    def __init__(self, folder: Path, recorded: Recorded, shown: Callable[[int], str | list[str]], prefix: str) -> None:
        self.recorded, self.shown, self.prefix = recorded, shown, prefix
        schemas = [pq.read_schema(folder / name) for name in recorded.names["file"]]
        self.names = [name for name in TOKENS if all(name in schema.names for schema in schemas)]
        # [R] what each response takes, in tokens; a text without tokens counts by its length
        text = recorded.frame["response"].fillna("")
        self.sizes = (recorded.rows["length"] if self.names else text.str.len().to_numpy() // 4) + 1
        self._file = lru_cache(maxsize=4)(lambda name: pq.read_table(folder / name, columns=self.names))

    def blocks(self, room: float) -> tuple[int, list[str]]:
        """The number of responses that fit into `room` bytes, and their blocks, each named by its first row.

        The last responses to each prompt are left out first, then whole prompts, evenly over training.
        """
        order = self._by_importance()
        used, room = np.cumsum(self.sizes[order]), max(room, 0.0)
        tokens = min(float(used[-1]), room / LEAST_BYTES)
        while True:
            kept = np.sort(order[used <= tokens])
            found = [self._block(rows) for rows in self._parts(kept)]
            size = sum(map(len, found))
            if size <= room:
                return len(kept), found
            tokens *= 0.97 * room / size

    def _by_importance(self) -> np.ndarray:
        """[R] the rows: the first response to every prompt, then the second ones, …; each time spread over training."""
        start, group = stretches(self.recorded.rows["iteration"], self.recorded.rows["prompt"])
        rank = np.arange(len(group)) - start[group]
        golden = (group * 0.618034) % 1
        return np.asarray(np.lexsort((golden, rank)))

    def _parts(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Ascending rows, cut into the rows of each block."""
        number = (np.cumsum(self.sizes[rows]) - 1) // TOKENS_PER_BLOCK
        yield from np.split(rows, np.flatnonzero(np.diff(number)) + 1) if len(rows) else ()

    def _block(self, rows: np.ndarray) -> str:
        columns: dict[str, Any] = {"rows": rows}
        texts: list[str | None] = self.recorded.frame["response"].iloc[rows].tolist()
        if self.names:
            shown = [[self.shown(number) for number in ids.tolist()] for ids in self._column("token_ids", rows)]
            joined = ["".join(piece for piece in tokens if isinstance(piece, str)) for tokens in shown]
            texts = [None if text == own else text for text, own in zip(texts, joined, strict=True)]
            columns["tokens"] = shown
            for name in self.names[1:]:
                columns[name.removeprefix("token_")] = three_digits(np.concatenate(self._column(name, rows)))
        if any(text is not None for text in texts):
            columns["texts"] = texts
        return block(f"{self.prefix}/tokens/{rows[0]}", columns, level=9)

    def _column(self, name: str, rows: np.ndarray) -> list[np.ndarray]:
        """The list of each row; a row whose list is null has NaN for each of its tokens."""
        places = self.recorded.frame[["file", "line", "length"]].iloc[rows].itertuples(index=False)
        found = [(self._file(file)[name][line].values, length) for file, line, length in places]
        return [np.full(n, np.nan) if values is None else values.to_numpy(zero_copy_only=False) for values, n in found]


def three_digits(values: np.ndarray) -> np.ndarray:
    """Truncate [t] values to float32 with ten bits of fraction, as precise as they are shown; zeros compress well."""
    return (values.astype("f4").view("u4") & np.uint32(0xFFFFE000)).view("f4")
