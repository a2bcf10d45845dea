"""Advantage strategies on recorded rollouts: which gradients another strategy would have had from the same responses.

A replay does not tell where training would have led: the responses are those of the policy that was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse

from ..metrics.functional import group_effective_sample_share, group_index
from ..types import AdvantageStrategy, RewardGroups, require

Scores = Callable[[pd.DataFrame], sparse.csr_matrix]
"""Responses of one iteration → [R, D], the gradient of each response's mean token log-prob."""


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
        progress=progress,
    )


def _column(rows: pd.DataFrame, name: str, dtype: torch.dtype) -> torch.Tensor | None:
    return torch.tensor(rows[name].to_numpy(), dtype=dtype) if name in rows else None


def iterations_of(rollouts: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame, RewardGroups]]:
    """Each iteration's number, responses, and the same as a strategy sees them; the last recorded one ends training."""
    numbers = rollouts["iteration"].unique().tolist()
    for number in numbers:
        rows = rollouts[rollouts["iteration"] == number]
        yield number, rows, reward_groups(rows, progress=number / max(numbers[-1], 1))


def replay(rollouts: pd.DataFrame, strategies: Mapping[str, AdvantageStrategy]) -> pd.DataFrame:
    """Apply every strategy to every iteration of the recorded rollouts.

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
    check_strategies(rollouts, strategies)
    found = [
        {"strategy": name, "iteration": iteration, **_weights(strategy(groups), groups)}
        for iteration, _, groups in iterations_of(rollouts)
        for name, strategy in strategies.items()
    ]
    return pd.DataFrame(found)


def check_strategies(rollouts: pd.DataFrame, strategies: Mapping[str, AdvantageStrategy]) -> None:
    """Refuse what is no strategy, and strategies that need an entropy which was not saved."""
    for name, strategy in strategies.items():
        require(strategy, AdvantageStrategy, f"strategies[{name!r}]")
        for column, needed in (("entropy", strategy.needs_entropy), ("score_logprob", strategy.needs_logprobs)):
            if needed and (column not in rollouts or rollouts[column].isna().any()):
                raise ValueError(
                    f"Expected the policy's {column} for {name}, but it was not saved: only runs whose strategy needs "
                    "it compute it for all responses. Leave it out."
                )


def _weights(advantages: torch.Tensor, groups: RewardGroups) -> dict[str, float]:
    index, questions = group_index(groups.question)
    size = torch.bincount(index)
    strength = torch.bincount(index, weights=advantages.abs().double())  # η, arXiv 2508.10751, Eq. 16
    total = float(strength.sum())
    hard = torch.bincount(index, weights=groups.correct.double()) / size < 0.5
    share = group_effective_sample_share(advantages.abs().log(), torch.zeros_like(index)) if total else torch.zeros(1)
    return {
        "questions": questions,
        "zero_gradient": float(100 * (strength == 0).double().mean()),
        "eta": float((strength / size).mean()),
        "effective_responses": float(share),
        "positive": float(advantages.clamp(min=0).double().sum()) / total if total else float("nan"),
        "hard": float(strength[hard].sum()) / total if total else float("nan"),
    }


def bigram_scores(rows: pd.DataFrame) -> sparse.csr_matrix:
    """[R, D] gradients of log π(o) / |o| under the table of bigrams that fits the responses best, one row each.

    The policy is π(v | u) = softmax(θ_u)_v with the observed frequencies of each token v after each token u; the
    gradient of a response is Σ_t e_{u_t v_t} − π(· | u_t), over the D bigrams that occur. This is the exact policy
    gradient of that table: two responses that make the same choices push in the same direction. It does not cover how a
    network generalises from one context to another. The first token follows a start token that each prompt has of its
    own.

    Raises:
        ValueError: tokens were not saved.
    """
    if "token_ids" not in rows:
        raise ValueError("Expected token_ids of the responses, but they were not saved. Record with tokens=true.")
    ids = [np.asarray(tokens, dtype=np.int64) for tokens in rows["token_ids"]]
    owner = np.repeat(np.arange(len(ids)), [len(tokens) for tokens in ids])
    after = np.concatenate(ids)
    prompts = rows.groupby(["question", "rephrasing", "template"], sort=False).ngroup().to_numpy()
    before = np.concatenate([np.concatenate([[-1 - p], t[:-1]]) for p, t in zip(prompts, ids, strict=True)])
    contexts, context = np.unique(before, return_inverse=True)
    bigrams, column = np.unique(np.stack([context, after]), axis=1, return_inverse=True)
    column, context_of = column.reshape(-1), bigrams[0]
    shape = (len(ids), bigrams.shape[1])
    weight = 1.0 / np.repeat([len(tokens) for tokens in ids], [len(tokens) for tokens in ids])
    taken = sparse.csr_matrix((weight, (owner, column)), shape)
    visits = sparse.csr_matrix((weight, (owner, context)), (len(ids), len(contexts)))
    counts = np.bincount(column, minlength=shape[1])
    frequency = counts / np.bincount(context_of, weights=counts, minlength=len(contexts))[context_of]
    policy = sparse.csr_matrix((frequency, (context_of, np.arange(shape[1]))), (len(contexts), shape[1]))
    return sparse.csr_matrix(taken - visits @ policy)


def cosines(
    rollouts: pd.DataFrame, strategies: Mapping[str, AdvantageStrategy], scores: Scores = bigram_scores
) -> pd.DataFrame:
    """Cosine between the gradients of every two strategies, the mean over iterations: a square table by name.

    A gradient is Σ A_i ∇ log π(o_i) / |o_i| over all responses of an iteration. Iterations in which either is zero are
    left out; NaN where that leaves none.
    """
    check_strategies(rollouts, strategies)
    names = list(strategies)
    found = []
    for _, rows, groups in iterations_of(rollouts):
        matrix = scores(rows)
        gradients = np.stack([matrix.T @ strategies[name](groups).double().numpy() for name in names])
        lengths = np.linalg.norm(gradients, axis=1)
        lengths[lengths == 0] = np.nan
        found.append((gradients / lengths[:, None]) @ (gradients / lengths[:, None]).T)
    stacked = np.stack(found)
    known = [[cell[~np.isnan(cell)].tolist() for cell in row] for row in stacked.transpose(1, 2, 0)]
    means = [[fmean(cell) if cell else float("nan") for cell in row] for row in known]
    return pd.DataFrame(means, names, names)


def gradient_noise(
    rollouts: pd.DataFrame,
    strategies: Mapping[str, AdvantageStrategy],
    scores: Scores = bigram_scores,
    resamples: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """How much each strategy's gradient depends on which responses happened to be sampled.

    The responses to each prompt are resampled with replacement, the same for all strategies, and advantages and
    gradient are computed from the resample. This gives `resamples` gradients g_b per iteration, with mean ḡ.

    Returns:
        One row per strategy and iteration: `strategy, iteration`; `norm`: |ḡ|; `variance`: the unbiased trace of the
        covariance of g_b; `noise`: variance / (|ḡ|² − variance / resamples), infinite where that denominator is not
        positive. Bootstrap variances of G responses are about (G − 1) / G of the true ones.

    Raises:
        ValueError: fewer than two resamples.
    """
    if resamples < 2:
        raise ValueError(f"Expected at least 2 resamples, but got {resamples}.")
    check_strategies(rollouts, strategies)
    rng = np.random.default_rng(seed)
    found = []
    for iteration, rows, groups in iterations_of(rollouts):
        matrix = scores(rows)
        draws = [_redraw(groups.prompt.numpy(), rng) for _ in range(resamples)]
        for name, strategy in strategies.items():
            gradients = np.stack([matrix[draw].T @ strategy(take(groups, draw)).double().numpy() for draw in draws])
            mean = gradients.mean(0)
            variance = float(gradients.var(0, ddof=1).sum())
            signal = float(mean @ mean) - variance / resamples
            noise = variance / signal if signal > 0 else (float("inf") if variance else float("nan"))
            norm = float(np.linalg.norm(mean))
            found.append({"strategy": name, "iteration": iteration, "norm": norm, "variance": variance, "noise": noise})
    return pd.DataFrame(found)


def _redraw(prompt: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[R] rows, drawn with replacement among those of the same prompt."""
    rows = np.empty(len(prompt), dtype=np.int64)
    for p in np.unique(prompt):
        members = np.flatnonzero(prompt == p)
        rows[members] = rng.choice(members, len(members))
    return rows


def take(groups: RewardGroups, rows: np.ndarray) -> RewardGroups:
    """The responses `rows` of `groups`."""
    index = torch.from_numpy(rows)
    columns: dict[str, Any] = {n: x[index] for n, x in vars(groups).items() if isinstance(x, torch.Tensor)}
    return replace(groups, **columns)
