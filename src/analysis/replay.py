"""Advantage strategies on rollouts that were saved: what another estimator would have learnt from the same responses.

A replay answers how many questions would have given a gradient, and how strong a one. It says nothing of where training
would have gone: the responses are those of the policy that was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import torch

from ..metrics.functional import zero_gradient_percentage
from ..modules.advantages.pools import Strategy
from ..types import RewardGroups

COLUMNS = ("iteration", "question", "variant", "template", "answer", "correct", "reward")
OPTIONAL = ("advantage", "entropy")


def read_rollouts(run: Path) -> pd.DataFrame:
    """The rollouts that `RolloutRecorder` wrote for a run, all ranks, one row per response, in order of iterations.

    Columns: `COLUMNS`, and of `OPTIONAL` those that all files have.

    Raises:
        FileNotFoundError: there are none.
        ValueError: a file can't be read, or lacks columns.
    """
    files = sorted((run / "rollouts").glob("*.parquet"))
    if not files:
        raise FileNotFoundError(
            f"Expected rollouts/*.parquet in {run}, but found none. Train with callbacks=[default,recorder]."
        )
    frames = []
    for file in files:
        try:
            found = pq.read_schema(file).names
        except (OSError, ValueError) as error:
            raise ValueError(f"Expected a Parquet file at {file}, but it can't be read: {error}. Delete it.") from error
        if missing := [name for name in COLUMNS if name not in found]:
            raise ValueError(f"Expected columns {', '.join(missing)} in {file}, but found {', '.join(found)}.")
        frames.append(pd.read_parquet(file, columns=[*COLUMNS, *(name for name in OPTIONAL if name in found)]))
    rows = pd.concat(frames, ignore_index=True, join="inner")
    return rows.sort_values("iteration", kind="stable", ignore_index=True)


def reward_groups(rows: pd.DataFrame, progress: float = 0.0) -> RewardGroups:
    """The responses of one iteration as a strategy sees them."""
    prompts = rows.groupby(["question", "variant", "template"], sort=False).ngroup()
    return RewardGroups(
        rewards=torch.tensor(rows["reward"].to_numpy(), dtype=torch.float32),
        correct=torch.tensor(rows["correct"].to_numpy(), dtype=torch.bool),
        question=torch.tensor(pd.factorize(rows["question"])[0]),
        prompt=torch.tensor(prompts.to_numpy()),
        entropy=torch.tensor(rows["entropy"].to_numpy(), dtype=torch.float32) if "entropy" in rows else None,
        answers=[None if pd.isna(answer) else str(answer) for answer in rows["answer"]],
        progress=progress,
    )


def replay(rollouts: pd.DataFrame, strategies: Mapping[str, Strategy]) -> pd.DataFrame:
    """Apply every strategy to every iteration.

    Args:
        rollouts: From `read_rollouts`; the last iteration counts as the end of training.
        strategies: Name → strategy.

    Returns:
        One row per strategy and iteration: `strategy, iteration, questions, zero_gradient` (% of questions whose
        advantages are all zero), `eta` (mean over questions of Σ |A| / responses: arXiv 2508.10751, Eq. 16, per
        response, so that pools of different sizes can be compared).

    Raises:
        ValueError: a strategy needs the policy's entropy, which was not saved.
    """
    needy = [name for name, strategy in strategies.items() if getattr(strategy, "needs_entropy", False)]
    if needy and ("entropy" not in rollouts or rollouts["entropy"].isna().any()):
        raise ValueError(
            f"Expected the policy's entropy for {', '.join(needy)}, but it was not saved: only runs whose strategy "
            "needs it compute it. Leave them out."
        )
    rows = []
    iterations = rollouts["iteration"].unique().tolist()
    for iteration in iterations:
        responses = rollouts[rollouts["iteration"] == iteration]
        groups = reward_groups(responses, progress=iteration / max(iterations[-1], 1))
        for name, strategy in strategies.items():
            advantages = strategy(groups)
            size = torch.bincount(groups.question)
            total = torch.zeros(len(size)).index_add_(0, groups.question, advantages.abs().float())
            rows.append(
                {
                    "strategy": name,
                    "iteration": iteration,
                    "questions": len(size),
                    "zero_gradient": float(zero_gradient_percentage(advantages, groups.question)),
                    "eta": float((total / size).mean()),
                }
            )
    return pd.DataFrame(rows)
