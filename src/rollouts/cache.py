"""Rollouts on disk until a checkpoint covers their update, so that a crash does not pay for them twice.

For each iteration, draw and rank there is one file of responses, written when they are sampled, and one of scores,
written when they are scored. Each file holds the cache key of all that its content follows from: rollouts of other
weights, prompts or settings are never found.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..distributed import gather_objects, rank
from ..runs.files import DamagedFileError, check_torch_file, written_whole
from ..runs.identity import bit_sums
from ..types import Completion, Score

MAX_DEPTH = 4
"""How deep a cache key looks into objects that hold objects."""


class RolloutCache:
    """Files `<iteration>-<draw>-<rank>.<kind>.pt` in `folder`, which is made when the first is written.

    A file that is damaged, of which it warns, or has another key counts as absent: it costs a generation, never a wrong
    one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def completions(self, position: Sequence[int], key: str) -> list[list[Completion]] | None:
        """[P][G] the responses kept at `position` (iteration, draw) under `key`; None if there are none."""
        found = self._read(position, "completions", key)
        return None if found is None else unpacked(found)

    def keep_completions(self, position: Sequence[int], key: str, completions: Sequence[Sequence[Completion]]) -> None:
        """Write the [P][G] responses to one batch."""
        self._write(position, "completions", key, packed(completions))

    def scores(self, position: Sequence[int], key: str) -> list[Score] | None:
        """[R] the scores kept at `position` under `key`; None if there are none."""
        found = self._read(position, "scores", key)
        return None if found is None else [Score(*score) for score in found["scores"]]

    def keep_scores(self, position: Sequence[int], key: str, scores: Sequence[Score]) -> None:
        """Write the [R] scores of one batch."""
        self._write(position, "scores", key, {"scores": [tuple(score) for score in scores]})

    def prune(self, before: int) -> None:
        """Delete this rank's files of iterations below `before`, with what a killed process left of them."""
        for path in self.folder.glob(f"*-*-{rank()}.*"):
            if int(path.name.split("-")[-3]) < before:
                path.unlink(missing_ok=True)

    def _path(self, position: Sequence[int], kind: str) -> Path:
        iteration, draw = position
        return self.folder / f"{iteration:06d}-{draw}-{rank()}.{kind}.pt"

    def _read(self, position: Sequence[int], kind: str, key: str) -> dict[str, Any] | None:
        path = self._path(position, kind)
        if not path.exists():
            return None
        try:
            check_torch_file(path)
        except DamagedFileError as damage:
            warnings.warn(f"Skipping the damaged rollouts {path}: {damage}. They are sampled again.", stacklevel=2)
            return None
        found = torch.load(path, weights_only=True)
        return found["content"] if found["key"] == key else None

    def _write(self, position: Sequence[int], kind: str, key: str, content: dict[str, Any]) -> None:
        path = self._path(position, kind)
        try:
            with written_whole(path) as partial_file:
                torch.save({"key": key, "content": content}, partial_file)
        except (OSError, RuntimeError) as error:
            # Training can do without it; if the disk is full, the next checkpoint will say so.
            warnings.warn(
                f"Could not keep rollouts in {path}: {error}. After a crash they would be sampled again.", stacklevel=2
            )


def packed(completions: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """[P][G] responses as a few tensors; see `unpacked`."""
    flat = [completion for samples in completions for completion in samples]
    return {
        "counts": [len(samples) for samples in completions],
        "lengths": torch.tensor([len(c.token_ids) for c in flat], dtype=torch.long),
        "token_ids": torch.cat([torch.zeros(0, dtype=torch.long), *(c.token_ids for c in flat)]).int(),
        "logprobs": torch.cat([torch.zeros(0), *(c.logprobs for c in flat)]),
        "truncated": torch.tensor([c.truncated for c in flat], dtype=torch.bool),
    }


def unpacked(content: Mapping[str, Any]) -> list[list[Completion]]:
    """[P][G] the responses that `packed` was given."""
    lengths = content["lengths"].tolist()
    parts = zip(
        content["token_ids"].long().split(lengths),
        content["logprobs"].split(lengths),
        content["truncated"].tolist(),
        strict=True,
    )
    # Views of one large tensor would keep all of it alive.
    flat = iter([Completion(token_ids=i.clone(), logprobs=p.clone(), truncated=t) for i, p, t in parts])
    return [[next(flat) for _ in range(count)] for count in content["counts"]]


def cache_key(*parts: Any) -> str:
    """A short name for values: the same for equal ones in every process, another for different ones.

    Tensors count with type, shape and content. Other objects count with their class and their public attributes.

    >>> cache_key(1, "a") == cache_key(1, "a"), cache_key(1, "a") == cache_key(1, "b")
    (True, False)
    >>> cache_key(("a", "b")) == cache_key(("ab",))
    False
    """
    return _hash(repr([_described(part) for part in parts]).encode())


def _described(value: Any, depth: int = 0) -> tuple[str, Any]:
    """The type of a value, and what it consists of: nested containers of texts, the same in every process."""
    parts: Any
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        parts = str(value.dtype), tuple(value.shape), _hash(content)
    elif isinstance(value, Mapping):
        parts = sorted((repr(_described(key, depth)), _described(item, depth)) for key, item in value.items())
    elif isinstance(value, set | frozenset):
        parts = sorted(repr(_described(item, depth)) for item in value)
    elif isinstance(value, list | tuple):
        parts = [_described(item, depth) for item in value]
    elif isinstance(value, partial):
        parts = _described((value.func, value.args, value.keywords), depth)
    elif callable(value) and hasattr(value, "__qualname__"):
        parts = value.__module__, value.__qualname__
    elif hasattr(value, "__dict__") and not isinstance(value, Enum) and depth < MAX_DEPTH:
        parts = _described({name: item for name, item in vars(value).items() if not name.startswith("_")}, depth + 1)
    else:
        parts = repr(value)  # with an address in it the key is never found again, which is safe
    return f"{type(value).__module__}.{type(value).__qualname__}", parts


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def weights_digest(module: nn.Module) -> str:
    """A digest of the weights of all ranks, exact to the bit. Collective."""
    return cache_key(gather_objects(bit_sums(module)))
