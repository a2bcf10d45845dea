"""Tokens as readable text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any


def pieces_of(path: Path | None) -> Callable[[int], str | list[str]]:
    """Token → its text on its own: a part of a character becomes `�`, a special token is in a list of its own.

    `path` is the `tokenizer.json`; without one, tokens are shown by their numbers.
    """
    if path is None:
        return "#{} ".format
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    @cache
    def shown(number: int) -> str | list[str]:
        if tokenizer.id_to_token(number) is None:
            return f"#{number} "
        text = str(tokenizer.decode([number], skip_special_tokens=False))
        return [text] if number in special else text

    return shown


def tokenizer_of(run: Path, config: Mapping[str, Any]) -> Path | None:
    """The `tokenizer.json` of a run: beside its exported model, where its settings point, or in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    names = [str((config.get(part) or {}).get(key)) for part, key in (("data", "tokenizer"), ("model", "path"))]
    cached = [try_to_load_from_cache(name, "tokenizer.json") for name in names if re.fullmatch(r"\w[^/]*/[^/]+", name)]
    found = [folder / "tokenizer.json" for folder in (run / "model", *map(Path, names))]
    found += [Path(path) for path in cached if isinstance(path, str)]
    return next((path for path in found if path.is_file()), None)
