"""A run of the embedded task, as a user would have it."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig

from tagrpo.cli.train import train
from tagrpo.settings.config import build

OVERRIDES = [
    "experiment=ta_grpo", "name=small", "seed=0", "iterations=3", "logger=csv", "data.batch_size=4",
    "data.samples_per_prompt=4", "data.train.size=12", "data.evaluation_samples=4", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "data.evaluation.test_id.size=8", "callbacks=[zero_gradient,pass_at_k,recorder]",
    "+trainer.enable_progress_bar=false", "callbacks.pass_at_k.ks=[1,2,4]", "+reward_terms@rollout.reward_terms=length",
]  # fmt: skip


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The directory of a run of TA-GRPO over three iterations, with shaped rewards."""
    directory = tmp_path_factory.mktemp("runs") / "small" / "seed0"
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [*OVERRIDES, f"hydra.run.dir={directory}"], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    run = build(cfg)
    try:
        train(run.module, run.datamodule, run.trainer)
    finally:
        run.close()
    return directory
