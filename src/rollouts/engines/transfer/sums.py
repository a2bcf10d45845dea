"""Comparison of vLLM's check sums (`/weight_checker`) with the weights that were sent."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

import torch
from torch import Tensor

from ..weight_stream import Weights, bytes_of

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""vLLM's name of a layer → names of the layers that it joins, in order."""
PADDED_ROWS = 64
"""VLLM pads embeddings with zeros to a multiple of this number of rows."""
EMPTY = sha256(b"").hexdigest()
"""Sum of a weight of which kernels keep a packed copy alone, as on CPUs."""
PLACE = re.compile(r"dp\d+:pp\d+:pcp\d+:tp(\d+):")
"""Place of a worker, before the name of a weight; the group is its tensor-parallel rank."""


def compare_sums(found: Mapping[str, str], weights: Weights) -> tuple[int, list[str]]:
    """Compare check sums of a server with weights; return the number of comparisons, and names that differ.

    Left out are weights of which a worker holds a shard, packed copies, and names that only vLLM has.

    Args:
        found: Place and name of each weight at vLLM → SHA-256 of its bytes.
        weights: Names and tensors that were sent.
    """
    sent = dict(weights)
    sharded = any(place.group(1) != "0" for place in map(PLACE.match, found) if place)
    compared, wrong = 0, []
    for key, digest in found.items():
        name = PLACE.sub("", key)
        if digest == EMPTY or (sharded and "norm" not in name):
            continue
        parts = _parts_of(name, sent)
        if not parts:
            continue
        compared += 1
        if digest not in (_sum_of(parts), _sum_of([*parts, _padding(parts[-1])])):
            wrong.append(name)
    return compared, wrong


def _parts_of(name: str, sent: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors that vLLM's weight `name` joins; empty if they were not sent."""
    for joined, layers in FUSED.items():
        if f".{joined}." in name:
            names = [name.replace(f".{joined}.", f".{layer}.") for layer in layers]
            return [sent[part] for part in names] if sent.keys() >= set(names) else []
    return [sent[name]] if name in sent else []


def _padding(tensor: Tensor) -> Tensor:
    rows = -tensor.shape[0] % PADDED_ROWS
    return torch.zeros(rows, *tensor.shape[1:], dtype=tensor.dtype)


def _sum_of(parts: Iterable[Tensor]) -> str:
    digest = sha256()
    for part in parts:
        digest.update(bytes_of(part))
    return digest.hexdigest()
