"""What is changed of a model when it is read."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from tagrpo.modules.policy.model import load_causal_lm

OPT = OPTConfig(
    vocab_size=32, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=16,
    max_position_embeddings=16, dropout=0.5, attention_dropout=0.5,
)  # fmt: skip
GPT2 = GPT2Config(
    vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
)


FALCON = FalconConfig(
    vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_dropout=0.5,
    attention_dropout=0.5, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
MIXTRAL = MixtralConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, num_local_experts=2, router_jitter_noise=0.5,
)  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [OPTForCausalLM(OPT), GPT2LMHeadModel(GPT2), FalconForCausalLM(FALCON), MixtralForCausalLM(MIXTRAL)],
    ids=["by rates", "by modules", "by settings", "jitter of a router"],
)
def test_a_policy_in_training_has_no_dropout(model, tmp_path):
    model.save_pretrained(tmp_path)
    ids = torch.arange(8)[None]
    assert not torch.equal(model.train()(ids).logits, model(ids).logits)
    read = load_causal_lm(str(tmp_path)).train()
    assert torch.equal(read(ids).logits, read(ids).logits)
    assert torch.allclose(read(ids).logits, model.eval()(ids).logits, atol=1e-6)
