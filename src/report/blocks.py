"""Recorded rollouts of a run as compressed text inside an HTML page.

A block is `<script type="application/octet-stream" id=NAME data-columns=[[column, type, bytes],
…]>BASE64</script>`. After decoding and inflating (zlib), a block has the columns one after the other. A
column of numbers is little-endian and ordered by significance: the first bytes of all values, then the second
bytes, and so on. This compresses better. A column of type `json` is UTF-8. The browser inflates a block when
a part of it is shown.
"""

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping
from functools import cache, cached_property, lru_cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from ..analysis.rollouts import TOKENS, read_rollouts
from ..analysis.runs import RunFiles
from ..metrics.functional import CAUSES, zero_gradient_causes

STRINGS = ("question", "prompt", "template", "answer", "file")
FLAGS = ("correct", "truncated", "masked")
TOKENS_PER_BLOCK = 1 << 17
LEAST_BYTES = 3  # that a token takes in the page, which bounds the number of tokens that are tried


def block(name: str, columns: Mapping[str, Any], level: int = 6) -> str:
    """Return one block as HTML.

    Each of `columns` is a 1-D array or any other content that JSON can represent. An array is stored as bytes
    (`u1`, bool), integers (`i4`) or floats (`f4`, `f8`). In JSON, lone surrogates become escapes, so that
    every string is preserved. `level` is zlib's compression level.
    """
    parts = {column: _encoded(values) for column, values in columns.items()}
    text = base64.b64encode(zlib.compress(b"".join(content for _, content in parts.values()), level)).decode()
    directory = [[column, kind, len(content)] for column, (kind, content) in parts.items()]
    about = escape(json.dumps(directory, separators=(",", ":")))
    return f'<script type="application/octet-stream" id="{escape(name)}" data-columns="{about}">{text}</script>\n'


def _encoded(values: Any) -> tuple[str, bytes]:
    if not isinstance(values, np.ndarray):
        return "json", json.dumps(values, separators=(",", ":")).encode()
    kind = {"b": "u1", "i": "i4", "u": "i4"}.get(values.dtype.kind, values.dtype.str[1:])
    return kind, values.astype(f"<{kind}").view(np.uint8).reshape(len(values), int(kind[1])).T.tobytes()


def pieces_of(run: Path, config: Mapping[str, Any]) -> Callable[[int], str | list[str]]:
    """Return a function that decodes a single token.

    An incomplete character becomes `�`, and a special token becomes a list of one text. The `tokenizer.json`
    is taken from the run's exported model, from the path in the run's settings, or from the hub's cache.
    Without this file, tokens are shown as numbers.
    """
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    names = [
        str((config.get(part) or {}).get(key)) for part, key in (("data", "tokenizer"), ("model", "path"))
    ]
    cached = [
        try_to_load_from_cache(name, "tokenizer.json")
        for name in names
        if re.fullmatch(r"\w[^/]*/[^/]+", name)
    ]
    found = [folder / "tokenizer.json" for folder in (run / "model", *map(Path, names))]
    found += [Path(path) for path in cached if isinstance(path, str)]
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        return "#{} ".format
    tokenizer = Tokenizer.from_file(str(path))
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    @cache
    def shown(number: int) -> str | list[str]:
        if tokenizer.id_to_token(number) is None:
            return f"#{number} "
        text = str(tokenizer.decode([number], skip_special_tokens=False))
        return [text] if number in special else text

    return shown


class Responses:
    """Responses of a run in the order of iterations, questions and prompts, as columns and token by token.

    A row is a response, and a cell is a question in one iteration. The text of a response is written if its
    tokens do not reproduce it, or if it was recorded without tokens. The names of the blocks of tokens begin
    with `prefix`. Raises the errors of `read_rollouts`.
    """

    def __init__(self, run: RunFiles, prefix: str) -> None:
        frame, folder = read_rollouts(run.path), run.path / "rollouts"
        question, template = (pd.factorize(frame[name])[0] for name in ("question", "template"))
        order = np.lexsort((template, frame["rephrasing"], question, frame["iteration"]))
        self.frame = frame.iloc[order].reset_index(drop=True)
        self.prefix, self._shown = prefix, pieces_of(run.path, run.config)
        self._codes = {name: pd.factorize(self.frame[name], use_na_sentinel=False) for name in STRINGS}
        schemas = [pq.read_schema(folder / name) for name in self.names["file"]]
        self._lists = [name for name in TOKENS if all(name in schema.names for schema in schemas)]
        # [R] size of each response in tokens; a text without tokens counts by length
        text = self.frame["response"].fillna("")
        self.sizes = (self.rows["length"] if self._lists else text.str.len().to_numpy() // 4) + 1
        self._file = lru_cache(maxsize=4)(lambda name: pq.read_table(folder / name, columns=self._lists))

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Numbers and flags of the responses by column, [R] each; strings are indices into `names`."""
        frame, flags = self.frame, self.frame.reindex(columns=FLAGS)
        return {
            **{str(name): frame[name].to_numpy() for name in frame.select_dtypes("integer")},
            **{str(name): frame[name].to_numpy("f4") for name in frame.select_dtypes("floating")},
            **{name: codes for name, (codes, _) in self._codes.items()},
            **{name: flags[name].eq(True).to_numpy() for name in FLAGS},
        }

    @cached_property
    def cells(self) -> dict[str, Any]:
        """Values of the cells (questions of an iteration) by column, [C] each, in the order of the rows.

        The columns are `column` (iteration), `question`, `first` (first row of the cell), `samples`,
        `correct`, and `cause`: `gradient`, or the reason for a missing gradient (`zero_gradient_causes`).
        """
        first, cell = stretches(self.rows["iteration"], self.rows["question"])
        return {
            "column": self.rows["iteration"][first],
            "question": self.rows["question"][first],
            "first": first,
            "samples": np.bincount(cell),
            "correct": np.bincount(cell[self.rows["correct"]], minlength=len(first)),
            "cause": self._causes(cell),
        }

    def _causes(self, cell: np.ndarray) -> list[str]:
        prompt = stretches(cell, self.rows["rephrasing"], self.rows["template"])[1]
        numbers = [self.rows[name] for name in ("advantage", "reward", "correct", "truncated")]
        causes = zero_gradient_causes(
            *map(torch.tensor, (*numbers, cell, prompt)),
            masked=torch.tensor(self.rows["masked"]),
            clipped=torch.tensor(self.rows["clipped"]) if "clipped" in self.rows else None,
        )
        return [
            str(cause) for cause in np.select([causes[name].numpy() for name in CAUSES], CAUSES, "gradient")
        ]

    @cached_property
    def names(self) -> dict[str, list[Any]]:
        """Distinct values of each column of `STRINGS`, to which `rows` refers by index.

        If reference answers were recorded, `references` has the reference answers to each question, in the
        order of `question`.
        """
        found = {
            name: [None if pd.isna(x) else x for x in values] for name, (_, values) in self._codes.items()
        }
        if "reference" in self.frame:
            first = self.frame.drop_duplicates("question").set_index("question")["reference"]
            found["references"] = [first[question].tolist() for question in found["question"]]
        return found

    def blocks(self, room: float) -> tuple[int, list[str]]:
        """Return the number of responses that fit into `room` bytes, and the blocks with these responses.

        The name of a block has the block's first row. If there is too little room, the last responses to each
        prompt are left out first, and then whole prompts, evenly over training.
        """
        # The first response to every prompt, then the second ones, …; each time spread over training.
        start, group = stretches(self.rows["iteration"], self.rows["prompt"])
        order = np.lexsort(((group * 0.618034) % 1, np.arange(len(group)) - start[group]))
        used, room = np.cumsum(self.sizes[order]), max(room, 0.0)
        tokens = min(float(used[-1]), room / LEAST_BYTES)
        while True:
            kept = np.sort(order[used <= tokens])
            cuts = np.flatnonzero(np.diff((np.cumsum(self.sizes[kept]) - 1) // TOKENS_PER_BLOCK)) + 1
            found = [self._block(rows) for rows in np.split(kept, cuts) if len(rows)]
            size = sum(map(len, found))
            if size <= room:
                return len(kept), found
            tokens *= 0.97 * room / size

    def _block(self, rows: np.ndarray) -> str:
        columns: dict[str, Any] = {"rows": rows}
        texts: list[str | None] = self.frame["response"].iloc[rows].tolist()
        if self._lists:
            shown = [
                [self._shown(number) for number in ids.tolist()] for ids in self._column("token_ids", rows)
            ]
            joined = ["".join(piece for piece in tokens if isinstance(piece, str)) for tokens in shown]
            texts = [None if text == own else text for text, own in zip(texts, joined, strict=True)]
            columns["tokens"] = shown
            for name in self._lists[1:]:
                # Float32 with ten bits of fraction, the precision of the display; zeros compress well.
                bits = np.concatenate(self._column(name, rows)).astype("f4").view("u4") & np.uint32(
                    0xFFFFE000
                )
                columns[name.removeprefix("token_")] = bits.view("f4")
        if any(text is not None for text in texts):
            columns["texts"] = texts
        return block(f"{self.prefix}/tokens/{rows[0]}", columns, level=9)

    def _column(self, name: str, rows: np.ndarray) -> list[np.ndarray]:
        """Return the list in column `name` of each row; a null list is replaced by NaN for each token."""
        places = self.frame[["file", "line", "length"]].iloc[rows].itertuples(index=False)
        found = [(self._file(file)[name][line].values, length) for file, line, length in places]
        return [
            np.full(n, np.nan) if values is None else values.to_numpy(zero_copy_only=False)
            for values, n in found
        ]


def stretches(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into stretches of successive rows that are equal in all columns.

    Return the first row of each stretch, [C], and the stretch of each row, [R].
    """
    change = np.any([np.diff(column, prepend=-1) != 0 for column in columns], axis=0)
    return np.flatnonzero(change), np.cumsum(change) - 1
