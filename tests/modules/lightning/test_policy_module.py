"""The Lightning shell: it adds nothing to the update but an optimizer, a schedule and what a checkpoint needs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM

import tagrpo
import tagrpo.modules.lightning.policy_module as policy_module
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.lightning.policy_module import PolicyModule, PolicyOptions
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rollouts import TransformersEngine
from tagrpo.rollouts.engines.transformers import GROUPED_ATTENTION

# Two questions with a rephrasing each; the first original is uniform, pooling rescues it.
REWARDS = [[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]]


class Attach(Callback):
    """Attaches the rollouts where the rollout callback would: after Lightning has moved the batch."""

    def __init__(self, batches):
        self.batches, self.logged, self.rates = batches, [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.rollouts = self.batches[batch_idx].rollouts

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        self.outputs = outputs


class Batches(LightningDataModule):
    """Hand-made batches."""

    def __init__(self, *batches):
        super().__init__()
        self.batches = batches

    def train_dataloader(self):
        return DataLoader([replace(batch, rollouts=None) for batch in self.batches], batch_size=None)


def make_module(folder, *, loss=None, lr=0.1, **options) -> PolicyModule:
    return PolicyModule(
        load_model=partial(load_causal_lm, folder),
        model_path=str(folder),
        advantage=GroupAdvantage("question"),
        loss=loss or PolicyLoss(kl_coef=0.0),
        optimizer=partial(torch.optim.SGD, lr=lr),
        options=PolicyOptions(
            **{"schedule": "constant", "warmup": 0.0, "max_grad_norm": 1e9, "token_budget": 60, **options}
        ),
    )


def fit(module, *batches, callbacks=()) -> Attach:
    attach = Attach(batches)
    trainer = Trainer(
        accelerator="cpu", max_steps=module.mini_batches * len(batches), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[attach, *callbacks],
    )  # fmt: skip
    trainer.fit(module, Batches(*batches))
    assert trainer.global_step == trainer.max_steps
    return attach


def test_two_training_steps_are_two_updates_in_plain_torch_to_the_bit(tiny_policy, make_batch):
    loss = PolicyLoss(clip_low=0.01, clip_high=0.02, kl_coef=0.5, entropy_coef=0.1)
    batches = [make_batch(REWARDS), make_batch(REWARDS[::-1], seed=1)]
    module = make_module(tiny_policy, loss=loss, lr=0.5)
    attach = fit(module, *batches)

    policy, reference = (CausalPolicy(load_causal_lm(tiny_policy)) for _ in range(2))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    update = PolicyUpdate(
        Scorer(policy, reference, token_budget=60),
        GroupAdvantage("question"),
        loss,
        optimizer,
        UpdateOptions(max_grad_norm=1e9),
        useful_flop=lambda work: float(work.tokens),
    )
    results = [update(batch.rollouts, len(batch.groups)) for batch in batches]
    expected = dict(policy.model.named_parameters())
    for name, parameter in module.full_parameters():
        assert torch.equal(parameter, expected[name]), name
    for logged, result in zip(attach.logged, results, strict=True):
        metrics = {name: torch.tensor(value).item() for name, value in result.metrics().items()}
        assert {name: logged[name] for name in metrics} == metrics
    assert torch.equal(attach.outputs["advantages"], results[1].experience.advantages)
    counted, tokens = attach.outputs["flop_update"], results[1].outputs()["flop_update"]
    layers = sum(6 * weight.numel() for weight in policy.model.model.layers.parameters() if weight.dim() == 2)
    assert 1 < counted / (layers * tokens) < 1.5, "of all its tokens, and besides the head and attention"


class Traced(PolicyLoss):
    """Keeps the files of the frames from the training step to itself."""

    def __call__(self, inputs):
        frame, files = sys._getframe(), []
        while frame.f_code is not PolicyModule.training_step.__code__:
            files.append(Path(frame.f_code.co_filename))
            frame = frame.f_back
        self.files = [Path(frame.f_code.co_filename), *reversed(files)]
        return super().__call__(inputs)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_batch_is_eight_frames_from_the_step_to_the_loss_and_enters_no_room_twice(
    tiny_policy, make_batch, ratio
):
    loss = Traced(kl_coef=0.0, ratio=ratio)
    fit(make_module(tiny_policy, loss=loss), make_batch(REWARDS))
    source = Path(tagrpo.__path__[0]).resolve()
    own = [
        path.resolve().relative_to(source).parts[0]
        for path in loss.files
        if path.resolve().is_relative_to(source)
    ]
    assert len(own) + 1 <= 8, f"{own}, and the loss"  # which lies in this file
    rooms = [room for room, _ in groupby(own)]
    # Packing calls back for the loss of each chunk of tokens, whose logits are then made once.
    assert rooms == {"token": ["modules", "packing", "modules"], "sequence": ["modules"]}[ratio]
    assert own[-1] == "modules", "nothing but the call of the loss"


@pytest.mark.parametrize("warmup", [0.25, 2])
def test_the_learning_rate_warms_up_and_falls_over_optimizer_steps(tiny_policy, make_batch, warmup):
    module = make_module(tiny_policy, lr=1.0, schedule="cosine", warmup=warmup)
    attach = fit(module, *[make_batch(REWARDS)] * 4)  # eight optimizer steps, two of them to warm up
    cosine = [0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]
    expected = [0.0, 0.5, *cosine]
    # What is logged is the rate of each iteration's second step.
    assert [logged["train/lr"] for logged in attach.logged] == pytest.approx(expected[1::2])


@pytest.mark.parametrize(
    ("max_steps", "max_epochs", "expected"), [(7, -1, 7), (-1, 3, 3 * 5 * 2), (7, 3, 7), (50, 3, 30)]
)
def test_the_schedule_ends_with_the_run(tiny_policy, max_steps, max_epochs, expected):
    module = make_module(tiny_policy)
    data = SimpleNamespace(iterations_per_epoch=5)
    module.trainer = SimpleNamespace(max_steps=max_steps, max_epochs=max_epochs, datamodule=data)
    assert module.total_updates == expected


def test_a_run_without_an_end_is_refused(tiny_policy):
    module = make_module(tiny_policy)
    module.trainer = SimpleNamespace(max_steps=-1, max_epochs=-1)
    with pytest.raises(ValueError, match=r"trainer\.max_steps .* or trainer\.max_epochs"):
        module.total_updates  # noqa: B018


def test_one_is_a_single_step_of_warm_up_and_then_the_rate_is_constant(tiny_policy, make_batch):
    module = make_module(tiny_policy, lr=1.0, schedule="constant_with_warmup", warmup=1, mini_batches=1)
    attach = fit(module, *[make_batch(REWARDS)] * 3)
    assert [logged["train/lr"] for logged in attach.logged] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("warmup", [1.0, 2.5, -0.1, -1])
def test_a_warm_up_that_is_neither_a_share_nor_a_number_of_steps_is_refused(tiny_policy, warmup):
    with pytest.raises(ValueError, match=r"policy\.warmup"):
        make_module(tiny_policy, warmup=warmup)


@pytest.mark.parametrize("anchor", ["original", "own"])
def test_response_entropy_is_that_of_a_plain_forward(tiny_policy, make_batch, anchor):
    batch = make_batch(REWARDS)
    prompts = [batch.rollouts.prompts[row] for row in (1, 0, 3)]
    responses = [batch.rollouts.token_ids[row] for row in (4, 0, 9)]
    measured = []

    class Measure(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            measured.extend(
                [pl_module.response_entropy(prompts, responses), pl_module.response_entropy([], [])]
            )

    fit(make_module(tiny_policy, anchor=anchor, mini_batches=1), batch, callbacks=[Measure()])
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    expected = []
    for prompt, ids in zip(prompts, responses, strict=True):
        head = prompt.anchor_ids if anchor == "original" else prompt.token_ids
        logits = model(torch.cat([head, ids])[None]).logits[0, len(head) - 1 : -1].detach().double()
        expected.append(torch.distributions.Categorical(logits=logits).entropy().mean())
    torch.testing.assert_close(measured[0].double(), torch.stack(expected), atol=1e-5, rtol=1e-5)
    assert measured[1].shape == (0,)


def test_skipped_steps_are_counted_over_a_resume(tiny_policy, make_batch):
    options = {"mini_batches": 1, "skip_grad_norm": 1e-6}
    module = make_module(tiny_policy, **options, max_skipped=1)
    with pytest.raises(FloatingPointError, match=r"policy\.skip_grad_norm\), .* 2 "):
        fit(module, make_batch(REWARDS), make_batch(REWARDS))
    saved = {}
    module.on_save_checkpoint(saved)
    resumed = make_module(tiny_policy, **options, max_skipped=2)
    resumed.on_load_checkpoint(saved)
    with pytest.raises(FloatingPointError, match=r"policy\.skip_grad_norm\), .* 3 "):
        fit(resumed, make_batch(REWARDS))


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_code_that_a_model_names_for_its_attention_is_not_asked_for(key, tiny_policy, tmp_path):
    folder = shutil.copytree(tiny_policy, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: "someone/kernel"}))
    models = [load_causal_lm(folder), TransformersEngine(str(folder), device="cpu").model]
    with torch.device("meta"):
        models.insert(0, load_causal_lm(folder))
    assert [model.config._attn_implementation for model in models] == ["sdpa", "sdpa", GROUPED_ATTENTION]


def test_contradicting_options_fail_before_any_model_is_loaded(tiny_policy):
    def never():
        raise AssertionError("loaded a model")

    arguments = (GroupAdvantage(), PolicyLoss(), partial(torch.optim.SGD, lr=0.1), PolicyOptions())
    with pytest.raises(ValueError, match="nothing to correct"):
        PolicyOptions(anchor="own", prompt_correction=2.0)
    with pytest.raises(ValueError, match="`original` or `own`"):
        PolicyOptions(anchor="q0")
    with pytest.raises(ValueError, match="staleness_cap"):
        PolicyOptions(staleness_cap=0.5)
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        PolicyModule(never, "./no/such/model", *arguments)
    with pytest.raises(TypeError, match=r"by_token.*entropy_coef.*kl_coef"):
        PolicyModule(never, str(tiny_policy), arguments[0], lambda inputs: None, *arguments[2:])


def test_the_reference_of_a_kl_term_is_loaded_to_train_and_not_to_test(tiny_policy, make_batch):
    loaded, module = [], make_module(tiny_policy, loss=PolicyLoss(kl_coef=0.1))
    load, module.load_model = module.load_model, lambda: loaded.append(1) or load()
    module.trainer = SimpleNamespace(strategy=SimpleNamespace(broadcast=lambda x: x), training=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_module, "values_on_rank_0", lambda _: nullcontext())
        patch.setattr(policy_module, "prepare", lambda policy, *_: policy)
        module.configure_model()
        policy = module.policy
        assert (len(loaded), module.reference) == (1, None)
    fit(module, make_batch(REWARDS))
    assert (len(loaded), module.policy) == (2, policy)
    assert not any(parameter.requires_grad for parameter in module.reference.parameters())


def test_the_reference_of_random_weights_is_the_policy_that_training_begins_with(tiny_policy, make_batch):
    config = AutoConfig.from_pretrained(tiny_policy)
    module = make_module(tiny_policy, loss=PolicyLoss(kl_coef=0.1), lr=0.0)
    module.load_model = lambda: AutoModelForCausalLM.from_config(config)
    torch.manual_seed(3)
    expected = AutoModelForCausalLM.from_config(config)
    torch.manual_seed(3)
    fit(module, make_batch(REWARDS))
    for policy in (module.policy, module.reference):
        found = dict(policy.model.named_parameters())
        assert all(torch.equal(found[name], value) for name, value in expected.named_parameters())


def test_a_loader_whose_weights_are_others_each_time_is_refused(tiny_policy, make_batch):
    module, scales = make_module(tiny_policy, loss=PolicyLoss(kl_coef=0.1)), iter([1.0, 1.5])
    load = module.load_model

    def other():
        model, scale = load(), next(scales)
        with torch.no_grad():
            next(model.parameters()).mul_(scale)
        return model

    module.load_model = other
    with pytest.raises(ValueError, match=r"model\.load .*KL reference"):
        fit(module, make_batch(REWARDS))


def test_a_schedule_with_options_is_followed_to_its_end(tiny_policy, make_batch):
    options = {"schedule": "cosine_with_min_lr", "schedule_options": {"min_lr_rate": 0.5}, "mini_batches": 2}
    module = make_module(tiny_policy, lr=0.1, **options)
    fit(module, make_batch(REWARDS))
    (group,) = module.optimizers().param_groups
    assert group["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "name", ["max_grad_norm", "staleness_cap", "warmup", "temperature", "skip_grad_norm"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_of_the_options_are_finite(name, value):
    if (name, value) == ("staleness_cap", math.inf):
        assert PolicyOptions(staleness_cap=value).staleness_cap == math.inf, "no cap"
        return
    with pytest.raises(ValueError, match=rf"policy\.{name} "):
        PolicyOptions(**{name: value})


def test_an_optimizer_and_a_schedule_are_tried_before_a_model_is_loaded(tiny_policy):
    def never():
        raise AssertionError("loaded a model")

    def make(lr=0.1, **options):
        optimizer = partial(torch.optim.SGD, lr=lr)
        PolicyModule(
            never, str(tiny_policy), GroupAdvantage(), PolicyLoss(), optimizer, PolicyOptions(**options)
        )

    make()
    with pytest.raises(ValueError, match=r"optimizer\.lr"):
        make(lr=-1)
    with pytest.raises(ValueError, match=r"policy\.schedule "):
        make(schedule="cosin")
    with pytest.raises(ValueError, match=r"policy\.schedule_options "):
        make(schedule="cosine_with_min_lr")
