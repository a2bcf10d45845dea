"""Tokens as the bytes that they stand for, and as text that can be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any


class Pieces:
    """What the tokens of a tokenizer stand for.

    Args:
        path: Its `tokenizer.json`; without one, tokens are shown by their numbers.
    """

    def __init__(self, path: Path | None) -> None:
        self._tokenizer: Any = None
        self._special: set[int] = set()
        self._by_bytes = False
        self._shown = cache(self._find)
        if path is not None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))
            added = self._tokenizer.get_added_tokens_decoder()
            self._special = {number for number, token in added.items() if token.special}
            decoder = json.loads(path.read_text(encoding="utf-8")).get("decoder")
            self._by_bytes = '"ByteLevel"' in json.dumps(decoder)

    def shown(self, ids: Iterable[int]) -> list[str | list[str]]:
        """Each token as text; a special one in a list of its own."""
        return [self._shown(number) for number in ids]

    def _find(self, number: int) -> str | list[str]:
        name = self._tokenizer.id_to_token(number) if self._tokenizer is not None else None
        if name is None:
            return f"#{number} "
        special = number in self._special
        piece = _bytes_of(name, self._by_bytes and not special)
        text = piece.decode("utf-8", "backslashreplace")  # bytes of an incomplete letter by their numbers
        return [text] if special else text


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
