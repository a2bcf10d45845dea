"""Tokens as the bytes that they stand for, so that a page shows text from token numbers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


class Vocabulary:
    """The tokens that occur in a run: [V] `ids`, the most frequent first.

    Without a `tokenizer.json` they are shown by their number.
    """

    def __init__(self, ids: np.ndarray, tokenizer: Path | None) -> None:
        self.ids = ids
        self.pieces: list[bytes] = [b"#%d " % number for number in ids]
        self.special = [False] * len(ids)
        if tokenizer is not None:
            self._read(tokenizer)
        self._place = {int(number): place for place, number in enumerate(ids)}

    def _read(self, path: Path) -> None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        by_bytes = '"ByteLevel"' in json.dumps(json.loads(path.read_text(encoding="utf-8")).get("decoder"))
        for place, number in enumerate(map(int, self.ids)):
            token = tokenizer.id_to_token(number)
            if token is not None:
                self.pieces[place] = _bytes_of(token, by_bytes and number not in special)
                self.special[place] = number in special

    def places(self, ids: np.ndarray) -> np.ndarray:
        """[n] u4 place of each token number in this vocabulary."""
        order = np.argsort(self.ids)
        return order[np.searchsorted(self.ids, ids, sorter=order)].astype("u4")

    def text(self, places: np.ndarray) -> str:
        """The text of the tokens at these places, special ones left out."""
        found = (self.pieces[place] for place in places.tolist() if not self.special[place])
        return b"".join(found).decode("utf-8", "replace")

    def columns(self) -> dict[str, Any]:
        """As a block: all bytes, where each token's end, and which are special."""
        return {
            "bytes": np.frombuffer(b"".join(self.pieces), np.uint8),
            "ends": np.cumsum([len(piece) for piece in self.pieces]).astype("u4"),
            "special": np.array(self.special, dtype="u1"),
            "ids": self.ids.astype("u4"),
        }


def _bytes_of(token: str, by_bytes: bool) -> bytes:
    r"""The bytes of a token: GPT-2's letters for bytes, or SentencePiece's `▁` and `<0x0A>`.

    >>> _bytes_of("Ġsum", by_bytes=True), _bytes_of("▁sum", by_bytes=False), _bytes_of("<0x0A>", by_bytes=False)
    (b' sum', b' sum', b'\n')
    """
    if by_bytes:
        table = _letters_of_bytes()
        return b"".join(bytes([table[c]]) if c in table else c.encode() for c in token)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode("utf-8", "replace")


@cache
def _letters_of_bytes() -> dict[str, int]:
    """Letter → byte of byte-level BPE (GPT-2): printable Latin letters are themselves, others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def tokenizer_of(run: Path, config: Mapping[str, Any]) -> Path | None:
    """The `tokenizer.json` of a run: beside its exported model, where its settings point, or in the hub's cache."""
    return next((path for path in _candidates(run, config) if path.is_file()), None)


def _candidates(run: Path, config: Mapping[str, Any]) -> Iterator[Path]:
    yield run / "model" / "tokenizer.json"
    for name in {str((config.get(part) or {}).get(key)) for part, key in (("data", "tokenizer"), ("model", "path"))}:
        yield Path(name) / "tokenizer.json"
        if name.count("/") == 1 and not name.startswith(("/", ".")):
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(name, "tokenizer.json")
            if isinstance(found, str):
                yield Path(found)
