"""The expected share of questions without gradient: by hand, and against what a run finds."""

from __future__ import annotations

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

from tagrpo.cli.train import train
from tagrpo.lab.exact import BatchSuccess
from tagrpo.lab.exact_zero_gradient import ExactZeroGradient
from tagrpo.lab.tasks.shortest_path import ShortestPathReward
from tagrpo.lab.tasks.shortest_path import source as shortest_path
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rewards import FinalAnswerReward
from tagrpo.types import SamplingConfig

ITERATIONS, QUESTIONS, PROMPTS, SAMPLES = 20, 4, 3, 4
DATA = ["data.num_rephrasings=2", "data.train.size=80"]


@pytest.fixture(scope="module", autouse=True)
def short_paths():
    """The policy knows no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shortest_path.LENGTHS, "hard", range(1, 3))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_run):
    directory = tmp_path_factory.mktemp("run")
    run = small_run(
        directory, *DATA, f"iterations={ITERATIONS}",
        "callbacks=[checkpoint,zero_gradient,exact_zero_gradient]", "optimizer.lr=0.001", "trainer.limit_val_batches=0",
    )  # fmt: skip
    train(run.module, run.datamodule, run.trainer, test=False)
    return run


@pytest.fixture(scope="module")
def rows(run):
    return pd.read_csv(run.directory / "metrics.csv")


def test_it_is_the_sum_over_all_right_and_all_wrong_of_every_question(rows, small_run, directions, tmp_path):
    datamodule = small_run(tmp_path, *DATA).datamodule
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    success = BatchSuccess(ShortestPathReward(), datamodule.tokenizer, [0], SamplingConfig(max_new_tokens=8))
    assert datamodule.tokenizer.eos_token_id == 0
    scorer = Scorer(CausalPolicy(AutoModelForCausalLM.from_pretrained(directions)))
    p = success(scorer, batch).view(QUESTIONS, PROMPTS)
    assert p.std(1).max() > 1e-4  # prompts of unequal difficulty
    pool = 100 * ((p**SAMPLES).prod(1) + ((1 - p) ** SAMPLES).prod(1)).mean()
    original = 100 * (p[:, 0] ** SAMPLES + (1 - p[:, 0]) ** SAMPLES).mean()
    assert rows["uniform_reward/pool_expected"][0] == pytest.approx(pool.item(), rel=1e-4)
    assert rows["uniform_reward/original_expected"][0] == pytest.approx(original.item(), rel=1e-4)


@pytest.mark.parametrize("pool", ["original", "pool"])
def test_over_a_run_as_many_questions_have_no_gradient_as_expected(rows, pool):
    expected, measured = (rows[f"uniform_reward/{pool}{suffix}"] / 100 for suffix in ("_expected", ""))
    assert len(expected) == ITERATIONS
    # The variance of a sum of unequal Bernoulli variables is largest where they are equal.
    deviation = (QUESTIONS * expected * (1 - expected)).sum() ** 0.5
    assert deviation > 1
    assert abs((QUESTIONS * (measured - expected)).sum()) < 3.9 * deviation
    assert expected.iloc[-1] != pytest.approx(expected.iloc[0], abs=1e-3)  # the policy has changed


def test_what_makes_it_inexact_is_refused_when_the_run_is_built():
    with pytest.raises(TypeError, match="has no correct_responses"):
        ExactZeroGradient(FinalAnswerReward(), SamplingConfig())
    with pytest.raises(ValueError, match="top_k=0"):
        ExactZeroGradient(ShortestPathReward(), SamplingConfig(top_k=3))
