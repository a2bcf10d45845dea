"""Diagnostic callbacks inside a real trainer, with a foreign module and hand-made rollouts."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tagrpo.callbacks import (
    AnswerDiversityMonitor,
    EmbeddingDiversityMonitor,
    RephrasingSuccessMonitor,
    RolloutRecorder,
    ThroughputMonitor,
    ZeroGradientMonitor,
    sentence_encoder,
    throughput,
)
from tagrpo.callbacks.shared import batch_means
from tagrpo.callbacks.zero_gradient import question_percentages, uniform_percentages
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.types import RewardGroups

# Question 0: original right, rephrasing wrong (rescued). 1: all right. 2: all wrong. 3: mixed everywhere.
REWARDS = [
    [[1.0, 1.0], [0.0, 0.0]],
    [[1.0, 1.0], [1.0, 1.0]],
    [[0.0, 0.0], [0.0, 0.0]],
    [[1.0, 0.0], [0.0, 1.0]],
]


class Foreign(LightningModule):
    """A module of another project: it returns the documented fields and knows nothing else of this one."""

    automatic_optimization = False

    def __init__(self, **more):
        super().__init__()
        self.more = more

    def training_step(self, batch, batch_idx):
        rollouts = batch.rollouts
        groups = RewardGroups(
            rewards=rollouts.rewards,
            correct=rollouts.correct,
            question=rollouts.question,
            prompt=rollouts.prompt,
        )
        return {
            "loss": torch.zeros(()),
            "advantages": GroupAdvantage("question")(groups),
            "seconds_update": 0.25,
            **self.more,
        }

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def configure_optimizers(self):
        return None


class Attach(Callback):
    """Attaches the rollouts after Lightning has moved the batch, as the rollout callback does."""

    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.rollouts = self.batches[batch_idx].rollouts

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        batch.rollouts = self.batches[batch_idx].rollouts


def make_trainer(tmp_path, batches, *callbacks, **options):
    return Trainer(
        accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, callbacks=[*callbacks, Attach(batches)],
        log_every_n_steps=1, logger=CSVLogger(tmp_path, name="", version=""),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, **options,
    )  # fmt: skip


def loader(batches):
    return DataLoader([replace(batch, rollouts=None) for batch in batches], batch_size=None)


def fit(tmp_path, batches, *callbacks, **more):
    make_trainer(tmp_path, batches, *callbacks).fit(Foreign(**more), loader(batches))
    return pd.read_csv(tmp_path / "metrics.csv")


def test_as_many_responses_to_rephrasings_as_to_the_original_are_compared(make_batch):
    # Of the four responses to the rephrasings three are right: 3 of 6 pairs are equal, and no pair of the second.
    batch = make_batch([[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 0.5], [0.2, 1.0]]])
    found = question_percentages(batch.rollouts, {"advantages": torch.ones(12)})
    assert found["uniform_reward/rephrasings_matched"].tolist() == pytest.approx([50, 0])
    assert found["uniform_reward/rephrasings"].tolist() == [0, 0]


def test_zero_gradient_shares_are_counted_by_hand(tmp_path, make_batch):
    (row,) = fit(tmp_path, [make_batch(REWARDS)], ZeroGradientMonitor()).to_dict("records")
    expected = {
        "zero_gradient/percentage": 50,  # questions 1 and 2
        "uniform_reward/original": 75,  # 0, 1, 2
        "uniform_reward/rephrasings": 75,
        "uniform_reward/rephrasings_matched": 75,
        "uniform_reward/pool": 50,
        "uniform_reward/rescued": 25,  # question 0
    }
    assert {name: row[name] for name in expected} == expected


def test_what_the_step_returns_says_why_a_gradient_is_missing(tmp_path, make_batch):
    batch = make_batch(REWARDS)
    rows = len(batch.rollouts)
    # Of question 3, with two right and two wrong responses, the right ones are masked and the wrong ones clipped.
    masked = torch.tensor([False] * 12 + [True, False, False, True])
    clipped = torch.tensor([float("nan")] * 12 + [0.0, 1.0, 1.0, 0.0])
    assert rows == 16
    (row,) = fit(tmp_path, [batch], ZeroGradientMonitor(), masked=masked, clipped=clipped).to_dict("records")
    shares = {
        name: row[f"zero_gradient/{name}"]
        for name in ("all_right", "all_wrong", "clipped", "without_gradient")
    }
    assert shares == {"all_right": 25, "all_wrong": 25, "clipped": 25, "without_gradient": 75}
    assert row["zero_gradient/percentage"] == 50, "their advantages are not zero"
    (plain,) = fit(tmp_path / "plain", [batch], ZeroGradientMonitor()).to_dict("records")
    assert plain["zero_gradient/clipped"] == 0


def test_a_step_without_advantages_is_told_what_to_return(tmp_path, make_batch):
    with pytest.raises(TypeError, match="training_step.*`advantages`"):
        ZeroGradientMonitor().on_train_batch_end(None, None, {"loss": 0}, make_batch(REWARDS), 0)


def test_rephrasings_are_told_apart_by_hand(tmp_path, make_batch):
    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    kl = torch.where(rollouts.rephrasing == 1, 0.5, 0.25)
    found = fit(tmp_path, [batch], RephrasingSuccessMonitor(), kl=kl).to_dict("records")[0]
    assert found["rephrasing/0/correct"] == 5 / 8
    assert found["rephrasing/1/correct"] == 3 / 8
    assert "template/plain/correct" not in found, "there is but one"
    assert (found["rephrasing/0/kl"], found["rephrasing/1/kl"]) == (0.25, 0.5)
    # var(p̂) is ½ for question 0 and 0 for the others; the noise of question 3 is ¼ / 1 per prompt.
    assert found["rephrasing/difficulty_variance"] == pytest.approx((0.5 - 0.25) / 4)


def test_templates_are_told_apart_where_there_are_several(tmp_path, make_batch):
    batch = make_batch([[[1.0, 0.0], [1.0, 1.0]]])
    prompts = [batch.prompts[0], batch.prompts[1]._replace(template="boxed")]
    batch = replace(batch, rollouts=replace(batch.rollouts, prompts=prompts))
    (found,) = fit(tmp_path, [batch], RephrasingSuccessMonitor()).to_dict("records")
    assert (found["template/plain/correct"], found["template/boxed/correct"]) == (0.5, 1)


def test_kinds_are_told_apart_where_questions_name_them(tmp_path, make_batch):
    batch = make_batch([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]])
    kinds = ("original", "hint", "harder", "original", "harder", "hint")
    prompts = [prompt._replace(kind=kind) for prompt, kind in zip(batch.prompts, kinds, strict=True)]
    named = replace(batch, rollouts=replace(batch.rollouts, prompts=prompts))
    (found,) = fit(tmp_path, [named], RephrasingSuccessMonitor()).to_dict("records")
    rates = {kind: found[f"kind/{kind}/correct"] for kind in ("original", "hint", "harder")}
    assert rates == {"original": 0.5, "hint": 3 / 4, "harder": 0}
    assert not [
        name
        for name in fit(tmp_path / "none", [batch], RephrasingSuccessMonitor())
        if name.startswith("kind/")
    ]


def test_variety_of_answers_by_hand(tmp_path, make_batch):
    # Answers cycle 0 1 2 0 1 2 …; two questions of four responses: right, wrong, wrong, wrong.
    batch = make_batch([[[1.0, 0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0, 0.0]]])
    (row,) = fit(tmp_path, [batch], AnswerDiversityMonitor()).to_dict("records")
    # Question 0: 0 | 1 2 0, question 1: 1 | 2 0 1.
    assert row["answer_diversity/distinct_wrong"] == 3
    assert row["answer_diversity/distinct_wrong_share"] == 1
    assert row["answer_diversity/entropy"] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))


def test_the_standard_deviation_of_rewards_is_that_of_numpy(tmp_path, make_batch):
    rewards = [[[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]], [[0.25, 1.0, 1.0]], [[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]]
    (row,) = fit(tmp_path, [make_batch(rewards)], ZeroGradientMonitor()).to_dict("records")
    of_prompts = [np.std(prompt, ddof=1) for question in rewards for prompt in question]
    of_questions = [np.std(np.concatenate(question), ddof=1) for question in rewards]
    assert row["reward_std/prompt"] == pytest.approx(np.mean(of_prompts), rel=1e-6)
    assert row["reward_std/question"] == pytest.approx(np.mean(of_questions), rel=1e-6)


def test_the_percentage_is_that_of_all_means_to_the_bit(tmp_path, make_batch):
    """The torchmetrics class of the percentage gives what a mean by name gives."""
    batch = make_batch(REWARDS + REWARDS[:3])
    (row,) = fit(tmp_path, [batch], ZeroGradientMonitor()).to_dict("records")
    outputs = {"advantages": GroupAdvantage("question")(RewardGroups(
        rewards=batch.rollouts.rewards, correct=batch.rollouts.correct, question=batch.rollouts.question,
        prompt=batch.rollouts.prompt))}  # fmt: skip
    means = batch_means(question_percentages(batch.rollouts, outputs))
    assert row["zero_gradient/percentage"] == np.float32(means["zero_gradient/percentage"])


def test_questions_without_rephrasings_do_not_count_as_uniform_rephrasings(tmp_path, make_batch):
    batch = make_batch([[[1.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]]])
    (row,) = fit(tmp_path, [batch], ZeroGradientMonitor()).to_dict("records")
    assert row["uniform_reward/rephrasings"] == 0
    assert row["uniform_reward/original"] == 50
    without = fit(tmp_path / "none", [make_batch([[[1.0, 0.0]]])], ZeroGradientMonitor())
    assert "uniform_reward/rephrasings" not in without


def test_embedding_distances_are_logged_and_written_per_question(tmp_path, make_batch):
    directions = {"answer 0": [1.0, 0.0], "answer 1": [0.0, 1.0], "answer 2": [-1.0, 0.0]}
    monitor = EmbeddingDiversityMonitor(
        lambda: lambda texts: torch.tensor([directions[text] for text in texts])
    )
    # Texts cycle 0 1 2 0: the original's pair is orthogonal, the rephrasing's (2, 0) opposite.
    metrics = fit(tmp_path, [make_batch([[[1.0, 0.0], [1.0, 0.0]]])], monitor)
    assert metrics["embedding_distance/original"][0] == pytest.approx(1)
    assert metrics["embedding_distance/rephrasings"][0] == pytest.approx(2)
    # Pairs of 0 1 2 0: 1, 2, 0, 1, 1, 2.
    assert metrics["embedding_distance/pool"][0] == pytest.approx(7 / 6)
    rows = pd.read_csv(tmp_path / "embedding_diversity.csv")
    assert rows["pool"].tolist() == ["original", "rephrasings", "pool"]
    assert rows["responses"].tolist() == [2, 2, 4]
    assert rows["question"].tolist() == ["q0"] * 3


def test_a_text_that_comes_twice_is_embedded_once(make_batch):
    seen = []

    def encode(texts):
        seen.extend(texts)
        return torch.eye(3)[[int(text[-1]) for text in texts]]

    rows = EmbeddingDiversityMonitor(lambda: encode).distances(make_batch([[[1.0, 0.0, 1.0, 0.0]]]), 0)
    assert sorted(seen) == ["answer 0", "answer 1", "answer 2"]
    assert rows[0]["distance"] == pytest.approx(5 / 6), "of the pairs of 0 1 2 0 only one has no distance"


def test_sampling_questions_leaves_the_mean_distance_unbiased(make_batch):
    batch = make_batch([[[1.0, 0.0, 1.0, 0.0]]] * 6)
    embeddings = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    object.__setattr__(batch.rollouts, "text", [str(i) for i in range(24)])

    def measure(max_questions, iteration):
        monitor = EmbeddingDiversityMonitor(
            lambda: lambda texts: embeddings[[int(t) for t in texts]], max_questions=max_questions
        )
        rows = monitor.distances(batch, iteration)
        return [row["distance"] for row in rows if row["pool"] == "original"]

    everything = measure(None, 0)
    sampled = torch.tensor([measure(2, iteration) for iteration in range(600)])
    assert sampled.shape == (600, 2)
    error = sampled.mean(1).std() / math.sqrt(600)
    assert abs(float(sampled.mean()) - sum(everything) / 6) < 4 * float(error)


def test_throughput_adds_up_to_the_iteration(tmp_path, make_batch):
    metrics = fit(tmp_path, [make_batch(REWARDS)] * 3, ThroughputMonitor())
    rows = metrics.dropna(subset=["seconds/iteration"])
    assert rows["step"].tolist() == [1, 2, 3], (
        "an iteration is known when the next one starts, or training ends"
    )
    phases = [f"seconds/{name}" for name in ("sync", "generate", "score", "update", "other")]
    torch.testing.assert_close(rows[phases].sum(axis=1).tolist(), rows["seconds/iteration"].tolist())
    assert rows["seconds/update"].tolist() == [0.25] * 3


def test_the_figures_of_the_last_iteration_are_in_the_checkpoint_and_logged_once_by_what_follows():
    logged, rows = [], []
    loggers = [SimpleNamespace(log_metrics=lambda figures, step: rows.append((figures, step)))]
    trainer = SimpleNamespace(
        loggers=loggers, world_size=1, strategy=SimpleNamespace(root_device=torch.device("meta")),
        fit_loop=SimpleNamespace(total_batch_idx=4),
    )  # fmt: skip
    module = SimpleNamespace(
        trainer=SimpleNamespace(callbacks=[]), log_dict=lambda values, **_: logged.append(dict(values))
    )
    rollouts = SimpleNamespace(seconds={"generate": 0.5}, lengths=torch.tensor([3, 4]))
    monitor = ThroughputMonitor()
    monitor.on_train_start(trainer, module)
    assert monitor.state_dict() == {}
    monitor.on_train_batch_start(trainer, module, None, 0)
    monitor.measure(trainer, SimpleNamespace(rollouts=rollouts), {"seconds_update": 0.25})
    state = monitor.state_dict()
    assert (state["figures"]["seconds/generate"], state["figures"]["seconds/update"]) == (0.5, 0.25)
    assert all(type(figure) is float for figure in state["figures"].values()), (
        "checkpoints hold no other numbers"
    )

    extended, finished = ThroughputMonitor(), ThroughputMonitor()
    for resumed in (extended, finished):
        resumed.load_state_dict(state)
    extended.on_train_start(trainer, module)
    extended.on_train_batch_start(trainer, module, None, 0)
    assert logged == [state["figures"]]
    extended.on_fit_end(trainer, module)
    assert rows == [], "not twice"
    finished.on_fit_end(trainer, module)  # nothing was left to train
    finished.on_fit_end(trainer, module)
    assert rows == [(state["figures"], 5)]


def test_the_share_of_the_peak_is_of_the_useful_work_and_missing_where_no_peak_is_known(
    tmp_path, make_batch, monkeypatch
):
    for peak, expected in ((4000.0, 0.3), (None, None)):
        monkeypatch.setattr(throughput, "peak_rate", lambda _, peak=peak: peak)
        batches, folder = [make_batch(REWARDS)] * 2, tmp_path / str(peak)
        trainer = make_trainer(folder, batches, ThroughputMonitor())
        trainer.fit(Foreign(flop_update=300.0), loader(batches))  # in 0.25 seconds
        rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["seconds/iteration"])
        assert rows.get("throughput/mfu", pd.Series([None] * 2)).tolist() == pytest.approx([expected] * 2)


def test_the_peak_is_that_of_the_product_a_cpu_has_just_made_and_that_stated_of_a_gpu(monkeypatch):
    seconds = iter([0.0, 4.0, 10.0, 12.0, 20.0, 23.0, 30.0, 35.0])
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(seconds))
    assert throughput.peak_rate(torch.device("cpu")) == 2 * 1024**3 / 2.0, (
        "the fastest of four took two seconds"
    )
    names = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H100 NVL": 835e12,
        "NVIDIA H200 NVL": 835e12,
        "NVIDIA A100-SXM4-40GB": 312e12,
        "Tesla T4": None,
    }
    for name, rate in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert throughput.peak_rate(torch.device("cuda", 0)) == rate


def test_validation_is_a_phase_of_its_own(tmp_path, make_batch):
    batches = [make_batch(REWARDS)] * 3

    class Slow(Callback):
        def on_validation_epoch_start(self, trainer, pl_module):
            time.sleep(0.2)

    trainer = make_trainer(tmp_path, batches, ThroughputMonitor(), Slow(), val_check_interval=1)
    trainer.fit(Foreign(), loader(batches), loader(batches[:1]))
    rows = pd.read_csv(tmp_path / "metrics.csv").dropna(subset=["seconds/iteration"])
    assert (rows["seconds/validate"] >= 0.2).all()
    assert (rows["seconds/other"] < 0.2).all()


def test_the_recorder_writes_every_response(tmp_path, make_batch):
    batches = [make_batch(REWARDS, seed=0), make_batch(REWARDS, seed=1)]
    make_trainer(tmp_path, batches, RolloutRecorder()).fit(Foreign(), loader(batches))
    first, second = (pd.read_parquet(path) for path in sorted((tmp_path / "rollouts").iterdir()))
    assert len(first) == len(second) == 16
    assert first["question"].tolist() == [f"q{i}" for i in range(4) for _ in range(4)]
    assert first["rephrasing"].tolist() == [0, 0, 1, 1] * 4
    assert first["reward"].tolist() == [
        r for question in REWARDS for rephrasing in question for r in rephrasing
    ]
    assert first["logprob"].tolist() == [-float(length) for length in first["length"]]
    assert first["advantage"][:4].tolist() == pytest.approx(
        [0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)], abs=1e-5
    )
    assert second["iteration"].unique().tolist() == [1]
    ids = [ids.tolist() for ids in batches[1].rollouts.token_ids]
    assert [list(row) for row in second["token_ids"]] == ids
    assert [len(row) for row in second["token_logprobs"]] == [len(row) for row in ids]
    assert first["prompt"].unique().tolist() == ["text"]
    answers = {group.id: list(group.answer) for group in batches[0].groups}
    assert [list(row) for row in first["reference"]] == [answers[question] for question in first["question"]]


def test_the_recorder_keeps_what_the_step_returns_and_can_leave_tokens_out(tmp_path, make_batch):
    batch = make_batch(REWARDS)
    score_logprob = torch.arange(16.0)
    make_trainer(tmp_path, [batch], RolloutRecorder(tokens=False)).fit(
        Foreign(score_logprob=score_logprob, masked=score_logprob > 3), loader([batch])
    )
    (path,) = (tmp_path / "rollouts").iterdir()
    frame = pd.read_parquet(path)
    assert frame["score_logprob"].tolist() == score_logprob.tolist()
    assert frame["masked"].sum() == 12
    assert not {"token_ids", "token_logprobs", "kl"} & set(frame)


def test_without_an_encoder_training_ends_before_anything_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sampled = []

    class Sampler(LightningModule):
        def training_step(self, batch, batch_idx):
            sampled.append(batch)

        def configure_optimizers(self):
            return None

    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[EmbeddingDiversityMonitor(partial(sentence_encoder, str(tmp_path / "none")))],
    )
    with pytest.raises(OSError, match=r"sentence_encoder\(model='package'\)"):
        trainer.fit(Sampler(), DataLoader(range(2)))
    assert sampled == []


def test_an_encoder_is_put_on_the_gpu_that_its_process_trains_on(monkeypatch):
    """The library alone takes the device of `LOCAL_RANK`, or where that is not set of the rank over all nodes."""
    devices = []
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = lambda name, device: devices.append(device)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    sentence_encoder("model")
    sentence_encoder("model", device="cpu")
    assert devices == ["cuda:3", "cpu"]


def test_a_question_without_an_original_has_no_rephrasings_of_the_same_number():
    rollouts = SimpleNamespace(
        question=torch.tensor([0, 0, 0, 0, 1, 1]),
        rephrasing=torch.tensor([0, 0, 1, 1, 1, 1]),
        rewards=torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]),
    )
    (first, second) = uniform_percentages(rollouts)["uniform_reward/rephrasings_matched"].tolist()
    assert first == 0
    assert math.isnan(second)
