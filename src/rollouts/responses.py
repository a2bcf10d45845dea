"""Responses as a few tensors, for checkpoints and files, and keys of the requests for these responses."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..types import Completion, Request


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
    """Return a digest of prompts, sampling settings and seed: 32 hex digits, equal in every process."""
    prompts = [prompt.tolist() for prompt in request.prompts]
    text = repr((prompts, request.num_samples, request.sampling, request.seed))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
