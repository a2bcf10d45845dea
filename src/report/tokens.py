"""The tokens of a run's responses in blocks, as many as there is room for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .blocks import block
from .recorded import TOKENS, Recorded, stretches
from .vocabulary import Vocabulary

TOKENS_PER_BLOCK = 1 << 17
SAMPLED_BLOCKS = 8
"""Blocks that are compressed to learn how well the tokens of a run compress."""


class Responses:
    """The responses of a run, to be written token by token.

    A response whose text its tokens do not give back, or that was recorded without tokens, has its text beside them.

    Args:
        recorded: The run's rows.
        tokenizer: Its `tokenizer.json`, where it was found.
        prefix: Of the names of its blocks.
    """

    def __init__(self, recorded: Recorded, tokenizer: Path | None, prefix: str) -> None:
        self.recorded = recorded
        self.prefix = prefix
        self.text = recorded.table["response"].combine_chunks()
        self.names = [name for name in TOKENS if all(name in pq.read_schema(file).names for file in recorded.files)]
        self.has_tokens = "token_ids" in self.names
        self._read = lru_cache(maxsize=4)(self._file)
        self.vocabulary = Vocabulary(self._occurring(), tokenizer)

    def _file(self, index: int) -> pa.Table:
        return pq.read_table(self.recorded.files[index], columns=self.names).combine_chunks()

    def _occurring(self) -> np.ndarray:
        """[V] token numbers of all responses, the most frequent first."""
        counts = np.zeros(0, np.int64)
        for index in range(len(self.recorded.files) if self.has_tokens else 0):
            found = np.bincount(self._read(index)["token_ids"].chunk(0).values.to_numpy())
            short, long = sorted((counts, found), key=len)
            counts = long + np.pad(short, (0, len(long) - len(short)))
        occurring = np.flatnonzero(counts)
        return occurring[np.argsort(-counts[occurring], kind="stable")]

    @cached_property
    def sizes(self) -> np.ndarray:
        """[R] what each response takes, in tokens; a text without tokens counts by its length."""
        if self.has_tokens:
            return np.asarray(self.recorded.rows["length"].astype(np.int64) + 1)
        return np.array([len(text or "") // 4 + 1 for text in self.text.to_pylist()])

    @cached_property
    def bytes_per_token(self) -> float:
        """Of the page, estimated from a few blocks."""
        parts = list(self._parts(np.ones(len(self.recorded), dtype=bool)))
        chosen = [parts[i] for i in sorted({round(i) for i in np.linspace(0, len(parts) - 1, SAMPLED_BLOCKS)})]
        size = sum(len(self._block(number, rows)) for number, rows in enumerate(chosen))
        return size / max(sum(int(self.sizes[rows].sum()) for rows in chosen), 1)

    def blocks(self, room: float) -> tuple[int, list[tuple[int, str]]]:
        """How many responses fit into `room` bytes, and their blocks.

        Left out are first the last responses to each prompt, then whole prompts, evenly over training.

        Returns:
            The number of responses, and of each block its first row and its HTML, in the order of the rows.
        """
        cost, order = self.sizes * self.bytes_per_token, self._by_importance()
        kept = np.zeros(len(self.recorded), dtype=bool)
        kept[order[np.cumsum(cost[order]) <= room]] = True
        while True:
            found = [(int(rows[0]), self._block(number, rows)) for number, rows in enumerate(self._parts(kept))]
            size = sum(len(text) for _, text in found)
            if size <= room:
                return int(kept.sum()), found
            remaining = order[kept[order]]
            kept[remaining[np.cumsum(cost[remaining]) > cost[remaining].sum() * 0.97 * room / size]] = False

    def _by_importance(self) -> np.ndarray:
        """[R] the rows: the first response to every prompt, then the second ones, …; each time spread over training."""
        rows = self.recorded.rows
        start, group = stretches(rows["iteration"], rows.get("prompt", rows["question"]))
        rank = np.arange(len(group)) - start[group]
        golden = (group * 0.6180339887498949) % 1
        return np.asarray(np.lexsort((golden, rank)))

    def _parts(self, kept: np.ndarray) -> Iterator[np.ndarray]:
        """The kept rows, cut into the rows of each block."""
        rows = np.flatnonzero(kept)
        number = (np.cumsum(self.sizes[rows]) - 1) // TOKENS_PER_BLOCK
        yield from np.split(rows, np.flatnonzero(np.diff(number)) + 1) if len(rows) else ()

    def _block(self, number: int, rows: np.ndarray) -> str:
        columns: dict[str, Any] = {"rows": rows.astype("u4")}
        texts: list[str | None] = self.text.take(pa.array(rows)).to_pylist()
        if self.has_tokens:
            lists = self._lists(rows)
            ids = lists["token_ids"]
            places = self.vocabulary.places(ids.values.to_numpy())
            ends = np.asarray(ids.offsets)[1:]
            parts = np.split(places, ends[:-1])
            texts = [
                None if text == self.vocabulary.text(part) else text for text, part in zip(texts, parts, strict=True)
            ]
            columns["ids"] = places.astype("u2") if len(self.vocabulary.ids) <= 1 << 16 else places
            for name, short in (("token_logprobs", "logprobs"), ("token_entropies", "entropies")):
                if name in lists:
                    columns[short] = halved(beside(lists[name], ends))
        if any(text is not None for text in texts):
            columns["texts"] = texts
        return block(f"{self.prefix}/tokens/{number}", columns, level=9)

    def _lists(self, rows: np.ndarray) -> dict[str, pa.ListArray]:
        """Column of tokens → one list per row."""
        file, line = (self.recorded.rows[name][rows] for name in ("file", "line"))
        found = np.unique(file)
        places = np.concatenate([np.flatnonzero(file == index) for index in found])
        back = pa.array(np.argsort(places))
        return {
            name: pa.concat_arrays(
                [self._read(int(i))[name].chunk(0).take(pa.array(line[file == i])) for i in found]
            ).take(back)
            for name in self.names
        }


def beside(lists: pa.ListArray, ends: np.ndarray) -> np.ndarray:
    """[t] float32 values of all lists, NaN for the tokens of a response whose list is null."""
    values = np.full(int(ends[-1]) if len(ends) else 0, np.nan, dtype=np.float32)
    there = np.repeat(lists.is_valid().to_numpy(zero_copy_only=False), np.diff(ends, prepend=0))
    values[there] = lists.flatten().to_numpy(zero_copy_only=False)
    return values


def halved(values: np.ndarray) -> np.ndarray:
    """Half-precision floats: three digits, which is what is shown; what is too large is the largest."""
    limit = np.finfo(np.float16).max
    return np.clip(values, -limit, limit).astype(np.float16)
