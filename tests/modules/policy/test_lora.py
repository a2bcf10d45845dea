"""Adapters: nothing at the start, the reference when off, merged for everybody else."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.lora import LoraSettings, adapters_off, add_adapters
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.sharding import full_tensors
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rollouts import SamplingConfig, TransformersEngine
from tagrpo.types import Request

SETTINGS = LoraSettings(rank=4, alpha=12.0)
IDS = torch.tensor([[10, 11, 12, 13, 14]])


@pytest.fixture
def adapted(tiny_policy):
    """A model whose adapters say something."""
    model = load_causal_lm(tiny_policy, lora=SETTINGS)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    return model


def test_adapters_start_at_nothing_and_alone_are_trained(tiny_policy):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    model, plain = load_causal_lm(tiny_policy, lora=SETTINGS), load_causal_lm(tiny_policy)
    assert torch.equal(torch.rand(1), expected), "their values come from a seed of their own"
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert len(trained) == 2 * 7 * 2  # A and B of seven linear layers in two decoder layers


def test_with_the_adapters_off_the_model_is_the_reference_bit_for_bit(adapted, tiny_policy):
    before = adapted(IDS).logits
    with adapters_off(adapted):
        assert torch.equal(adapted(IDS).logits, load_causal_lm(tiny_policy)(IDS).logits)
    assert torch.equal(adapted(IDS).logits, before)
    assert (adapted(IDS).logits - load_causal_lm(tiny_policy)(IDS).logits).abs().max() > 0.1


def test_merged_weights_equal_a_merge_by_hand_and_compute_the_same(adapted, tiny_policy):
    start = load_file(tiny_policy / "model.safetensors")
    parts = dict(adapted.named_parameters())
    merged = dict(full_tensors(adapted))
    assert list(merged) == [name for name, _ in load_causal_lm(tiny_policy).named_parameters()]
    for name, tensor in merged.items():
        a, b = (parts.get(name.replace("weight", f"lora_{side}.default.weight")) for side in "AB")
        expected = start[name].double()
        if a is not None:
            expected = expected + 12.0 / 4 * b.double() @ a.double()
        torch.testing.assert_close(tensor.double(), expected.detach(), atol=1e-6, rtol=0)
    plain = load_causal_lm(tiny_policy)
    plain.load_state_dict(merged, strict=False)
    torch.testing.assert_close(plain(IDS).logits, adapted(IDS).logits, atol=1e-5, rtol=1e-5)


def test_layers_that_store_their_weight_transposed_are_merged_too():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=64, resid_pdrop=0, embd_pdrop=0
    )
    model, plain = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
    with pytest.warns(UserWarning, match="fan_in_fan_out"):
        add_adapters(model, LoraSettings(rank=2, alpha=2.0, targets=["c_attn", "c_fc"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    plain.load_state_dict(dict(full_tensors(model)), strict=False)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(plain.eval()(ids).logits, model.eval()(ids).logits, atol=1e-5, rtol=1e-5)


def test_an_engine_samples_from_the_merged_policy(adapted, tiny_policy):
    engine = TransformersEngine(str(tiny_policy))
    engine.sync(full_tensors(adapted))
    sample = engine.generate(Request([IDS[0]], [1], SamplingConfig(max_new_tokens=8), seed=0))[0][0]
    with torch.no_grad():
        logits = adapted(torch.cat([IDS[0], sample.token_ids])[None]).logits[0, len(IDS[0]) - 1 : -1]
    expected = torch.log_softmax(logits, -1)[torch.arange(len(sample.token_ids)), sample.token_ids]
    torch.testing.assert_close(sample.logprobs, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_adapting_the_output_head_or_the_embeddings_is_refused(tiny_policy, target):
    with pytest.raises(ValueError, match=rf"`.*{target}` is"):
        load_causal_lm(tiny_policy, lora=LoraSettings(targets=["q_proj", target]))


def test_settings_out_of_range_are_refused():
    for options in ({"rank": 0}, {"alpha": 0.0}):
        with pytest.raises(ValueError, match=r"lora\.rank"):
            LoraSettings(**options)


def train(folder, batch, separate_reference=False):
    """Three optimizer steps with a KL term on `batch`."""
    from lightning.pytorch import Callback, LightningDataModule, Trainer

    from tagrpo.modules.lightning.policy_module import PolicyModule, PolicyOptions

    class Data(LightningDataModule):
        def train_dataloader(self):
            return DataLoader([replace(batch, rollouts=None)], batch_size=None)

    class Metrics(Callback):
        def on_train_batch_start(self, trainer, pl_module, attached, _):
            attached.rollouts = batch.rollouts
            if separate_reference:
                reference = CausalPolicy(load_causal_lm(folder)).requires_grad_(False)
                object.__setattr__(pl_module, "reference", reference)
            self.second_copy = pl_module.reference is not None

    module = PolicyModule(
        partial(load_causal_lm, folder, lora=SETTINGS), folder, GroupAdvantage("question"), PolicyLoss(kl_coef=0.5),
        partial(torch.optim.SGD, lr=1.0), PolicyOptions(mini_batches=3, schedule="constant", warmup=0.0),
    )  # fmt: skip
    callback = Metrics()
    trainer = Trainer(
        accelerator="cpu", max_steps=3, logger=False, callbacks=[callback], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, Data())
    return module, callback.second_copy, float(trainer.callback_metrics["train/kl"])


@pytest.mark.shell
def test_training_moves_adapters_only_and_needs_no_second_copy_for_the_kl_term(tiny_policy, make_batch):
    batch = make_batch([[[1.0, 0.0, 0.0, 1.0]], [[0.0, 1.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    module, second_copy, kl = train(tiny_policy, batch)
    assert not second_copy
    assert math.isfinite(kl)
    assert kl > 1e-6
    other, second_copy, expected_kl = train(tiny_policy, batch, separate_reference=True)
    assert second_copy
    assert kl == expected_kl
    start = load_file(tiny_policy / "model.safetensors")
    parameters, others = (
        dict(module.policy.model.named_parameters()),
        dict(other.policy.model.named_parameters()),
    )
    for name, parameter in parameters.items():
        assert torch.equal(parameter, others[name])
        if "lora_B" in name:
            assert parameter.abs().max() > 0
        if "lora_" not in name:
            assert torch.equal(parameter, start[name.replace(".base_layer.", ".")])


@pytest.mark.shell
def test_an_exported_folder_is_the_merged_policy(adapted, tiny_policy, tmp_path):
    from lightning.pytorch import Trainer

    from tagrpo.modules.lightning.policy_module import PolicyModule, PolicyOptions

    module = PolicyModule(
        partial(load_causal_lm, tiny_policy), tiny_policy, GroupAdvantage("question"), PolicyLoss(), torch.optim.AdamW,
        PolicyOptions(),
    )  # fmt: skip
    module.policy = CausalPolicy(adapted)
    module._trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    module.export(tmp_path, AutoTokenizer.from_pretrained(tiny_policy))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path)
    merged = dict(full_tensors(adapted))
    assert all(torch.equal(parameter, merged[name]) for name, parameter in exported.named_parameters())
