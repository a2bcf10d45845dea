"""Diagnostic callbacks inside a real trainer, with a foreign module and hand-made rollouts."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tagrpo.callbacks import (
    EmbeddingDiversityMonitor,
    PassAtKEvaluator,
    RolloutRecorder,
    ThroughputMonitor,
    ZeroGradientMonitor,
)
from tagrpo.callbacks.pass_at_k import summarise
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


def fit(tmp_path, batches, *callbacks):
    make_trainer(tmp_path, batches, *callbacks).fit(Foreign(), loader(batches))
    return pd.read_csv(tmp_path / "metrics.csv")


def test_zero_gradient_shares_are_counted_by_hand(tmp_path, make_batch):
    (row,) = fit(tmp_path, [make_batch(REWARDS)], ZeroGradientMonitor()).to_dict("records")
    expected = {
        "zero_gradient/percentage": 50,  # questions 1 and 2
        "uniform_reward/original": 75,  # 0, 1, 2
        "uniform_reward/neighbours": 75,
        "uniform_reward/pool": 50,
        "uniform_reward/pool_all_correct": 25,
        "uniform_reward/pool_all_wrong": 25,
        "uniform_reward/rescued": 25,  # question 0
    }
    assert {name: row[name] for name in expected} == expected


def test_questions_without_rephrasings_do_not_count_as_uniform_neighbours(tmp_path, make_batch):
    batch = make_batch([[[1.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]]])
    (row,) = fit(tmp_path, [batch], ZeroGradientMonitor()).to_dict("records")
    assert row["uniform_reward/neighbours"] == 0
    assert row["uniform_reward/original"] == 50
    without = fit(tmp_path / "none", [make_batch([[[1.0, 0.0]]])], ZeroGradientMonitor())
    assert "uniform_reward/neighbours" not in without


def test_embedding_distances_are_logged_and_written_per_question(tmp_path, make_batch):
    directions = {"answer 0": [1.0, 0.0], "answer 1": [0.0, 1.0], "answer 2": [-1.0, 0.0]}
    monitor = EmbeddingDiversityMonitor(lambda: lambda texts: torch.tensor([directions[text] for text in texts]))
    # Texts cycle 0 1 2 0: the original's pair is orthogonal, the rephrasing's (2, 0) opposite.
    metrics = fit(tmp_path, [make_batch([[[1.0, 0.0], [1.0, 0.0]]])], monitor)
    assert metrics["embedding_distance/original"][0] == pytest.approx(1)
    assert metrics["embedding_distance/neighbours"][0] == pytest.approx(2)
    # Pairs of 0 1 2 0: 1, 2, 0, 1, 1, 2.
    assert metrics["embedding_distance/pool"][0] == pytest.approx(7 / 6)
    rows = pd.read_csv(tmp_path / "embedding_diversity.csv")
    assert rows["pool"].tolist() == ["original", "neighbours", "pool"]
    assert rows["responses"].tolist() == [2, 2, 4]
    assert rows["question"].tolist() == ["q0"] * 3


def test_sampling_questions_leaves_the_mean_distance_unbiased(make_batch):
    batch = make_batch([[[1.0, 0.0, 1.0, 0.0]]] * 6)
    embeddings = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    object.__setattr__(batch.rollouts, "text", [str(i) for i in range(24)])

    def measure(max_questions, iteration):
        monitor = EmbeddingDiversityMonitor(
            lambda: lambda texts: embeddings[[int(t) for t in texts]], max_questions=max_questions
        )
        rows = monitor.measure(batch, iteration)
        return [row["distance"] for row in rows if row["pool"] == "original"]

    everything = measure(None, 0)
    sampled = torch.tensor([measure(2, iteration) for iteration in range(600)])
    assert sampled.shape == (600, 2)
    error = sampled.mean(1).std() / math.sqrt(600)
    assert abs(float(sampled.mean()) - sum(everything) / 6) < 4 * float(error)


def test_throughput_adds_up_to_the_iteration(tmp_path, make_batch):
    metrics = fit(tmp_path, [make_batch(REWARDS)] * 3, ThroughputMonitor())
    rows = metrics.dropna(subset=["seconds/iteration"])
    assert len(rows) == 2, "an iteration is known when the next one starts"
    phases = [f"seconds/{name}" for name in ("sync", "generate", "score", "update", "other")]
    torch.testing.assert_close(rows[phases].sum(axis=1).tolist(), rows["seconds/iteration"].tolist())
    assert rows["seconds/update"].tolist() == [0.25, 0.25]


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
    assert first["variant"].tolist() == [0, 0, 1, 1] * 4
    assert first["reward"].tolist() == [r for question in REWARDS for variant in question for r in variant]
    assert first["logprob"].tolist() == [-float(length) for length in first["length"]]
    assert first["advantage"][:4].tolist() == pytest.approx(
        [0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)], abs=1e-5
    )
    assert second["iteration"].unique().tolist() == [1]


def test_pass_at_k_is_reported_with_its_counts(tmp_path, make_batch):
    batches = [
        replace(make_batch([[[1.0, 0.0, 0.0, 0.0]], [[0.0] * 4]]), split="easy"),
        replace(make_batch([[[1.0, 1.0, 0.0, 0.0]]]), split="hard"),
    ]
    trainer = make_trainer(tmp_path, batches, PassAtKEvaluator(ks=(1, 2, 4, 8)))
    trainer.test(Foreign(), loader(batches), verbose=False)
    report = json.loads((tmp_path / "test.json").read_text())["splits"]
    values = {split: {k: x["value"] for k, x in s["pass_at_k"].items()} for split, s in report.items()}
    assert values["easy"] == {"1": 0.125, "2": 0.25, "4": 0.5}, "k=8 exceeds the four samples"
    assert values["hard"]["2"] == pytest.approx(5 / 6)
    assert [(q["id"], q["n"], q["correct"]) for q in report["easy"]["questions"]] == [
        ("q0", 4, 1),
        ("q1", 4, 0),
    ]
    assert trainer.callback_metrics["pass@k/hard/2"] == pytest.approx(5 / 6)


def test_majority_and_wrong_answers_are_means_over_questions():
    question = {"n": 2, "correct": 1, "distinct_wrong": 1, "majority_correct": True}
    summary = summarise({"b": question, "a": {**question, "distinct_wrong": 2, "majority_correct": False}}, (1,))
    assert (summary["majority"], summary["wrong_answers"]) == (0.5, 1.5)
    assert [row["id"] for row in summary["questions"]] == ["a", "b"]
