"""Which models share prefixes, and grouped attention against plain softmax."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tagrpo.modules.attention import grouped_attention, supports_prefix_sharing

SMALL = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=4)), "sliding window"),
        (
            lambda: Qwen3ForCausalLM(
                Qwen3Config(
                    **SMALL, num_key_value_heads=1, use_sliding_window=True, sliding_window=4, max_window_layers=1
                )
            ),
            "sliding window",
        ),
        (lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=DYNAMIC)), "dynamic"),
    ],
)
def test_configurations_that_cannot_share_are_refused_with_the_reason(model, reason):
    supported, why = supports_prefix_sharing(model())
    assert not supported
    assert reason in why


def test_a_replaced_output_head_cannot_share():
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    assert supports_prefix_sharing(model)[0]
    model.lm_head = torch.nn.Sequential(model.lm_head)
    supported, why = supports_prefix_sharing(model)
    assert not supported
    assert "Sequential" in why


@pytest.mark.parametrize("repeat_heads", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_neighbouring_query_heads_share_a_key_head(repeat_heads, masked):
    torch.manual_seed(0)
    n, heads, groups, size, width = 3, 2, 2, 5, 4
    query = torch.randn(n, heads * groups, size, width)
    key, value = torch.randn(2, n, heads, size, width)
    visible = torch.ones(size, size, dtype=torch.bool).tril()
    mask = (visible & (torch.arange(size) != 1) | torch.eye(size, dtype=torch.bool)) if masked else None
    out = grouped_attention(query, key, value, None if mask is None else mask[None, None], 0.3, repeat_heads)
    for head in range(heads * groups):
        scores = 0.3 * query[:, head] @ key[:, head // groups].transpose(1, 2)
        scores = scores.masked_fill(~(visible if mask is None else mask), -torch.inf)
        torch.testing.assert_close(out[:, head], scores.softmax(-1) @ value[:, head // groups])
