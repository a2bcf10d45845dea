"""Attention over packed tokens that share prefixes: FlexAttention on GPUs, SDPA in blocks on other devices.

`supports_prefix_sharing` checks whether a model can use this attention.

`prefix_shared_attention` is registered with transformers' `AttentionInterface`; no library code is changed.
Call `model.set_attn_implementation(PREFIX_ATTENTION)` to select it, and call the backbone with
`packed=batch`, which transformers passes to every layer, also under gradient checkpointing.

Queries are [1, H, L, D], keys and values [1, H_kv, L, D], where H is a multiple of H_kv. `scaling` is the
factor of the dot products; None means 1/√D. There is no dropout.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.utils.import_utils import is_triton_available

from .batch import PackedBatch
from .head import compiled

PREFIX_SHARING = frozenset(
    {
        "arcee",
        "cohere",
        "deepseek_v3",
        "ernie4_5",
        "gemma",
        "glm",
        "glm4",
        "gpt2",
        "gpt_neox",
        "granite",
        "hunyuan_v1_dense",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "starcoder2",
    }
)
"""Model types that can share prefixes; each is tested against its plain forward.

Their causal softmax attention goes through `AttentionInterface` with all keyword arguments, and their logits
are the output head's times `logit_scale`, never capped."""

ABSOLUTE_POSITIONS = frozenset({"gpt2", "hunyuan_v1_dense"})
"""Model types whose scores depend on where a row begins: their positions are learned, or rotated keys are normalised."""

PREFIX_ATTENTION = "tagrpo_prefix_shared"
FLEX_KERNEL = {"FORCE_USE_FLEX_ATTENTION": True}
"""Options that keep Inductor from using its decoding kernel for FlexAttention.

For fewer than 128 tokens, Inductor would use the decoding kernel, which has no valid block size for many
ratios of query heads to key heads (pytorch issue 185349)."""


def supports_prefix_sharing(model: PreTrainedModel) -> tuple[bool, str]:
    """Return whether responses of `model` can attend to one encoded prompt, and the reason in words."""
    obstacle = _adapter_obstacle(model) or _config_obstacle(model.config) or _head_obstacle(model)
    if obstacle:
        return False, obstacle
    return True, f"model type {model.config.model_type} shares prefixes"


def logit_scale(config: PreTrainedConfig) -> float:
    """Return the factor by which a model that shares prefixes multiplies the output of its head."""
    if config.model_type == "cohere":
        return float(config.logit_scale)
    if config.model_type == "granite":
        return 1 / float(config.logits_scaling)
    return 1.0


def _adapter_obstacle(model: PreTrainedModel) -> str | None:
    for adapter in getattr(model, "peft_config", {}).values():
        if adapter.is_prompt_learning:
            return f"its {adapter.peft_type.value} adapter puts learned tokens before each sequence"
        if getattr(adapter, "alora_invocation_tokens", None):
            return f"its {adapter.peft_type.value} adapter begins behind tokens that it looks for in each sequence"
    return None


def _config_obstacle(config: PreTrainedConfig) -> str | None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    recurrent = sorted(kind for kind in kinds if "attention" not in kind or "linear" in kind)
    if recurrent:
        return f"it has layers of type {recurrent[0]}, which keep a state of the whole row"
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        return "its attention has a sliding window"
    if config.model_type not in PREFIX_SHARING:
        return f"model type {config.model_type} is not known to share prefixes"
    rope = length_dependent_rope(config)
    if rope is not None:
        return f"its rotary embedding ({rope}) depends on the longest sequence of a batch"
    return None


def _head_obstacle(model: PreTrainedModel) -> str | None:
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return f"its output head is {type(head).__name__}, not a plain Linear without a bias"
    return None


def length_dependent_rope(config: PreTrainedConfig) -> str | None:
    """Return the type of the rotary embedding if it depends on a batch's longest sequence, otherwise None."""
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    return rope if rope in ("dynamic", "longrope") else None


def prefix_shared_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    packed: PackedBatch,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention's output, [1, L, H, D], and None for its weights; `packed` replaces the mask."""
    attention = sparse_attention if compiles_attention(value) else blocked_attention
    return attention(query, key, value, packed, scaling).transpose(1, 2), None


def compiles_attention(value: Tensor) -> bool:
    """Return whether FlexAttention compiles to one fused kernel for tensors like `value`.

    The kernel needs CUDA, Triton, elements of two bytes, and D ≥ 16. In float32, its backward can exceed a
    GPU's shared memory. With `TORCH_COMPILE_DISABLE=1`, SDPA is used.
    """
    fits = value.is_cuda and value.element_size() == 2 and value.shape[-1] >= 16
    return fits and is_triton_available() and not torch._dynamo.config.disable


def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedBatch, scaling: float | None, fused: bool = True
) -> Tensor:
    """Return the attention's output for the packed tokens, [1, H, L, D], by FlexAttention.

    `fused=False` stores all scores; it is meant for tests.
    """
    flex: Any = compiled(flex_attention) if fused else flex_attention
    # Under autocast the rotary embedding leaves queries and keys in float32, while the values are bfloat16.
    query = query.to(value.dtype)
    key = key.to(value.dtype)
    shared = query.shape[1] != key.shape[1]
    return flex(  # type: ignore[no-any-return]
        query,
        key,
        value,
        block_mask=packed.block_mask,
        scale=scaling,
        enable_gqa=shared,
        kernel_options=FLEX_KERNEL,
    )


def blocked_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedBatch, scaling: float | None
) -> Tensor:
    """Return the attention's output for the packed tokens, [1, H, L, D], by SDPA, block by block."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    outputs = []
    blocks, slots = packed.blocks

    def gathered(x: Tensor, rows: Tensor) -> Tensor:
        """Return the given `rows` of `x` ([L, heads, D]) as [n, heads, rows, D]."""
        return x.index_select(0, rows.flatten()).view(*rows.shape, *x.shape[1:]).transpose(1, 2)

    for queries, keys, mask in blocks:
        # CUDA's kernels take a mask or grouped heads, not both: with both, SDPA would store all scores.
        copied = query.is_cuda and mask is not None
        out = grouped_attention(
            gathered(q, queries), gathered(k, keys), gathered(v, keys), mask, scaling, copied
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, slots)[None].transpose(1, 2)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, repeat_heads: bool
) -> Tensor:
    """Return the attention's output, [n, H, Lq, D], by SDPA. H / H_kv adjacent query heads share a key head.

    `query` is [n, H, Lq, D], `key` and `value` are [n, H_kv, Lk, D]. `mask` is [n or 1, 1, Lq, Lk] bool; None
    is the causal mask. `repeat_heads` copies the key heads.
    """
    groups = query.shape[1] // key.shape[1]
    if repeat_heads:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    shared = groups > 1 and not repeat_heads
    return F.scaled_dot_product_attention(
        query, key, value, mask, 0.0, mask is None, scale=scaling, enable_gqa=shared
    )


AttentionInterface.register(PREFIX_ATTENTION, prefix_shared_attention)
