"""Digests of contents, tokenizers and weights. Equal contents have equal digests in every process."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .distributed import own_part

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def json_digest(content: Any) -> str:
    """Return a digest, 16 hex digits, of any content that JSON can represent."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of a tokenizer's splitting rules, special tokens and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    how = json.loads(backend.to_str()) if backend is not None else tokenizer.get_vocab()
    # set by each call
    how = {name: value for name, value in how.items() if name not in ("truncation", "padding")}
    return json_digest([how, tokenizer.special_tokens_map, tokenizer.chat_template])


def bit_sums(module: nn.Module) -> list[tuple[str, int]]:
    """Return the name and the `bit_sum` of each parameter's shard on this rank.

    `bit_sum` reads the bits of each element as an integer and adds the integers. A hash would take seconds.
    """
    return [(name, bit_sum(own_part(parameter))) for name, parameter in module.named_parameters()]


def bit_sum(tensor: Tensor) -> int:
    """Read the bits of each element of a tensor as an integer of the same width, and return the sum."""
    integers = tensor.detach().contiguous().view(getattr(torch, f"int{8 * tensor.element_size()}"))
    return int(integers.sum(dtype=torch.int64))
