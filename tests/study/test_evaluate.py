"""`tagrpo-eval`: its protocols, and an evaluation that breaks off and goes on."""

from __future__ import annotations

import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from tagrpo.metrics.evaluation import summarise
from tagrpo.report.assemble import write_report
from tagrpo.runs.directory import provenance
from tagrpo.settings.checks import read_questions
from tagrpo.settings.config import build, compose_run
from tagrpo.settings.methods import options_of
from tagrpo.starter import starter_path
from tagrpo.study.evaluate import evaluate, main, prepare
from tests.helpers import counted, forked

PROTOCOLS = [name for name in options_of("protocol") if name != "none"]
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
        template, sampling = cfg.data.evaluation_template or cfg.template, cfg.rollout.evaluation_sampling
        found = (sampling[name] for name in ("temperature", "top_p", "max_new_tokens"))
        return [cfg.data.evaluation_samples, *found, template.get("name"), max(cfg.callbacks.pass_at_k.ks)]

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
    with pytest.raises(FloatingPointError, match=r"1 of its 35 parameters .*norm.weight"):
        evaluate(run.module, run.datamodule, run.trainer)
    assert not (tmp_path / "run" / "test.json").exists()


def test_the_command_records_the_code_and_the_settings_beside_its_results(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tagrpo-eval", f"hydra.run.dir={tmp_path}", *SMALL])
    main()
    made_with = json.loads((tmp_path / "provenance.json").read_text())
    assert made_with == provenance()
    assert f"torch {made_with['version/torch']}" in (tmp_path / "test.md").read_text()


@pytest.mark.runs
def test_questions_that_training_has_seen_are_warned_of_in_the_report(tmp_path):
    for name, start in (("seen", 0), ("new", 50)):
        rows = [{"question": f"{i} + {i + 1} = ?", "answer": str(2 * i + 1)} for i in range(start, start + 5)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["data=jsonl", "data.train.path=seen.jsonl", "data.num_rephrasings=0", "data.batch_size=2"]
    few = [
        "callbacks=[pass_at_k,checkpoint]",
        "callbacks.pass_at_k.ks=[1]",
        "data.evaluation_samples=2",
        "logger=csv",
    ]
    train = ["experiment=grpo", "model=starter", "iterations=1", "test=false", "trainer.limit_val_batches=0"]
    code, said = forked(
        "train",
        *train,
        *data,
        *few,
        "data.evaluation.test.path=new.jsonl",
        "hydra.run.dir=run",
        folder=tmp_path,
    )
    assert code == 0, said
    for policy in (["model=pretrained", "model.path=run/model"], ["checkpoint=run"]):
        for questions in ("seen", "new"):
            asked = [*data, *few, *policy, f"data.evaluation.test.path={questions}.jsonl"]
            code, said = forked("evaluate", *asked, f"name={questions}", folder=tmp_path)
            assert code == 0, said
            page = (tmp_path / "runs" / "evaluation" / questions / "test.md").read_text()
            assert page.count("trained on 5 of 5 questions, in run.") == (questions == "seen"), page
            assert page.count("'1 + 2 = ?'") == (questions == "seen")
        shutil.rmtree(tmp_path / "runs")
    data[1:2] = [f"data.train.path={tmp_path}/seen.jsonl"]
    asked = [
        *data,
        *few,
        "checkpoint=iteration-000001.ckpt",
        f"data.evaluation.test.path={tmp_path}/seen.jsonl",
    ]
    code, said = forked("evaluate", *asked, "hydra.run.dir=asked", folder=tmp_path / "run" / "checkpoints")
    assert code == 0, said
    page = (tmp_path / "run" / "checkpoints" / "asked" / "test.md").read_text()
    assert "trained on 5 of 5 questions, in ..." in page, page


def test_counts_are_kept_for_the_same_weights_and_not_for_others(tmp_path):
    policy = shutil.copytree(
        starter_path(), tmp_path / "policy", ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )

    def run(*overrides):
        cfg = composed(tmp_path / "run", *SMALL, f"model.path={policy}", *overrides)
        built = build(cfg)
        read_questions(cfg, built, trains=False)
        prepare(cfg, built, None)
        try:
            evaluate(built.module, built.datamodule, built.trainer)
        finally:
            built.close()
        return {
            path.parent.name: path.read_text() for path in (tmp_path / "run" / "counts").glob("*/0.counts")
        }

    first = run()
    assert len(first) == 1
    assert run() == first, "nothing was sampled"
    content = bytearray((policy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (policy / "model.safetensors").write_bytes(content)
    second = run()
    assert len(second) == 2
    assert second.items() >= first.items()


def evaluation(folder, correct):
    """A `test.json` of one split, from the number of correct ones among four responses to each question."""
    questions = counted({f"q{i:02d}": (4, c, 4000 + c, c % 2) for i, c in enumerate(correct)})
    split = summarise(questions, [1, 2, 4])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.json").write_text(json.dumps({"splits": {"amc": split}}))
    (folder / "config.yaml").write_text(json.dumps({"name": folder.name, "seed": 0}))


def test_two_evaluations_are_compared_by_the_paired_t_test_with_holms_correction(tmp_path):
    theirs = np.random.default_rng(0).integers(0, 3, 40)
    ours = np.minimum(theirs + (np.arange(40) % 2), 4)
    for name, correct in (("mine", ours), ("theirs", theirs)):
        evaluation(tmp_path / name, correct.tolist())
    write_report(tmp_path, order=["theirs", "mine"])
    first, last = json.loads((tmp_path / "results.json").read_text())["comparisons"]
    assert (first["quantity"], last["quantity"]) == ("pass@k/amc/1", "pass@k/amc/4")
    test = stats.ttest_rel(ours / 4, theirs / 4)
    assert first["difference"]["value"] == pytest.approx((ours - theirs).mean() / 4)
    assert (first["difference"]["low"], first["difference"]["high"]) == pytest.approx(
        tuple(test.confidence_interval())
    )
    assert first["p_value"] == pytest.approx(2 * test.pvalue)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Comparison of theirs, mine\n")
    assert re.search(r"\| mine \| theirs \| – \| amc \| ▲ \+12\.5 \[", text)
    length, cut = 1000 + ours.mean() / 4, 100 * (ours % 2).sum() / 160
    assert f"| amc | mine | 160 | {100 * (ours > 0).mean():.1f} | {length:,.0f} | {cut:.1f} |" in text


def test_evaluations_on_other_questions_are_not_compared(tmp_path):
    evaluation(tmp_path / "a", [1, 2, 3])
    evaluation(tmp_path / "b", [1, 2])
    with pytest.raises(ValueError, match="same questions"):
        write_report(tmp_path)
