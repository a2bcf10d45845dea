"""Exact pass@k over a run, from its configuration: what is logged and written, and against which policy."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.starters.parts import prompt_text
from tagrpo.cli.train import train
from tagrpo.lab.exact import correct_tokens, exact_success
from tagrpo.lab.exact_pass_at_k import ExactPassAtK
from tagrpo.lab.tasks.shortest_path import ShortestPathReward, ShortestPathSource
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rewards import FinalAnswerReward
from tagrpo.study.evaluate import main
from tagrpo.types import SamplingConfig


def read_success(folder):
    """Split → question id → probability, of an `exact.json`."""
    splits = json.loads((folder / "exact.json").read_text())["splits"]
    return {name: {row["id"]: row["success"] for row in split["questions"]} for name, split in splits.items()}


def success_of(folder):
    """The same by hand: id → p."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scorer = Scorer(CausalPolicy(AutoModelForCausalLM.from_pretrained(folder)))
    groups = ShortestPathSource("test_id", "hard", size=6).load()
    prompts = [torch.tensor(tokenizer(prompt_text(group.question)).input_ids) for group in groups]
    correct = [correct_tokens(group.answer, tokenizer, [tokenizer.eos_token_id], 8) for group in groups]
    return dict(
        zip([group.id for group in groups], exact_success(scorer, prompts, correct).tolist(), strict=True)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_run):
    directory = tmp_path_factory.mktemp("run")
    run = small_run(directory)
    train(run.module, run.datamodule, run.trainer, export=directory / "model")
    return directory


def test_what_is_written_is_the_exact_success_of_the_trained_and_the_untrained_policy(trained, directions):
    untrained, after = success_of(directions), success_of(trained / "model")
    assert read_success(trained)["test_id"] == pytest.approx(after, rel=1e-4)
    assert after != pytest.approx(untrained, rel=1e-2)
    written = json.loads((trained / "exact.json").read_text())
    assert written["iteration"] == 2
    split = written["splits"]["test_id"]
    mean = sum(after.values()) / 6
    assert split["pass_at_k"]["1"]["value"] == pytest.approx(mean, rel=1e-4)
    assert split["pass_at_k"]["1"]["low"] <= mean <= split["pass_at_k"]["1"]["high"]
    for k in (100, 1000, 10_000):
        reach = [[1 - (1 - p) ** k >= 0.5 for p in side.values()] for side in (untrained, after)]
        assert (
            split["support_gained"][str(k)]
            == sum(now and not then for then, now in zip(*reach, strict=True)) / 6
        )
        assert (
            split["support_lost"][str(k)]
            == sum(then and not now for then, now in zip(*reach, strict=True)) / 6
        )


def test_it_is_logged_at_every_validation_and_in_the_test(trained):
    rows = pd.read_csv(trained / "metrics.csv")
    assert rows["exact_pass@k/test_id/1000"].notna().sum() == 3
    assert rows["support_lost/test_id/1"].notna().sum() == 3
    assert (trained / "evaluations" / "exact-000001.json").exists()


def test_a_resumed_run_compares_with_the_policy_that_the_first_started_from(
    trained, directions, small_run, tmp_path
):
    run = small_run(tmp_path, "iterations=3")
    checkpoint = sorted((trained / "checkpoints").iterdir())[0]
    train(run.module, run.datamodule, run.trainer, resume=checkpoint, test=False)
    callback = next(c for c in run.trainer.callbacks if isinstance(c, ExactPassAtK))
    assert callback.untrained["test_id"] == pytest.approx(success_of(directions), rel=1e-4)


def test_evaluation_without_sampling(trained, small_run, tmp_path, monkeypatch, capsys):
    arguments = [*small_run.overrides, f"model.path={trained / 'model'}", "exact=true"]
    arguments = [
        argument for argument in arguments if "callbacks" not in argument and "progress" not in argument
    ]
    success = sorted(read_success(trained)["test_id"].values())
    between = (success[3] + success[4]) / 2
    arguments.append(f"exact_evaluator.taus=[{between},1]")
    monkeypatch.setattr("sys.argv", ["tagrpo-eval", *arguments, f"hydra.run.dir={tmp_path}"])
    main()
    assert read_success(tmp_path)["test_id"] == pytest.approx(read_success(trained)["test_id"], rel=1e-4)
    split = json.loads((tmp_path / "exact.json").read_text())["splits"]["test_id"]
    assert "support_gained" not in split, "there is no untrained policy"
    said = capsys.readouterr().out
    assert "test_id" in said
    assert not (tmp_path / "test.json").exists()
    assert [x["value"] for x in split["cover_at_tau"].values()] == pytest.approx([2 / 6, 0])
    rows = [
        line.split("│")[1:-1]
        for line in said.split("Cover@τ, in percent")[1].splitlines()
        if "test_id" in line
    ]
    assert [[cell.strip() for cell in row] for row in rows] == [["test_id", "33.3", "0.0"]]
    assert "cover_at_tau" not in (trained / "exact.json").read_text()


def test_what_makes_it_inexact_is_refused_when_the_run_is_built():
    with pytest.raises(TypeError, match="EnumeratingVerifier.*correct_responses"):
        ExactPassAtK(FinalAnswerReward(), SamplingConfig())
    for change in ({"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}):
        with pytest.raises(ValueError, match="top_p=1.*top_k=0"):
            ExactPassAtK(ShortestPathReward(), SamplingConfig(**change))
    with pytest.raises(ValueError, match="taus between 0 and 1"):
        ExactPassAtK(ShortestPathReward(), SamplingConfig(), taus=[-0.5])
