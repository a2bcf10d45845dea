"""Useful arithmetic against what an update multiplies, and against pairs of tokens counted one by one."""

from __future__ import annotations

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from tagrpo.modules.policy.flop import UsefulFlop
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.packing.batch import pack
from tagrpo.packing.policy import CausalPolicy
from tests.costs import Costs

PROMPTS = [torch.arange(1, 6), torch.arange(1, 4)]
PROMPT = torch.tensor([0, 0, 1])
RESPONSES = [torch.arange(1, 3), torch.arange(1, 8), torch.arange(4, 9)]


@pytest.mark.parametrize("adapted", [False, True])
def test_without_recomputation_products_are_the_useful_ones(tiny_policy, adapted):
    lora = LoraSettings(rank=2) if adapted else None
    policy = CausalPolicy(load_causal_lm(tiny_policy, lora=lora)).train()
    packed, useful = pack(PROMPTS, PROMPT, RESPONSES), UsefulFlop(policy)
    with Costs() as costs:
        policy(packed, "none", lambda _, logprobs, __: -logprobs.sum()).loss.backward()
    found = useful.of(packed.work) - useful.per_pair * visible_pairs(packed)
    # With adapters the first layer's input needs no gradient: its products with four matrices and their A are spared.
    assert costs.product_flop == found if not adapted else 0.9 * found < costs.product_flop <= found


def visible_pairs(packed) -> int:
    ends = packed.ends.tolist()
    return sum(query < ends[key] for query in range(len(ends)) for key in range(query + 1))


def test_attention_counts_the_pairs_that_a_token_may_see(tiny_policy):
    useful, packed = UsefulFlop(CausalPolicy(load_causal_lm(tiny_policy))), pack(PROMPTS, PROMPT, RESPONSES)
    tokens, states = packed.input_ids.shape[1], len(packed.states)
    pairs = (useful.of(packed.work) - useful.per_token * tokens - useful.per_state * states) / useful.per_pair
    assert pairs == visible_pairs(packed)
    config = load_causal_lm(tiny_policy).config
    width = config.num_attention_heads * config.head_dim  # of queries: two products forward, four backward
    assert useful.per_pair == 6 * 2 * config.num_hidden_layers * width


def test_recurrent_models_see_no_pairs_of_tokens():
    config = MambaConfig(vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=1)
    assert UsefulFlop(CausalPolicy(MambaForCausalLM(config))).per_pair == 0
