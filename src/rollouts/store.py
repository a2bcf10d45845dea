"""Rollouts on disk until a checkpoint covers their update, so that a crash does not pay for them twice.

Per iteration, draw and rank one file of responses, written when generation has ended, and one of verdicts, written when
verification has. They carry a digest of all that they follow from: other weights, prompts or settings never find them.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..distributed import gather_objects, rank
from ..types import Completion, Score

UNREADABLE = (RuntimeError, EOFError, KeyError, zipfile.BadZipFile, pickle.UnpicklingError)
"""What torch raises on a file that is not what it should be."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class RolloutStore:
    """Files `<iteration>-<draw>-<rank>.<kind>.pt` in one folder.

    A file is written under another name and renamed. One that can't be read, or was made from something else, counts
    as absent: it costs a generation, never a wrong one.

    Args:
        folder: Where they are; made when the first is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def completions(self, position: Sequence[int], made_from: str) -> list[list[Completion]] | None:
        """[P][G] the responses that were sampled at `position` from `made_from`; None without."""
        found = self._read(position, "completions", made_from)
        return None if found is None else unpacked(found)

    def keep_completions(
        self, position: Sequence[int], made_from: str, completions: Sequence[Sequence[Completion]]
    ) -> None:
        """Write the responses of one generation."""
        self._write(position, "completions", made_from, packed(completions))

    def scores(self, position: Sequence[int], made_from: str) -> list[Score] | None:
        """[R] the verdicts on the responses at `position`; None without."""
        found = self._read(position, "scores", made_from)
        return None if found is None else [Score(*score) for score in found["scores"]]

    def keep_scores(self, position: Sequence[int], made_from: str, scores: Sequence[Score]) -> None:
        """Write the verdicts on one generation."""
        self._write(position, "scores", made_from, {"scores": [tuple(score) for score in scores]})

    def prune(self, before: int) -> None:
        """Delete this rank's files of iterations below `before`, which a checkpoint covers."""
        for path in self.folder.glob(f"*-*-{rank()}.*"):
            if int(path.name.partition("-")[0]) < before:
                path.unlink(missing_ok=True)

    def _path(self, position: Sequence[int], kind: str) -> Path:
        iteration, draw = position
        return self.folder / f"{iteration:06d}-{draw}-{rank()}.{kind}.pt"

    def _read(self, position: Sequence[int], kind: str, made_from: str) -> dict[str, Any] | None:
        path = self._path(position, kind)
        if not path.exists():
            return None
        try:
            found = torch.load(path, weights_only=True)
            return found["content"] if found["made_from"] == made_from else None
        except UNREADABLE:
            return None

    def _write(self, position: Sequence[int], kind: str, made_from: str, content: dict[str, Any]) -> None:
        path = self._path(position, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                torch.save({"made_from": made_from, "content": content}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except (OSError, RuntimeError) as error:
            # Training can do without; should the disk be full, the next checkpoint will say so.
            partial.unlink(missing_ok=True)
            warnings.warn(
                f"Could not keep rollouts in {path}: {error}. A crash would pay for them twice.", stacklevel=2
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
    # Parts of one large tensor would keep all of it alive.
    flat = iter([Completion(token_ids=i.clone(), logprobs=p.clone(), truncated=t) for i, p, t in parts])
    return [[next(flat) for _ in range(count)] for count in content["counts"]]


# ---------------------------------------------------------------------- what rollouts are made from


def digest(*parts: Any) -> str:
    """A short name for values: the same for equal ones, another for others, in every process.

    Tensors count with type, shape and content; objects that are not plain values with their class and their attributes
    of plain values.

    >>> digest(1, "a") == digest(1, "a"), digest(1, "a") == digest(1, "b"), digest(("a", "b")) == digest(("ab",))
    (True, False, False)
    """
    hasher = hashlib.sha256()
    for part in parts:
        _feed(hasher, part, depth=0)
    return hasher.hexdigest()[:32]


def _feed(hasher: Any, value: Any, depth: int) -> None:
    name = f"{type(value).__module__}.{type(value).__qualname__}:"
    hasher.update(name.encode())
    if isinstance(value, Tensor):
        hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
        hasher.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _feed(hasher, str(key), depth)
            _feed(hasher, value[key], depth)
        hasher.update(b"}")
    elif isinstance(value, list | tuple | set | frozenset):
        for item in sorted(value, key=str) if isinstance(value, set | frozenset) else value:
            _feed(hasher, item, depth)
        hasher.update(b"]")
    elif isinstance(value, str | bytes | int | float | bool | type(None)):
        text = value if isinstance(value, bytes) else repr(value).encode()
        hasher.update(len(text).to_bytes(8, "big") + text)
    elif callable(value) and hasattr(value, "__qualname__"):
        hasher.update(value.__qualname__.encode())
    elif depth < 2:
        plain = {k: v for k, v in vars(value).items() if not k.startswith("_")} if hasattr(value, "__dict__") else {}
        _feed(hasher, plain, depth + 1)


def weights_digest(module: nn.Module) -> str:
    """A digest of the trained weights, exact to the bit, of all ranks. Collective.

    Each parameter counts with the sum of its bit patterns as integers, which is one pass over memory, where hashing
    would take seconds per gigabyte. A change of some bits that leaves every sum as it was goes unnoticed; no optimizer
    step does that.
    """
    return digest(gather_objects([(name, _bit_sum(parameter)) for name, parameter in _local(module)]))


def _local(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    for name, parameter in module.named_parameters():
        tensor = parameter.detach()
        yield name, tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _bit_sum(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    return int(tensor.contiguous().view(INTEGERS[tensor.element_size()]).sum(dtype=torch.int64))
