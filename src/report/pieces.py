"""Tokens as text that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any


class Pieces:
    """What the tokens of a tokenizer stand for, each by itself: one that is a part of a letter is `�`.

    Args:
        path: Its `tokenizer.json`; without one, tokens are shown by their numbers.
    """

    def __init__(self, path: Path | None) -> None:
        self._tokenizer: Any = None
        self._special: set[int] = set()
        self._shown = cache(self._find)
        if path is not None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))
            added = self._tokenizer.get_added_tokens_decoder()
            self._special = {number for number, token in added.items() if token.special}

    def shown(self, ids: Iterable[int]) -> list[str | list[str]]:
        """Each token as text; a special one in a list of its own."""
        return [self._shown(number) for number in ids]

    def _find(self, number: int) -> str | list[str]:
        if self._tokenizer is None or self._tokenizer.id_to_token(number) is None:
            return f"#{number} "
        text = str(self._tokenizer.decode([number], skip_special_tokens=False))
        return [text] if number in self._special else text


def tokenizer_of(run: Path, config: Mapping[str, Any]) -> Path | None:
    """The `tokenizer.json` of a run: beside its exported model, where its settings point, or in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    names = [str((config.get(part) or {}).get(key)) for part, key in (("data", "tokenizer"), ("model", "path"))]
    cached = [try_to_load_from_cache(name, "tokenizer.json") for name in names if re.fullmatch(r"\w[^/]*/[^/]+", name)]
    found = [Path(folder) / "tokenizer.json" for folder in (run / "model", *names)]
    found += [Path(path) for path in cached if isinstance(path, str)]
    return next((path for path in found if path.is_file()), None)
