"""The examples of docs/extending.md, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from tagrpo.types import LossInputs, Request, RewardGroups, SamplingConfig

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```(python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
(COMMAND,) = re.findall(r"```bash\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for _, name, content in BLOCKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("a") as file:
            file.write(content)
    return folder


@pytest.fixture(scope="module")
def parts():
    """The classes of the Python blocks."""
    namespace: dict[str, object] = {}
    exec("".join(content for kind, _, content in BLOCKS if kind == "python"), namespace)
    return namespace


def test_no_example_is_longer_than_twenty_lines():
    assert len(BLOCKS) == 11
    for _, name, content in BLOCKS:
        assert len(content.splitlines()) <= 20, name


def test_all_of_them_train_together(project):
    small = [
        "iterations=2", "test=false", "logger=csv", "export=false", "threads=1", f"hydra.run.dir={project / 'run'}",
        "trainer.limit_val_batches=0", "data.samples_per_prompt=2", "~callbacks.embedding_diversity",
    ]  # fmt: skip
    program, *arguments = shlex.split(COMMAND)
    assert program == "tagrpo-train"
    command = [sys.executable, "-m", "tagrpo.cli.train", *arguments, *small]
    environment = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = pd.read_csv(project / "run" / "metrics.csv").dropna(subset=["longest/tokens"])
    assert rows["longest/tokens"].tolist() == [40.0, 40.0]
    assert rows["rollout/truncated"].tolist() == [1.0, 1.0]
    responses = pd.read_parquet(project / "run" / "rollouts")
    assert set(responses["question"]) <= {f"{a}+2" for a in range(1, 9)}
    assert len(responses) == 2 * 4 * 2  # iterations, questions and samples: the experiment has no rephrasings


def test_the_strategy_divides_by_the_mean(parts):
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    question = torch.tensor([0, 0, 0, 0, 1, 1])
    groups = RewardGroups(rewards=rewards, correct=rewards > 0, question=question, prompt=question)
    assert parts["MaxRL"]()(groups).tolist() == [3.0, -1.0, -1.0, -1.0, 0.0, 0.0]  # (1 − ¼) / ¼ and (0 − ¼) / ¼


def test_the_loss_is_a_mean_over_tokens(parts):
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs, old_logprobs=logprobs.detach(), reference_logprobs=None, entropy=None,
        advantages=torch.tensor([1.0, -2.0]), response=torch.tensor([0, 0, 1]), lengths=torch.tensor([2, 1]),
        num_responses=2, num_tokens=3,
    )  # fmt: skip
    assert parts["Reinforce"]()(inputs).loss.item() == pytest.approx((1 + 2 - 8) / 3)


def test_the_engine_draws_by_its_seed(parts):
    engine = parts["UniformEngine"](vocabulary=64)
    first, again, other = (
        engine.generate(Request([torch.tensor([5])], [2], SamplingConfig(max_new_tokens=3), seed)) for seed in (1, 1, 2)
    )
    tokens = [[completion.token_ids.tolist() for completion in drawn[0]] for drawn in (first, again, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert float(first[0][0].logprobs[0]) == pytest.approx(-4.1588830)  # ln 64
