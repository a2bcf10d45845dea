"""The study for a GPU node: every run has the paper's settings, and runs reach their end when they are made small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from transformers import AutoTokenizer

from studies.benchmark.run import CONFIGS
from tagrpo.cli.train import train
from tagrpo.datamodules import prompt_check
from tagrpo.settings.config import build, compose_run
from tagrpo.study.compare import methods_of

pytestmark = pytest.mark.pages

PRESETS = f"hydra.searchpath=[file://{Path(__file__).parents[3]}/studies/gpu/configs]"
BENCHMARKS = ["amc", "olympiadbench", "aime24", "aime25", "minerva", "gpqa_diamond"]
SHRUNK = [
    "model=pretrained", "model.load.gradient_checkpointing=false", "rollout=transformers", "trainer=cpu",
    "strategy=auto", "threads=1", "policy.compute_dtype=float32", "policy.mini_batches=1", "trainer.max_epochs=1",
    "callbacks.embedding_diversity=null", "callbacks.progress=null", "+trainer.enable_progress_bar=false",
    "data.batch_size=2", "data.evaluation_samples=32", "rollout.sampling.max_new_tokens=4",
    "rollout.evaluation_sampling.max_new_tokens=4",
    "data.max_prompt_tokens=2000",
    *(f"~data.evaluation.{name}" for name in BENCHMARKS if name != "amc"),
]  # fmt: skip


def overrides_of(rephrasings="rephrased.jsonl", data_path="copies"):
    """Method → overrides of its runs."""
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        study = compose(
            "compare", [PRESETS, "compare=gpu", f"rephrasings={rephrasings}", f"data_path={data_path}"]
        )
    methods = methods_of(study.methods, "paper").items()
    return {method: [f"name={method}", *study.overrides, *own.overrides] for method, own in methods}


METHODS = overrides_of()


def test_its_methods_are_those_of_the_benchmark():
    own, theirs = (
        yaml.safe_load((folder / "compare" / name).read_text())["methods"]
        for folder, name in (
            (Path(__file__).parents[3] / "studies/gpu/configs", "gpu.yaml"),
            (CONFIGS, "benchmark.yaml"),
        )
    )

    def defining(overrides):
        return [o for o in overrides if not o.startswith(("iterations=", "trainer."))]

    assert own.keys() - theirs.keys() == {"grpo_long"}
    for method in own.keys() & theirs.keys() - {"pass_at_k"}:  # its k is 8 here, as in the second study
        assert defining(own[method]) == defining(theirs[method]), method


@pytest.mark.parametrize("method", METHODS)
def test_every_run_has_the_settings_of_the_paper(method):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", METHODS[method])
    assert (cfg.model.path, cfg.data.train.dataset) == ("Qwen/Qwen3-1.7B", "math_train")
    assert list(cfg.data.evaluation) == BENCHMARKS
    assert (cfg.data.batch_size, cfg.policy.mini_batches, cfg.data.max_prompt_tokens) == (256, 2, 512)
    assert (cfg.rollout.sampling.max_new_tokens, cfg.rollout.sampling.temperature) == (3072, 1.0)
    assert (cfg.optimizer.lr, cfg.trainer.max_epochs) == (1e-6, 8 if method == "grpo_long" else 2)
    assert cfg.trainer.max_steps == (0 if method == "base" else -1)
    responses = cfg.data.samples_per_prompt * (1 + cfg.data.num_rephrasings)
    assert responses == (8 if method in ("base", "grpo", "grpo_long", "grpo_ds") else 32)
    assert (cfg.loss.clip_low, cfg.loss.clip_high, cfg.loss.kl_coef) == (0.2, 0.2, 0.001)
    sampling = cfg.rollout.evaluation_sampling
    assert (cfg.data.evaluation_samples, sampling.temperature, sampling.top_p) == (128, 0.6, 0.95)
    assert cfg.data.evaluation_template.name == "raw_boxed"
    assert cfg.data.train.rephrasings == "rephrased.jsonl"


@pytest.fixture(scope="module")
def copies(tmp_path_factory, tiny_policy):
    """Two questions in the layout of MATH with rephrasings, one of AMC, a tiny policy with a chat template."""
    folder = tmp_path_factory.mktemp("copies")
    rows = [
        {"problem": f"What is {n} + 4?", "solution": rf"\boxed{{{n + 4}}}", "level": "1"} for n in (9, 13)
    ]
    (folder / "math_train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    test = [{"problem": "What is 2 + 2?", "answer": 4.0, "id": 7, "url": "u"}]
    (folder / "amc.jsonl").write_text("\n".join(map(json.dumps, test)))
    told = [
        {"question": r["problem"], "rephrasings": [f"{w} {r['problem']}" for w in ("So:", "Well:", "Now:")]}
        for r in rows
    ]
    (folder / "rephrased.jsonl").write_text("\n".join(map(json.dumps, told)))
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}<sep>"
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / file).write_bytes((tiny_policy / file).read_bytes())
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("method", ["base", "ta_grpo_corrected", "anchored"])
def test_a_run_reaches_its_end(method, copies, tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_check, "MOST_UNKNOWN", 1.0)  # the tiny policy knows few words
    overrides = [*overrides_of(copies / "rephrased.jsonl", copies)[method], *SHRUNK, f"model.path={copies}"]
    cfg = compose_run(tmp_path, overrides)
    run = build(cfg)
    train(run.module, run.datamodule, run.trainer)
    run.close()
    (question,) = json.loads((tmp_path / "test.json").read_text())["splits"]["amc"]["questions"]
    assert question["n"] == 32
    if method != "base":
        ledger = json.loads((tmp_path / "ledger.json").read_text())
        assert (ledger["iterations"], ledger["rollouts"]) == (1, 64), "two questions, 32 responses each"
