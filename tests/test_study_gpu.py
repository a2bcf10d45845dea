"""The study for a GPU node: every cell has the paper's settings, and cells run through when they are made small."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from transformers import AutoTokenizer

from tagrpo.compare import cells_of, methods_of
from tagrpo.config import build
from tagrpo.train import train

ROOT = Path(__file__).parents[1]
BENCHMARKS = ["amc", "olympiadbench", "aime24", "aime25", "minerva", "gpqa_diamond", "math500"]
SHRUNK = [
    "model=pretrained", "model.load.gradient_checkpointing=false", "rollout=transformers", "trainer=cpu",
    "strategy=auto", "threads=1", "policy.compute_dtype=float32", "policy.mini_batches=1", "trainer.max_epochs=1",
    "callbacks.embedding_diversity=null", "callbacks.progress=null", "+trainer.enable_progress_bar=false",
    "data.batch_size=2", "data.evaluation_samples=32", "rollout.sampling.max_new_tokens=4",
    "data.max_prompt_tokens=2000",
    *(f"~data.evaluation.{name}" for name in BENCHMARKS if name != "math500"),
]  # fmt: skip


def cells(rephrasings="rephrased.jsonl", data_path="copies"):
    """Method → overrides of its first cell."""
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        study = compose("compare", ["compare=study_gpu", f"rephrasings={rephrasings}", f"data_path={data_path}"])
    made = cells_of(Path("runs"), methods_of(study.methods), [0], list(study.overrides))
    return {cell.method: [o for o in cell.command[3:] if not o.startswith("hydra.")] for cell in made}


METHODS = cells()


def test_its_methods_are_those_of_the_study():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        assert list(METHODS) == list(compose("compare", ["compare=study"]).methods)


@pytest.mark.parametrize("method", METHODS)
def test_every_cell_has_the_settings_of_the_paper(method):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", METHODS[method])
    assert (cfg.model.path, cfg.data.train.dataset) == ("Qwen/Qwen3-1.7B", "math_train")
    assert list(cfg.data.evaluation) == BENCHMARKS
    assert (cfg.data.batch_size, cfg.policy.mini_batches, cfg.data.max_prompt_tokens) == (256, 2, 512)
    assert (cfg.rollout.sampling.max_new_tokens, cfg.rollout.sampling.temperature) == (3072, 1.0)
    assert (cfg.optimizer.lr, cfg.trainer.max_epochs) == (1e-6, 2)
    assert cfg.trainer.max_steps == (0 if method == "base" else -1)
    responses = cfg.data.samples_per_prompt * (1 + cfg.data.num_rephrasings)
    assert responses == (8 if method in ("base", "grpo") else 32)
    own = {"clip_high": 0.28, "kl_coef": 0.0} if method == "prompt_augmentation" else {}
    assert (cfg.loss.clip_low, cfg.loss.clip_high, cfg.loss.kl_coef) == (
        0.2, own.get("clip_high", 0.2), own.get("kl_coef", 0.001),
    )  # fmt: skip
    sampling = cfg.rollout.evaluation_sampling
    assert (cfg.data.evaluation_samples, sampling.temperature, sampling.top_p) == (32, 1.0, 1.0)
    assert cfg.data.train.rephrasings == "rephrased.jsonl"


@pytest.fixture(scope="module")
def copies(tmp_path_factory, tiny_policy):
    """Two questions in the layout of MATH with rephrasings, one of MATH-500, a tiny policy with a chat template."""
    folder = tmp_path_factory.mktemp("copies")
    rows = [{"problem": f"What is {n} + 4?", "solution": rf"\boxed{{{n + 4}}}", "level": "1"} for n in (9, 13)]
    (folder / "math_train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    test = [{"problem": "What is 2 + 2?", "solution": r"\boxed{4}", "answer": "4", "unique_id": "a"}]
    (folder / "math500.jsonl").write_text("\n".join(map(json.dumps, test)))
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


@pytest.mark.parametrize("method", ["base", "ta_grpo_corrected", "prompt_augmentation"])
def test_a_cell_runs_through(method, copies, tmp_path):
    overrides = [*cells(copies / "rephrased.jsonl", copies)[method], *SHRUNK, f"model.path={copies}"]
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [*overrides, f"hydra.run.dir={tmp_path}"], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(tmp_path)
    HydraConfig.instance().set_config(cfg)
    run = build(cfg)
    train(run.module, run.datamodule, run.trainer)
    run.close()
    (question,) = json.loads((tmp_path / "test.json").read_text())["splits"]["math500"]["questions"]
    assert question["n"] == 32
    if method != "base":
        ledger = json.loads((tmp_path / "ledger.json").read_text())
        assert (ledger["iterations"], ledger["rollouts"]) == (1, 64), "two questions, 32 responses each"


def test_the_hours_on_the_page_are_those_of_the_configuration(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("study_cost", ROOT / "benchmarks" / "study_cost.py")
    study_cost = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study_cost)
    assert study_cost.table() in (ROOT / "docs" / "study_gpu.md").read_text(encoding="utf-8")
