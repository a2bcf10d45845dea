"""The page of a run of the embedded task, and that of one whose texts are as unpleasant as a model can make them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from tagrpo.callbacks.recorder import rollout_table
from tagrpo.cli.train import train
from tagrpo.report.assemble import explore
from tagrpo.settings.config import build, compose_run

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of this folder share

from nasty_texts import NASTY

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
    cfg = compose_run(directory, OVERRIDES)
    run = build(cfg)
    try:
        train(run.module, run.datamodule, run.trainer)
    finally:
        run.close()
    return directory


@pytest.fixture(scope="session")
def page(trained, tmp_path_factory):
    """The page of that run."""
    return explore(trained, output=tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def hostile(tmp_path_factory, make_batch):
    """The directory of a run whose prompts, answers, questions and responses are `NASTY`, without a tokenizer."""
    directory = tmp_path_factory.mktemp("hostile")
    batch = make_batch([[[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]])
    assert batch.rollouts is not None
    batch.groups = [batch.groups[0]._replace(id=NASTY[1], answer=(NASTY[0], NASTY[4]))]
    prompts = [prompt._replace(text=NASTY[i]) for i, prompt in enumerate(batch.prompts)]
    batch.rollouts = replace(batch.rollouts, prompts=prompts, text=NASTY, answers=[*NASTY[::-1][1:], None])
    table = rollout_table(batch, {"advantages": torch.linspace(-1, 1, len(NASTY))}, 0, 0)
    (directory / "rollouts").mkdir()
    pq.write_table(table, directory / "rollouts" / "000000-0.parquet")
    counts = [{"id": "1", "n": 2, "correct": 1}]
    split = {
        "num_questions": 1,
        "pass_at_k": {"1": {"value": 0.5, "low": 0.0, "high": 1.0}},
        "questions": counts,
    }
    (directory / "test.json").write_text(
        json.dumps({"stage": "test", "iteration": 1, "splits": {"lone \ud800 surrogate </script>": split}})
    )
    (directory / "config.yaml").write_text(json.dumps({"name": "</title><script>1</script>", "seed": 0}))
    return directory


@pytest.fixture
def hostile_page(hostile, tmp_path_factory):
    """The page of that run."""
    return explore(hostile, output=tmp_path_factory.mktemp("page") / "hostile.html")
