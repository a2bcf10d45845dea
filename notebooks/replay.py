"""Advantage strategies on recorded rollouts: which gradients another strategy would have had from the same responses.

A replay does not tell where training would have led: the responses are those of the policy that was trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch

from tagrpo.metrics.functional import group_index
from tagrpo.types import AdvantageStrategy, RewardGroups, require


def reward_groups(rows: pd.DataFrame, progress: float = 0.0) -> RewardGroups:
    """The responses of one iteration as a strategy sees them."""
    prompts = rows.groupby(["question", "rephrasing", "template"], sort=False).ngroup()
    return RewardGroups(
        rewards=torch.tensor(rows["reward"].to_numpy(), dtype=torch.float32),
        correct=torch.tensor(rows["correct"].to_numpy(), dtype=torch.bool),
        question=torch.tensor(pd.factorize(rows["question"])[0]),
        prompt=torch.tensor(prompts.to_numpy()),
        entropy=_column(rows, "entropy", torch.float32),
        logprob=_column(rows, "score_logprob", torch.float32),
        lengths=_column(rows, "length", torch.long),
        answers=[None if pd.isna(answer) else str(answer) for answer in rows["answer"]],
        progress=progress,
    )


def _column(rows: pd.DataFrame, name: str, dtype: torch.dtype) -> torch.Tensor | None:
    return torch.tensor(rows[name].to_numpy(), dtype=dtype) if name in rows else None


def replay(rollouts: pd.DataFrame, strategies: Mapping[str, AdvantageStrategy]) -> pd.DataFrame:
    """Apply every strategy to every iteration of the recorded rollouts; the last recorded one ends training.

    Returns:
        One row per strategy and iteration: `strategy, iteration, questions`;
        `zero_gradient`: percentage of questions whose advantages are all zero;
        `eta`: mean over questions of Σ |A| / responses (arXiv 2508.10751, Eq. 16, per response, so that pools of
        different sizes can be compared);
        `effective_responses`: effective sample size of the weights |A| as a share of the responses: 1 where all
        responses count equally, small where a few outweigh the rest, 0 where all advantages are zero;
        `positive`: share of Σ |A| on responses with a positive advantage; NaN where all advantages are zero;
        `hard`: share of Σ |A| on questions with an accuracy below one half; NaN likewise.

    Raises:
        TypeError: one of them is no `AdvantageStrategy`.
        ValueError: a strategy needs the policy's entropy, which was not saved.
    """
    for name, strategy in strategies.items():
        require(strategy, AdvantageStrategy, f"strategies[{name!r}]")
        for column, needed in (
            ("entropy", strategy.needs_entropy),
            ("score_logprob", strategy.needs_logprobs),
        ):
            if needed and (column not in rollouts or rollouts[column].isna().any()):
                raise ValueError(
                    f"Expected the policy's {column} for {name}, but it was not saved: only runs whose strategy needs "
                    "it compute it for all responses. Leave it out."
                )
    found = []
    last = max(rollouts["iteration"].iloc[-1], 1)
    for iteration, rows in rollouts.groupby("iteration", sort=False):
        groups = reward_groups(rows, progress=iteration / last)
        for name, strategy in strategies.items():
            found.append({"strategy": name, "iteration": iteration, **_weights(strategy(groups), groups)})
    return pd.DataFrame(found)


def _weights(advantages: torch.Tensor, groups: RewardGroups) -> dict[str, float]:
    index, questions = group_index(groups.question)
    size = torch.bincount(index)
    strength = torch.bincount(index, weights=advantages.abs().double())  # η, arXiv 2508.10751, Eq. 16
    total = float(strength.sum())
    hard = torch.bincount(index, weights=groups.correct.double()) / size < 0.5
    squares = float(advantages.double().square().sum())
    return {
        "questions": questions,
        "zero_gradient": float(100 * (strength == 0).double().mean()),
        "eta": float((strength / size).mean()),
        "effective_responses": total**2 / squares / len(index) if total else 0.0,
        "positive": float(advantages.clamp(min=0).double().sum()) / total if total else float("nan"),
        "hard": float(strength[hard].sum()) / total if total else float("nan"),
    }
