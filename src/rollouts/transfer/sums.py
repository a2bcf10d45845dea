"""Comparison of vLLM's check sums (`/weight_checker`) with the weights that were sent."""

from collections.abc import Iterable, Mapping
from hashlib import sha256

import torch
from torch import Tensor

from ..engines.weight_stream import Weights, bytes_of

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""vLLM's name of a layer → names of the layers that it joins, in order."""
PADDED_ROWS = 64
"""vLLM pads embeddings with zeros to a multiple of this number of rows."""
EMPTY = sha256(b"").hexdigest()
"""Sum of a weight of which kernels keep a packed copy alone, as on CPUs."""


def compare_sums(found: Mapping[str, str], weights: Weights) -> tuple[int, list[str]]:
    """Compare check sums of a server with weights; return the number of comparisons, and names that differ.

    Left out are weights of which a worker holds a shard, packed copies, and names that only vLLM has.

    Args:
        found: Place of a worker (`dp0:pp0:pcp0:tp0:`) and name of each weight at vLLM → SHA-256 of its bytes.
        weights: Names and tensors that were sent.
    """
    sent = dict(weights)
    sharded = any(":tp0:" not in key for key in found)
    compared, wrong = 0, []
    for key, digest in found.items():
        name = key.rpartition(":")[2]
        parts = _parts_of(name, sent)
        if not parts or digest == EMPTY or (sharded and "norm" not in name):
            continue
        compared += 1
        last = parts[-1]
        padding = torch.zeros(-len(last) % PADDED_ROWS, *last.shape[1:], dtype=last.dtype)
        if digest not in (_sum_of(parts), _sum_of([*parts, padding])):
            wrong.append(name)
    return compared, wrong


def _parts_of(name: str, sent: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors that vLLM's weight `name` joins; empty if they were not sent."""
    names = [name]
    for joined, layers in FUSED.items():
        if joined in name:
            names = [name.replace(joined, layer) for layer in layers]
    return [sent[part] for part in names if sent.keys() >= set(names)]


def _sum_of(parts: Iterable[Tensor]) -> str:
    digest = sha256()
    for part in parts:
        digest.update(bytes_of(part))
    return digest.hexdigest()
