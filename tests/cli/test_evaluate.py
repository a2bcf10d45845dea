"""`tagrpo-eval`: its protocols, and an evaluation that breaks off and goes on."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
import torch
from lightning.pytorch import Callback
from transformers import AutoModelForCausalLM, AutoTokenizer

from tagrpo.cli.evaluate import evaluate, main, prepare, settings_of
from tagrpo.runs.provenance import provenance
from tagrpo.settings.checks import read_questions
from tagrpo.settings.config import build, compose_run
from tagrpo.settings.methods import options_of
from tagrpo.starter import starter_path

PROTOCOLS = list(options_of("protocol"))
SMALL = [
    "logger=csv", "callbacks=[pass_at_k]", "data.evaluation_samples=4", "data.evaluation.test_id.size=6",
    "data.evaluation_batch_size=2", "~data.evaluation.test_phrasing", "~data.evaluation.test_size",
    "rollout.evaluation_sampling.max_new_tokens=12", "+trainer.enable_progress_bar=false",
]  # fmt: skip


def composed(directory, *overrides):
    return compose_run(directory, overrides, "evaluate")


def test_protocols_sample_as_their_source_says(tmp_path):
    def asked(protocol):
        cfg = composed(tmp_path, f"protocol={protocol}", "scale=paper", "data=benchmarks", "model=qwen3_1.7b")
        found = settings_of(cfg)
        names = ("samples", "temperature", "top_p", "max_new_tokens")
        return [*(found[name] for name in names), found["template"].get("name"), max(cfg.callbacks.pass_at_k.ks)]

    assert PROTOCOLS == ["pass_at_k", "prompt_augmentation", "ta_grpo"]
    assert asked("ta_grpo") == [128, 0.6, 0.95, 3072, "raw_boxed", 128]
    assert asked("pass_at_k") == [8, 1.0, 0.95, 3072, "boxed", 8]
    assert asked("prompt_augmentation") == [5, 0.0, 1.0, 3000, "qwen-math", 1]
    cfg = composed(tmp_path, "protocol=ta_grpo", "scale=paper", "data=benchmarks", "model=qwen3_1.7b")
    assert len(cfg.data.evaluation) == 7
    assert cfg.callbacks.pass_at_k.store == f"{tmp_path}/counts"


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
    assert len((tmp_path / "broken" / "counts" / "0.counts").read_text().splitlines()) == 4
    assert run(tmp_path / "broken") == whole
    test = json.loads((tmp_path / "broken" / "test.json").read_text())
    assert test == json.loads((tmp_path / "whole" / "test.json").read_text())
    assert [row["n"] for row in test["splits"]["test_id"]["questions"]] == [4] * 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_policy_of_nan_is_no_policy_that_solves_nothing(temperature, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(starter_path())
    torch.nn.init.constant_(model.model.norm.weight, torch.nan)
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(starter_path()).save_pretrained(tmp_path / "broken")
    options = [f"model.path={tmp_path / 'broken'}", f"rollout.evaluation_sampling.temperature={temperature}"]
    run = build(composed(tmp_path / "run", *SMALL, *options))
    with pytest.raises(FloatingPointError, match=r"1 of its 35 parameters hold NaN or infinity, such as .*norm.weight"):
        evaluate(run.module, run.datamodule, run.trainer)
    assert not (tmp_path / "run" / "test.json").exists()


def test_the_command_records_the_code_and_the_settings_beside_its_results(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tagrpo-eval", f"hydra.run.dir={tmp_path}", *SMALL])
    main()
    made_with = json.loads((tmp_path / "provenance.json").read_text())
    assert made_with == provenance()
    text = (tmp_path / "test.md").read_text()
    assert f"- version/torch: {made_with['version/torch']}\n" in text
    assert re.search(r"- digests: weights \w{16}, model \w{16}, tokenizer \w{16}, data \w{16}, ", text)


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
        return {path.parent.name: path.read_text() for path in (tmp_path / "run" / "counts").glob("*/0.counts")}

    first = run()
    assert len(first) == 1
    assert run() == first, "nothing was sampled"
    content = bytearray((policy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (policy / "model.safetensors").write_bytes(content)
    second = run()
    assert len(second) == 2
    assert second.items() >= first.items()
