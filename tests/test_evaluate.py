"""`tagrpo-eval`: its protocols, and an evaluation that breaks off and goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Callback

from tagrpo.checks import read_questions
from tagrpo.config import build
from tagrpo.evaluate import evaluate, prepare, settings_of
from tagrpo.starter import starter_path

PROTOCOLS = sorted(path.stem for path in (Path(__file__).parents[1] / "configs" / "protocol").glob("*.yaml"))
SMALL = [
    "logger=csv", "callbacks=[pass_at_k]", "data.evaluation_samples=4", "data.evaluation.test_id.size=6",
    "data.evaluation_batch_size=2", "~data.evaluation.test_phrasing", "~data.evaluation.test_size",
    "rollout.evaluation_sampling.max_new_tokens=12", "+trainer.enable_progress_bar=false",
]  # fmt: skip


def composed(directory, *overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("evaluate", [f"hydra.run.dir={directory}", *overrides], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    return cfg


def test_protocols_sample_as_their_source_says(tmp_path):
    assert PROTOCOLS == ["authors", "paper"]
    authors = composed(tmp_path, "protocol=authors", "scale=paper", "data=benchmarks", "model=qwen3_1.7b")
    found = settings_of(authors)
    wanted = {"samples": 128, "temperature": 0.6, "top_p": 0.95, "max_new_tokens": 3072, "model": "Qwen/Qwen3-1.7B"}
    assert {name: found[name] for name in wanted} == wanted
    assert max(authors.callbacks.pass_at_k.ks) == 128
    assert len(authors.data.evaluation) == 7
    paper = composed(tmp_path, "protocol=paper")
    assert (settings_of(paper)["temperature"], max(paper.callbacks.pass_at_k.ks)) == (1.0, 32)
    assert settings_of(paper)["samples"] == 128, "of 30 questions with 32 responses pass@32 is a multiple of 1/30"
    assert authors.callbacks.pass_at_k.store == f"{tmp_path}/counts"


class Break(Callback):
    """Ends the evaluation before its third batch is sampled."""

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if batch_idx == 2:
            raise RuntimeError("preempted")


def test_an_evaluation_that_broke_off_ends_as_if_it_had_not(tmp_path):
    def run(directory, *callbacks):
        built = build(composed(directory, *SMALL))
        built.trainer.callbacks = [*callbacks, *built.trainer.callbacks]
        try:
            return evaluate(built.module, built.datamodule, built.trainer)
        finally:
            built.close()

    whole = run(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="preempted"):
        run(tmp_path / "broken", Break())
    assert len((tmp_path / "broken" / "counts" / "0.jsonl").read_text().splitlines()) == 4
    assert run(tmp_path / "broken") == whole
    test = json.loads((tmp_path / "broken" / "test.json").read_text())
    assert test == json.loads((tmp_path / "whole" / "test.json").read_text())
    assert [row["n"] for row in test["splits"]["test_id"]["questions"]] == [4] * 6


def test_counts_are_kept_for_the_same_weights_and_not_for_others(tmp_path):
    policy = shutil.copytree(starter_path(), tmp_path / "policy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))

    def run(*overrides):
        cfg = composed(tmp_path / "run", *SMALL, f"model.path={policy}", *overrides)
        built = build(cfg)
        read_questions(cfg, built, trains=False)
        prepare(cfg, built, None)
        try:
            evaluate(built.module, built.datamodule, built.trainer)
        finally:
            built.close()
        return {path.parent.name: path.read_text() for path in (tmp_path / "run" / "counts").glob("*/0.jsonl")}

    first = run()
    assert len(first) == 1
    assert run() == first, "nothing was sampled"
    content = bytearray((policy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (policy / "model.safetensors").write_bytes(content)
    second = run()
    assert len(second) == 2
    assert second.items() >= first.items()
