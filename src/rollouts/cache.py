"""Responses on disk until a checkpoint covers their update, so that a crash does not pay for them twice.

There is one file per iteration, draw and rank. Its key is a digest of weights, prompts, sampling and seed, so
that the responses to another request are never found. The responses of another engine with the same weights
are found.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..distributed import rank, world_size
from ..files import DamagedFileError, check_torch_file, written_whole
from ..types import Completion, Request


class RolloutCache:
    """Cache of responses in files `<iteration>-<draw>-<rank>.pt` of `folder`.

    A file that is damaged or has another key counts as absent.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def find(self, position: Sequence[int], key: str) -> list[list[Completion]] | None:
        """Return the [P][G] responses of `key` at `position`, (iteration, draw); None if not cached."""
        path = self._path(position)
        if not path.exists():
            return None
        try:
            check_torch_file(path)
        except DamagedFileError as damage:
            warnings.warn(
                f"Skipping the damaged rollouts {path}: {damage}. They are made again.", stacklevel=2
            )
            return None
        found = torch.load(path, weights_only=True)
        return unpacked(found["content"]) if found["key"] == key else None

    def keep(self, position: Sequence[int], key: str, completions: Sequence[Sequence[Completion]]) -> None:
        """Write the [P][G] responses to one batch."""
        path = self._path(position)
        try:
            with written_whole(path) as partial_file:
                torch.save({"key": key, "content": packed(completions)}, partial_file)
        except (OSError, RuntimeError) as error:
            # Training can do without it; if the disk is full, the next checkpoint will say so.
            message = (
                f"Could not keep rollouts in {path}: {error}. After a crash they would be sampled again."
            )
            warnings.warn(message, stacklevel=2)

    def prune(self, before: int) -> None:
        """Delete this rank's files of iterations below `before`, also partial files of killed processes.

        After a resume with fewer ranks, rank 0 also deletes the files of the ranks that are gone.
        """
        for path in self.folder.glob("*-*-*.*"):
            *_, iteration, _, last = path.name.split("-")
            writer = int(last.partition(".")[0])
            mine = writer == rank() or (rank() == 0 and writer >= world_size())
            if mine and int(iteration) < before:
                path.unlink(missing_ok=True)

    def _path(self, position: Sequence[int]) -> Path:
        return self.folder / "{:06d}-{}-{}.pt".format(*position, rank())


def packed(completions: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Return [P][G] responses as a few tensors; see `unpacked`."""
    flat = [completion for samples in completions for completion in samples]
    return {
        "counts": [len(samples) for samples in completions],
        "lengths": torch.tensor([len(c.token_ids) for c in flat], dtype=torch.long),
        "token_ids": torch.cat([torch.zeros(0, dtype=torch.long), *(c.token_ids for c in flat)]).int(),
        "logprobs": torch.cat([torch.zeros(0), *(c.logprobs for c in flat)]),
        "truncated": torch.tensor([c.truncated for c in flat], dtype=torch.bool),
    }


def unpacked(content: Mapping[str, Any]) -> list[list[Completion]]:
    """Return the [P][G] responses from the tensors that `packed` returned."""
    lengths = content["lengths"].tolist()
    ids, logprobs = content["token_ids"].long().split(lengths), content["logprobs"].split(lengths)
    parts = zip(ids, logprobs, content["truncated"].tolist(), strict=True)
    # Views of one large tensor would keep all of it alive.
    flat = iter([Completion(token_ids=i.clone(), logprobs=p.clone(), truncated=t) for i, p, t in parts])
    return [[next(flat) for _ in range(count)] for count in content["counts"]]


def request_key(request: Request) -> str:
    """Return a digest of a request, the same in every process."""
    return digest_of(([prompt.tolist() for prompt in request.prompts], *request[1:]))


def digest_of(values: Any) -> str:
    """Return a digest, 32 hex digits, of values whose `repr` is the same in every process."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:32]
