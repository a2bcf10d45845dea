"""Synthetic run directories with known numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """Write `<root>/<method>/seed<k>/` from the number of correct responses (of n) of each question."""

    def write(root: Path, method: str, seed: int, correct: list[int], n: int = 8, zero: float = 50.0) -> Path:
        path = root / method / f"seed{seed}"
        path.mkdir(parents=True)
        questions = [{"id": f"q{i:03d}", "n": n, "correct": c} for i, c in enumerate(correct)]
        curve = {k: {"value": 0.0, "low": 0.0, "high": 0.0} for k in (1, 2, 4, 8) if k <= n}
        split = {
            "num_questions": len(questions), "pass_at_k": curve,
            "majority": 0.5, "wrong_answers": 1.0, "questions": questions,
        }  # fmt: skip
        (path / "test.json").write_text(json.dumps({"stage": "test", "global_step": 4, "splits": {"test_id": split}}))
        ledger = {"prompts": 8, "rollouts": 64, "tokens": 1000, "updates": 4, "iterations": 2}
        (path / "ledger.json").write_text(json.dumps(ledger))
        rows = {
            "rollout/reward": [0.25, 0.5, None], "zero_gradient/percentage": [zero, zero, None],
            "uniform_reward/original": [60.0, 40.0, None], "rollout/correct_original": [0.2, 0.3, None],
            "rollout/entropy": [0.3, 0.2, None],
            "train/grad_norm": [1.0, 2.0, None], "seconds/iteration": [None, 1.5, None],
        }  # fmt: skip
        pd.DataFrame(rows).to_csv(path / "metrics.csv", index=False)
        (path / "command.txt").write_text(f"python -m tagrpo.train experiment={method} seed={seed}\n")
        diversity = [(i, f"q{i}", pool, 8, 0.1 * i + 0.1) for i in range(6) for pool in ("original", "neighbours")]
        frame = pd.DataFrame(diversity, columns=["iteration", "question", "pool", "responses", "distance"])
        frame.to_csv(path / "embedding_diversity.csv", index=False)
        return path

    return write
