"""Attention over packed tokens, and which models can use it: FlexAttention on GPUs, SDPA in blocks elsewhere.

The function is registered through transformers' `AttentionInterface`; no library code is changed. A model reaches it
with `model.set_attn_implementation(PREFIX_ATTENTION)`, and its backbone must be called with `packed=batch`, which
transformers hands on to every layer, under gradient checkpointing too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_triton_available

from .batch import PackedBatch
from .logits import GRAPHS

PREFIX_SHARING = frozenset({"llama", "mistral", "olmo2", "qwen2", "qwen3", "qwen3_moe", "smollm3"})
"""Model types with causal softmax attention that goes through `AttentionInterface` with all keyword arguments, and
whose logits are the output head's, neither scaled nor capped. Each is tested against its plain forward."""

PREFIX_ATTENTION = "tagrpo_prefix_shared"


def supports_prefix_sharing(model: PreTrainedModel) -> tuple[bool, str]:
    """Whether responses can attend to one encoded prompt, and the reason in words.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> supports_prefix_sharing(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)))
    (False, 'model type gpt2 is not known to share prefixes')
    """
    adapters = getattr(model, "peft_config", {}).values()
    for adapter in adapters:
        if adapter.is_prompt_learning:
            return False, f"its {adapter.peft_type.value} adapter puts learned tokens before each sequence"
    config = model.config
    if config.model_type not in PREFIX_SHARING:
        return False, f"model type {config.model_type} is not known to share prefixes"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        return False, "its attention has a sliding window"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in ("dynamic", "longrope"):
        return False, f"its rotary embedding ({rope}) depends on the longest sequence of a batch"
    if type(model.get_output_embeddings()) is not nn.Linear:
        return False, f"its output head is {type(model.get_output_embeddings()).__name__}, not a plain Linear"
    return True, f"model type {config.model_type} shares prefixes"


def prefix_shared_attention(
    module: nn.Module,  # noqa: ARG001 (part of the interface)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (the blocks say who attends to whom)
    *,
    packed: PackedBatch,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention over packed tokens; an attention function of transformers. No dropout.

    Args:
        module: The attention layer.
        query: [1, H, L, D].
        key: [1, H_kv, L, D]; H is a multiple of H_kv.
        value: [1, H_kv, L, D].
        attention_mask: Not used.
        packed: The batch, handed through the model's forward.
        scaling: Factor of the dot products; None means 1/√D.

    Returns:
        [1, L, H, D], and None for the attention weights.
    """
    attention = sparse_attention if compiles_attention(value) else blocked_attention
    return attention(query, key, value, packed, scaling).transpose(1, 2), None


def compiles_attention(value: Tensor) -> bool:
    """Whether FlexAttention serves `value` [1, H_kv, L, D] as one fused kernel: CUDA, Triton, two bytes, D ≥ 16.

    In float32 its backward can outgrow a GPU's shared memory. Uncompiled it would store all scores, so that
    `TORCH_COMPILE_DISABLE=1` leads to SDPA.
    """
    fits = value.is_cuda and value.element_size() == 2 and value.shape[-1] >= 16
    return fits and is_triton_available() and not torch._dynamo.config.disable


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    # Where it can't be compiled it must raise: run eagerly it would store all scores.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True, **GRAPHS)


def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedBatch, scaling: float | None, compiled: bool = True
) -> Tensor:
    """FlexAttention over the packed tokens as they stand; keys of a prompt are read, never copied.

    Args:
        query: [1, H, L, D].
        key: [1, H_kv, L, D].
        value: [1, H_kv, L, D].
        packed: Says who attends to whom.
        scaling: Factor of the dot products.
        compiled: False stores all scores; for tests.

    Returns:
        [1, H, L, D].
    """
    flex: Any = _compiled_flex_attention() if compiled else flex_attention
    # Under autocast the rotary embedding leaves float32 where the values are bfloat16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    shared = query.shape[1] != key.shape[1]
    attended: Tensor = flex(query, key, value, block_mask=packed.block_mask, scale=scaling, enable_gqa=shared)
    return attended


def blocked_attention(query: Tensor, key: Tensor, value: Tensor, packed: PackedBatch, scaling: float | None) -> Tensor:
    """SDPA block by block; arguments and result as those of `sparse_attention`."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    outputs = []
    blocks, slots = packed.blocks
    for block in blocks:
        (n, size), keys = block.queries.shape, block.keys.flatten()
        out = grouped_attention(
            q.index_select(0, block.queries.flatten()).view(n, size, *q.shape[1:]).transpose(1, 2),
            k.index_select(0, keys).view(n, -1, *k.shape[1:]).transpose(1, 2),
            v.index_select(0, keys).view(n, -1, *v.shape[1:]).transpose(1, 2),
            block.mask,
            scaling,
            # CUDA's kernels take a mask or grouped heads, not both: with both, SDPA would store all scores.
            repeat_heads=query.is_cuda and block.mask is not None,
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, slots)[None].transpose(1, 2)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, repeat_heads: bool
) -> Tensor:
    """SDPA in which H / H_kv neighbouring query heads share a key head; causal where `mask` is None.

    Args:
        query: [n, H, Lq, D].
        key: [n, H_kv, Lk, D].
        value: [n, H_kv, Lk, D].
        mask: [n or 1, 1, Lq, Lk] bool, or None.
        scaling: Factor of the dot products.
        repeat_heads: Copy key heads instead of asking the kernel to share them.

    Returns:
        [n, H, Lq, D].
    """
    groups = query.shape[1] // key.shape[1]
    if repeat_heads:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=groups > 1 and not repeat_heads,
    )


AttentionInterface.register(PREFIX_ATTENTION, prefix_shared_attention)
