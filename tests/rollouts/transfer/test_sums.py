"""Check sums of a server against what was sent, with SHA-256 of whole tensors as the reference."""

from __future__ import annotations

from hashlib import sha256

import pytest
import torch

from tagrpo.rollouts.transfer.sums import compare_sums

GENERATOR = torch.Generator().manual_seed(0)
LAYER = "model.layers.3"


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR).bfloat16()


SENT = {
    "model.embed_tokens.weight": random(100, 8),
    f"{LAYER}.self_attn.q_proj.weight": random(16, 8),
    f"{LAYER}.self_attn.k_proj.weight": random(4, 8),
    f"{LAYER}.self_attn.v_proj.weight": random(4, 8),
    f"{LAYER}.mlp.gate_proj.weight": random(12, 8),
    f"{LAYER}.mlp.up_proj.weight": random(12, 8),
    f"{LAYER}.mlp.down_proj.weight": random(8, 12),
    f"{LAYER}.input_layernorm.weight": random(8),
}
"""As the trainer names them."""


def held(**changes):
    """What a server of one worker holds: joined layers, and embeddings padded with zeros."""
    q, k, v = (SENT[f"{LAYER}.self_attn.{name}_proj.weight"] for name in "qkv")
    weights = {
        "model.embed_tokens.weight": torch.cat(
            [SENT["model.embed_tokens.weight"], torch.zeros(28, 8).bfloat16()]
        ),
        f"{LAYER}.self_attn.qkv_proj.weight": torch.cat([q, k, v]),
        f"{LAYER}.mlp.gate_up_proj.weight": torch.cat(
            [SENT[f"{LAYER}.mlp.{name}_proj.weight"] for name in ("gate", "up")]
        ),
        f"{LAYER}.mlp.down_proj.weight": SENT[f"{LAYER}.mlp.down_proj.weight"],
        f"{LAYER}.input_layernorm.weight": SENT[f"{LAYER}.input_layernorm.weight"],
    }
    return {**weights, **changes}


def sums(weights, place="dp0:pp0:pcp0:tp0:"):
    return {
        place + name: sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in weights.items()
    }


def test_what_was_sent_is_found_in_joined_and_padded_weights():
    assert compare_sums(sums(held()), list(SENT.items())) == (5, [])


@pytest.mark.parametrize("name", held())
def test_one_wrong_element_of_any_weight_is_named(name):
    wrong = held()[name].clone()
    wrong.view(-1)[-1] += 1
    assert compare_sums(sums(held(**{name: wrong})), list(SENT.items())) == (5, [name])


def test_joined_parts_in_another_order_are_wrong():
    q, k, v = (SENT[f"{LAYER}.self_attn.{name}_proj.weight"] for name in "qkv")
    name = f"{LAYER}.self_attn.qkv_proj.weight"
    assert compare_sums(sums(held(**{name: torch.cat([q, v, k])})), list(SENT.items()))[1] == [name]


def test_packed_copies_and_what_only_the_server_has_are_left_out():
    packed = dict.fromkeys((f"{LAYER}.self_attn.qkv_proj.weight", f"{LAYER}.mlp.down_proj.weight"), random(0))
    own = {
        f"{LAYER}.self_attn.attn.k_scale": random(1),
        "model.layers.9.mlp.gate_up_proj.weight": random(4, 8),
    }
    assert compare_sums(sums(held(**packed, **own)), list(SENT.items())) == (3, [])


@pytest.mark.parametrize("wrong", [False, True])
def test_of_sharded_weights_only_norms_are_compared(wrong):
    shards = {}
    for rank in range(2):
        halves = {name: tensor.chunk(2)[rank] for name, tensor in held().items() if "norm" not in name}
        norm = f"{LAYER}.input_layernorm.weight"
        halves[norm] = held()[norm] + float(wrong and rank)
        shards |= sums(halves, f"dp0:pp0:pcp0:tp{rank}:")
    assert compare_sums(shards, list(SENT.items())) == (2, [norm] if wrong else [])
