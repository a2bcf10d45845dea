"""Directions and noise of estimators on saved rollouts, against automatic differentiation and by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from tagrpo.lab.replay import (
    bigram_scores,
    cosines,
    gradient_noise,
    replay,
    reward_groups,
)
from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.types import AdvantageStrategy

POOLED = GroupAdvantage(group_by="question")
PER_PROMPT = GroupAdvantage(group_by="prompt")


class Own(AdvantageStrategy):
    """A function as a strategy."""

    def __init__(self, function):
        self.function = function

    def __call__(self, groups):
        return self.function(groups)


def rollouts(rewards, seed=0, vocabulary=4, iteration=0):
    """Rows of responses; `rewards[question][rephrasing]` is a list, tokens are random."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {
                "iteration": iteration, "question": f"q{q}", "rephrasing": v, "template": "plain",
                "answer": str(reward),
                "correct": reward > 0, "reward": float(reward),
                "token_ids": rng.integers(0, vocabulary, rng.integers(1, 6)),
            }
            for q, versions in enumerate(rewards) for v, values in enumerate(versions) for reward in values
        ]
    )  # fmt: skip


def test_bigram_scores_are_the_gradients_of_the_fitted_table():
    rows = rollouts([[[1, 0, 1], [0, 0]], [[1, 1]]])
    ids = [list(tokens) for tokens in rows["token_ids"]]
    prompts = rows["question"] + rows["rephrasing"].astype(str)
    pairs = [[(p, t[0]), *pairwise(t)] for p, t in zip(prompts, ids, strict=True)]
    counts = {}
    for pair in [pair for response in pairs for pair in response]:
        counts[pair] = counts.get(pair, 0) + 1
    names = list(counts)
    logits = torch.tensor([float(counts[name]) for name in names], dtype=torch.float64).log().requires_grad_()

    def logprob(pair):
        context = [i for i, name in enumerate(names) if name[0] == pair[0]]
        return logits[names.index(pair)] - logits[context].logsumexp(0)

    expected = []
    for response in pairs:
        mean = sum(logprob(pair) for pair in response) / len(response)
        expected.append(torch.autograd.grad(mean, logits)[0].numpy())
    found = bigram_scores(rows).toarray()
    # The columns have an order of their own: inner products do not depend on it.
    np.testing.assert_allclose(found @ found.T, np.array(expected) @ np.array(expected).T, atol=1e-12)
    lengths = np.array([len(tokens) for tokens in ids])
    np.testing.assert_allclose(lengths @ found, 0, atol=1e-12, err_msg="the fitted table has no gradient")


def test_cosines_between_responses_of_their_own_are_those_of_the_advantages():
    rows = rollouts([[[1, 0, 1, 1], [0, 0, 0, 1]], [[1, 1, 0, 0], [1, 1, 1, 1]]])
    strategies = {"pooled": POOLED, "per prompt": PER_PROMPT, "twice": Own(lambda groups: 2 * POOLED(groups))}
    table = cosines(rows, strategies, lambda rows: sparse.identity(len(rows), format="csr"))
    a, b = (strategies[name](reward_groups(rows)).double() for name in ("pooled", "per prompt"))
    assert table.loc["pooled", "per prompt"] == pytest.approx(float(torch.nn.functional.cosine_similarity(a, b, dim=0)))
    assert table.loc["pooled", "twice"] == pytest.approx(1)
    assert np.diag(table).tolist() == pytest.approx([1, 1, 1])


def test_estimators_without_a_gradient_have_no_direction():
    rows = rollouts([[[1, 1], [0, 0]]])
    table = cosines(rows, {"pooled": POOLED, "per prompt": PER_PROMPT})
    assert np.isnan(table.loc["pooled", "per prompt"])
    assert table.loc["pooled", "pooled"] == pytest.approx(1)


def test_effective_weights_by_hand():
    # Question 0: one right of four, A = ¾, −¼ × 3; question 1: all right, no weight.
    rows = rollouts([[[1, 0, 0, 0]], [[1, 1, 1, 1]]])
    (row,) = replay(rows, {"plain": GroupAdvantage(group_by="question", scale="none")}).to_dict("records")
    assert row["effective_responses"] == pytest.approx(1.5**2 / (9 / 16 + 3 / 16) / 8)
    assert row["positive"] == pytest.approx(0.5)
    assert row["hard"] == 1
    (nothing,) = replay(rows[4:], {"plain": POOLED}).to_dict("records")
    assert (nothing["effective_responses"], nothing["eta"]) == (0, 0)
    assert np.isnan(nothing["hard"])


def test_pass_at_k_puts_its_weight_on_hard_questions():
    rows = rollouts([[[1, 0, 0, 0, 0, 0, 0, 0]], [[1, 1, 1, 1, 1, 1, 1, 0]]])
    hard = replay(rows, {"1": PassAtKAdvantage(k=1), "4": PassAtKAdvantage(k=4)}).set_index("strategy")["hard"]
    assert hard["1"] == pytest.approx(0.5)
    assert hard["4"] == 1


def test_noise_falls_as_responses_are_added():
    def noise(count):
        rows = rollouts([[[1, 0] * count] for _ in range(6)], vocabulary=2)
        return gradient_noise(rows, {"pooled": POOLED}, resamples=40)["noise"][0]

    assert noise(32) < noise(2)


def test_the_bootstrap_variance_is_that_of_fresh_responses():
    rng = np.random.default_rng(7)
    one = rollouts(rng.integers(0, 2, (1, 1, 50)).tolist())

    plain = Own(lambda groups: groups.rewards - 0.5)  # linear in the responses: their variances add up

    def ones(rows):
        return sparse.csr_matrix(np.ones((len(rows), 1)))

    found = gradient_noise(one, {"plain": plain}, ones, resamples=400)
    fresh = rng.binomial(50, 0.5, 4000) - 25
    assert found["variance"][0] == pytest.approx(fresh.var(), rel=0.3)
    with pytest.raises(ValueError, match="at least 2 resamples"):
        gradient_noise(one, {"plain": plain}, resamples=1)
