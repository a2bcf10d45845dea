"""What the digests of all studies share: runs by method, and the fingerprint of what they trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tagrpo.analysis.runs import RunFiles


@dataclass(frozen=True)
class MethodRuns:
    """The runs of a setting."""

    runs: Sequence[Mapping[str, Any]]
    """Entries of the digest, as `entry_of` of the study's `digest` describes them."""

    @cached_property
    def methods(self) -> list[str]:
        """In the order of the digest."""
        return list(dict.fromkeys(run["method"] for run in self.runs))

    def of(self, method: str) -> list[Mapping[str, Any]]:
        """The seeds of one method.

        Raises:
            KeyError: there is no such method.
        """
        found = [run for run in self.runs if run["method"] == method]
        if not found:
            raise KeyError(f"Expected runs of {method}, but there are only {', '.join(self.methods)}.")
        return found


def weights_fingerprint(run: RunFiles) -> str | None:
    """SHA-256 of the trained parameters, to the bit; None for a run without a checkpoint of its last iteration."""
    path = run.last_checkpoint
    if path is None:
        return None
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
