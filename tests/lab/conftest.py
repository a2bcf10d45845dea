"""A policy of the shortest-path task, and runs from their configuration."""

from __future__ import annotations

import random
from itertools import islice

import pytest
import torch

from examples.starters.parts import SupervisedExample, build_answer_tokenizer, build_model
from examples.starters.shortest_path import shortest_path_vocabulary
from examples.starters.warmstart import batches, fit, problem_sequence
from tagrpo.lab.tasks.shortest_path.source import FAMILIES, sample_problem
from tagrpo.settings.config import build, compose_run

SMALL = [
    "data=shortest_path", "data.train.regime=hard", "iterations=2", "logger=csv", "data.train.size=16", "seed=3",
    "callbacks=[checkpoint,exact_pass_at_k]", "callbacks.checkpoint.every=1", "+trainer.enable_progress_bar=false",
    "data.batch_size=4", "data.samples_per_prompt=4", "data.evaluation_batch_size=4", "data.evaluation_samples=2",
    "data.evaluation.test_id.size=6", "~data.evaluation.test_phrasing", "~data.evaluation.test_size",
    "optimizer.lr=0.01", "trainer.val_check_interval=1", "rollout.sampling.max_new_tokens=8", "loss.entropy_coef=0.1",
]  # fmt: skip


@pytest.fixture(scope="session")
def directions(tmp_path_factory):
    """A policy that knows paths of one or two steps, and a little where they lead."""
    path = tmp_path_factory.mktemp("policy")
    tokenizer = build_answer_tokenizer(shortest_path_vocabulary())
    torch.manual_seed(0)
    model, rng = build_model(tokenizer), random.Random(0)

    def short(rng):
        problem = sample_problem(rng, range(1, 3))
        return SupervisedExample(FAMILIES["plain"].tell(problem, rng), rng.choice(problem.answers), "plain")

    fit(
        model,
        islice(batches(lambda: problem_sequence(tokenizer, rng, short), 16, rng), 150),
        150,
        learning_rate=2e-3,
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def small_run(directions):
    """Builds a small run in a directory, with overrides."""

    def built(directory, *overrides):
        return build(compose_run(directory, [*SMALL, f"model.path={directions}", *overrides]))

    built.overrides = SMALL
    return built
