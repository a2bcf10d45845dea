"""Tiny random models of the types that share prefixes, and of some that do not."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {
    "arcee": {},
    "cohere": {"logit_scale": 0.3},
    "deepseek_v3": {
        **EXPERTS,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "num_key_value_heads": 4,
        "head_dim": 4,
    },
    "ernie4_5": {},
    "gemma": {},
    "glm": {},
    "glm4": {},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "gpt_neox": {},
    "granite": {"logits_scaling": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3},
    "hunyuan_v1_dense": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo": {},
    "olmo2": {},
    "phi3": {},
    "starcoder2": {},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "smollm3": {},
}
PADDED = {
    "mistral with a window": {"model_type": "mistral", "sliding_window": 4},
    "stablelm": {},
    "gemma2": {"sliding_window": 4, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 5.0},
    "mamba": {"state_size": 4},
}
MODELS = {**SHARED, **PADDED}
STEEP = {"olmo2", "gemma2", "mamba"}
"""Tripled weights would give these gradients of up to 200, of which float32 rounds off more than 1e-5: the plain
forward's own gradient then differs as much from one in float64."""


def build(kind: str, **options) -> PreTrainedModel:
    torch.manual_seed(0)
    options = {**SMALL, **MODELS[kind], **options}
    model_type = options.pop("model_type", kind)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options))
    # Weights of the usual size give nearly uniform log-probs; larger ones make differences visible.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 and kind not in STEEP else 1.0)
    return model
