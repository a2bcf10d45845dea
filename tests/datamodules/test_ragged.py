"""Questions with different numbers of rephrasings, from a file to advantages."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tagrpo import types
from tagrpo.datamodules.lightning.questions import QuestionDataModule
from tagrpo.datamodules.sources.table import TableSource
from tagrpo.datamodules.templates import PlainTemplate
from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.modules.experience import Experience
from tagrpo.rewards import FinalAnswerReward
from tagrpo.rollouts import RolloutPipeline, SamplingConfig
from tagrpo.starter import starter_path
from tagrpo.types import Completion, RewardGroups

pytestmark = pytest.mark.shell

REPHRASINGS = (0, 3, 1, 5, 2)
SAMPLES = 4


@pytest.fixture
def path(tmp_path):
    rows = [
        {"id": f"q{row}", "question": f"Compute {row} + 1.", "answer": row + 1,
         "rephrasings": [f"Compute {row} + 1, + {n} - {n}." for n in range(1, count + 1)]}
        for row, count in enumerate(REPHRASINGS)
    ]  # fmt: skip
    file = tmp_path / "ragged.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_datamodule(path, **options):
    options = {
        "train": TableSource(path), "evaluation": {}, "tokenizer": str(starter_path()),
        "template": PlainTemplate("{question} <sep>"), "batch_size": len(REPHRASINGS), "samples_per_prompt": SAMPLES,
        "num_rephrasings": None, "shuffle": False, "max_prompt_tokens": 64, **options,
    }  # fmt: skip
    return QuestionDataModule(**options)


class Engine(types.Engine):
    """Answers every prompt right or wrong as `right` says, in order."""

    def __init__(self, tokenizer, batch, right):
        self.tokenizer, self.batch, self.right = tokenizer, batch, iter(right)

    def sync(self, parameters):
        pass

    def generate(self, request, deliver=types.ignore):
        sampled = []
        for prompt, count in zip(self.batch.prompts, request.num_samples, strict=True):
            answer = self.batch.groups[prompt.question].answer[0]
            texts = [f"#### {answer if next(self.right) else 99}" for _ in range(count)]
            ids = [torch.tensor(self.tokenizer(text)["input_ids"]) for text in texts]
            sampled.append(
                [Completion(token_ids=i, logprobs=torch.zeros(len(i)), truncated=False) for i in ids]
            )
        return sampled


def rolled_out(datamodule, right):
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    engine = Engine(datamodule.tokenizer, batch, right)
    decode = datamodule.tokenizer.batch_decode
    pipeline = RolloutPipeline(lambda: engine, FinalAnswerReward(), decode, SamplingConfig(max_new_tokens=4))
    return pipeline.roll_out(batch, torch.nn.Linear(1, 1), 0).rollouts


def reward_groups(rollouts):
    return RewardGroups(
        rewards=rollouts.rewards, correct=rollouts.correct, question=rollouts.question, prompt=rollouts.prompt
    )


def test_each_pool_holds_all_responses_to_a_question_however_many_rephrasings_it_has(path):
    sizes = [(1 + count) * SAMPLES for count in REPHRASINGS]
    right = (np.random.default_rng(0).random(sum(sizes)) < 0.4).astype(float)
    right[:SAMPLES] = 0.0  # the question without rephrasings gives no gradient
    rollouts = rolled_out(make_datamodule(path), right)
    assert rollouts.correct.tolist() == right.astype(bool).tolist()
    pools = np.split(right, np.cumsum(sizes)[:-1])
    assert [int(n) for n in torch.bincount(rollouts.question)] == sizes
    pooled = np.concatenate([(pool - pool.mean()) / (pool.std(ddof=1) + 1e-6) for pool in pools])
    np.testing.assert_allclose(GroupAdvantage("question")(reward_groups(rollouts)), pooled, atol=1e-5)
    prompts = right.reshape(-1, SAMPLES)
    alone = (prompts - prompts.mean(1, keepdims=True)) / (prompts.std(1, ddof=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(GroupAdvantage("prompt")(reward_groups(rollouts)), alone.ravel(), atol=1e-5)
    # Every response of a question is scored under its original.
    experience = Experience(rollouts, "original")
    assert len(experience.prompts) == len(REPHRASINGS)
    assert torch.equal(experience.prompt, rollouts.question)


def test_pass_at_k_counts_each_pool_by_its_own_size(path):
    sizes = [(1 + count) * SAMPLES for count in REPHRASINGS]
    right = np.concatenate([[1.0] + [0.0] * (size - 1) for size in sizes])
    advantages = PassAtKAdvantage(k=2)(reward_groups(rolled_out(make_datamodule(path), right))).numpy()
    for size, pool in zip(sizes, np.split(advantages, np.cumsum(sizes)[:-1]), strict=True):
        # One of n right: a pair holds it with probability 2 / n.
        mean = 2 / size
        spread = np.sqrt(mean * (1 - mean))
        assert pool[0] == pytest.approx((1 - mean) / spread, rel=1e-5)
        # A wrong response is in a good pair when the right one is its partner: 1 / (n − 1).
        np.testing.assert_allclose(pool[1:], (1 / (size - 1) - mean) / spread, rtol=1e-4)


def test_fewer_rephrasings_than_wanted_are_used(path):
    used = make_datamodule(path, num_rephrasings=3)
    used.setup("fit")
    assert used.report["train"]["rephrasings"] == {0: 1, 1: 1, 2: 1, 3: 2}


@pytest.mark.parametrize("wanted", [2, None])
def test_a_source_without_any_rephrasing_would_train_another_method(tmp_path, wanted):
    file = tmp_path / "none.jsonl"
    file.write_text('{"question": "Compute 1 + 1.", "answer": 2}\n')
    with pytest.raises(ValueError, match="none has any"):
        make_datamodule(file, num_rephrasings=wanted, batch_size=1).setup("fit")
    make_datamodule(file, num_rephrasings=0, batch_size=1).setup("fit")
