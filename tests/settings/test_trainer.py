"""Options of Lightning's trainer: each is handed on, or refused with what to set in its place."""

from __future__ import annotations

import inspect
import re

import pytest
from lightning.pytorch import Trainer
from omegaconf import OmegaConf

from tagrpo.settings.trainer import HANDED_ON, REFUSED, check_trainer

USUAL = {
    "_target_": "lightning.pytorch.Trainer",
    "accelerator": "cpu",
    "default_root_dir": "${hydra:runtime.output_dir}",
}
CHANGED = {
    "precision": ["bf16-mixed", "16-mixed", "bf16-true", "64-true", "transformer-engine", 16, 64, "16", "bf16"],
    "gradient_clip_val": [1.0, 0.5], "gradient_clip_algorithm": ["value"], "accumulate_grad_batches": [2, True],
    "limit_train_batches": [2, 0.5, 0], "overfit_batches": [1, 0.1], "fast_dev_run": [True, 1, 3], "min_epochs": [1],
    "min_steps": [10], "max_time": ["00:01:00:00", {"hours": 1}], "reload_dataloaders_every_n_epochs": [1],
    "use_distributed_sampler": [True], "sync_batchnorm": [True], "limit_predict_batches": [3], "barebones": [True],
    "callbacks": [[], [{"_target_": "a.B"}]], "logger": [True, False], "plugins": [[]], "enable_checkpointing": [False],
    "model_registry": ["mine"],
}  # fmt: skip


def test_every_option_of_lightning_is_decided_on():
    options = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert options == HANDED_ON | set(REFUSED)
    assert not HANDED_ON & set(REFUSED)
    assert set(CHANGED) == set(REFUSED)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in CHANGED.items() for value in values]
)
def test_an_option_that_would_change_what_is_trained_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"trainer\.{name}"):
        check_trainer(OmegaConf.create({**USUAL, name: value}))


def test_the_values_that_a_message_offers_are_taken():
    for name, (neutral, _) in REFUSED.items():
        for value in neutral:
            check_trainer(OmegaConf.create({**USUAL, name: value}))
        with pytest.raises(ValueError, match="Lightning, but got") as raised:
            check_trainer(OmegaConf.create({**USUAL, name: CHANGED[name][0]}))
        setting, offered = re.search(r"Expected trainer\.(\w+)=(\S+),", str(raised.value)).groups()
        check_trainer(OmegaConf.create({**USUAL, setting: OmegaConf.create(f"x: {offered}").x}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gradient_clip": 1}, r"trainer\.gradient_clip .*max_steps"),
        ({"default_root_dir": "/elsewhere"}, r"hydra\.run\.dir"),
        ({"strategy": "fsdp"}, r"trainer\.strategy"),
        ({"strategy": "deepspeed_stage_2"}, r"trainer\.strategy"),
    ],
)
def test_what_is_no_option_and_what_leads_elsewhere_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        check_trainer(OmegaConf.create({**USUAL, **options}))


@pytest.mark.parametrize(
    "options", [{"strategy": "ddp"}, {"detect_anomaly": True}, {"deterministic": True}, {}]
)
def test_what_changes_nothing_is_handed_on(options):
    check_trainer(OmegaConf.create({**USUAL, **options}))
