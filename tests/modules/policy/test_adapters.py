"""Adapters that are merged where they arrive, against those that the trainer merges."""

from __future__ import annotations

import threading

import pytest
import torch

from tagrpo.modules.policy.adapters import BaseWeights, is_part
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.sharding import full_tensors, separate_tensors


@pytest.fixture
def model(tiny_policy):
    return load_causal_lm(tiny_policy, lora=LoraSettings(rank=4, alpha=7.0))


def train(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def assert_same(found, expected, dtype=torch.float32):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor.to(dtype)), name


def test_weights_once_and_then_adapters_alone_give_what_the_trainer_merges_to_the_bit(model):
    base = BaseWeights(torch.device("cpu"))
    for step in range(3):
        train(model)
        arriving = dict(separate_tensors(model, base=step == 0))
        assert all(map(is_part, arriving)) == (step > 0)
        assert_same(dict(base.merge(arriving.items())), dict(full_tensors(model)))


def test_a_base_in_bfloat16_gives_the_merged_weights_of_a_float32_trainer_in_bfloat16(model):
    """What is published in bfloat16 is exact in it: the sum alone is rounded, as it is in the trainer."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    train(model)
    arriving = [(n, t if is_part(n) else t.bfloat16()) for n, t in separate_tensors(model, base=True)]
    assert_same(dict(BaseWeights(torch.device("cpu")).merge(arriving)), dict(full_tensors(model)), torch.bfloat16)


def test_workers_share_one_copy(model):
    workers, barrier = 3, threading.Barrier(3)
    pieces, found, kept, start = (
        [None] * workers,
        [None] * workers,
        [None] * workers,
        list(separate_tensors(model, base=True)),
    )
    train(model)
    alone = list(separate_tensors(model, base=False))

    def work(place):
        def gather(piece):
            pieces[place] = piece
            barrier.wait(60)
            everyone = torch.cat(pieces)
            barrier.wait(60)
            return everyone

        base = BaseWeights(torch.device("cpu"), place, workers, gather)
        list(base.merge(start))
        kept[place] = sum(piece.numel() for piece, _ in base.kept.values())
        found[place] = dict(base.merge(alone))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for weights in found:
        assert_same(weights, dict(full_tensors(model)))
    whole = sum(tensor.numel() for name, tensor in start if not is_part(name))
    assert max(kept) < whole / 3 + 3 * len(start)


def test_adapters_need_weights_and_weights_without_adapters_are_not_kept(model, tiny_policy):
    base = BaseWeights(torch.device("cpu"))
    assert list(base.merge([])) == [], "a trainer that has nothing to send yet"
    with pytest.raises(ValueError, match="adapters alone"):
        list(base.merge(separate_tensors(model, base=False)))
    list(base.merge(separate_tensors(model, base=True)))
    assert base.kept
    plain = load_causal_lm(tiny_policy)
    for complete in (True, False):
        weights = dict(separate_tensors(plain, base=complete))
        assert_same(weights, dict(full_tensors(plain)))
        assert_same(dict(base.merge(weights.items())), weights)
        assert not base.kept
