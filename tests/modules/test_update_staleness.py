"""The correction for responses of earlier weights: against Hugging Face forwards, and against every possible sample."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import AdvantageStrategy, Prompt, QuestionBatch, QuestionGroup, Rollouts

REWARDS = [[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]]
CAP = 1.25


class Computed(AdvantageStrategy):
    """Advantages by a function of the groups."""

    def __init__(self, function):
        self.function = function

    def __call__(self, groups):
        return self.function(groups)


class Inputs(PolicyLoss):
    """Keeps the weights of each response's tokens, in the order of the rollouts' tokens."""

    by_token = False

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def __call__(self, inputs):
        self.seen.append(inputs)
        return super().__call__(inputs)


def step(folder, batch, loss=None, advantage=lambda groups: groups.rewards, lr=1.0, **options):
    """The model after one update, and what was logged."""
    policy = CausalPolicy(load_causal_lm(folder))
    loss = loss or PolicyLoss(kl_coef=0.0)
    update = PolicyUpdate(
        Scorer(policy), Computed(advantage), loss, torch.optim.SGD(policy.parameters(), lr=lr),
        UpdateOptions(max_grad_norm=1e9, **options),
    )  # fmt: skip
    result = update(batch.rollouts, len(batch.groups))
    return policy.model, result.metrics()


def logprobs_of(model, prompt, response):
    """[T] by a plain forward."""
    with torch.no_grad():
        logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[torch.arange(len(response)), response]


@pytest.fixture(scope="module")
def earlier_policy(tiny_policy, tmp_path_factory):
    """Other weights than those of `tiny_policy`, not far from them."""
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def stale_batch(make_batch, earlier_policy, fresh=()):
    """A batch with the log-probs of the earlier policy under the prompts that were sampled."""
    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    sampled = [rollouts.prompts[p].token_ids for p in rollouts.prompt.tolist()]
    logprobs = [logprobs_of(earlier_policy, *pair) for pair in zip(sampled, rollouts.token_ids, strict=True)]
    staleness = torch.full((len(rollouts),), 2)
    staleness[list(fresh)] = 0
    return replace(batch, rollouts=replace(rollouts, logprobs=logprobs, staleness=staleness)), sampled


def weights_by_hand(model, batch, sampled, cap):
    """[R] of [T_r] min(π/μ, cap), under the sampled prompt; ones for fresh responses."""
    ratios = []
    for row, prompt in enumerate(sampled):
        difference = logprobs_of(model, prompt, batch.rollouts.token_ids[row]) - batch.rollouts.logprobs[row]
        stale = bool(batch.rollouts.staleness[row])
        ratios.append(
            np.minimum(np.exp(difference.double().numpy()), cap) if stale else np.ones(len(difference))
        )
    return ratios


def seen_weights(loss):
    """Weights by the tokens of a response, which are unique here."""
    found = {}
    for inputs in loss.seen:
        for row in range(len(inputs.lengths)):
            tokens = inputs.response == row
            found[float(inputs.advantages[row]), int(inputs.lengths[row])] = inputs.weights[tokens].numpy()
    return found


@pytest.mark.parametrize(("anchor", "correction"), [("original", None), ("own", None), ("original", 1.1)])
@pytest.mark.parametrize("mini_batches", [1, 2])
def test_weights_compare_both_policies_under_the_prompt_that_was_sampled(
    tiny_policy, make_batch, earlier_policy, anchor, correction, mini_batches
):
    batch, sampled = stale_batch(make_batch, earlier_policy, fresh=[2, 10])
    # Advantages that tell responses apart.
    distinct = torch.arange(1.0, 1 + len(batch.rollouts))
    loss = Inputs(kl_coef=0.0)
    options = {"anchor": anchor, "prompt_correction": correction, "mini_batches": mini_batches}
    _, logged = step(tiny_policy, batch, loss, lambda groups: distinct, lr=0.5, staleness_cap=CAP, **options)
    start = AutoModelForCausalLM.from_pretrained(tiny_policy)
    expected = weights_by_hand(start, batch, sampled, CAP)
    found = {advantage: weights for (advantage, _), weights in seen_weights(loss).items()}
    for row, (weights, prompt) in enumerate(zip(expected, sampled, strict=True)):
        scored = batch.rollouts.prompts[int(batch.rollouts.prompt[row])].anchor_ids
        moved = np.ones(len(weights))
        if correction is not None and not torch.equal(scored, prompt):
            response = batch.rollouts.token_ids[row]
            change = logprobs_of(start, scored, response) - logprobs_of(start, prompt, response)
            moved = np.minimum(np.exp(change.numpy()), correction)
        np.testing.assert_allclose(found[row + 1.0], weights * moved, atol=2e-5)
    stale = np.concatenate([w for w, s in zip(expected, batch.rollouts.staleness.tolist(), strict=True) if s])
    assert logged["rollout/staleness_weight"] == pytest.approx(stale.mean(), abs=1e-5)
    assert logged["rollout/staleness_truncated"] == pytest.approx((stale >= CAP - 1e-9).mean(), abs=1e-6)
    assert 0.05 < logged["rollout/staleness_truncated"] < 0.6, (
        "the cap must matter for the test to say anything"
    )
    assert logged["rollout/staleness_kl"] > 0.005
    if mini_batches == 1 and anchor == "own":
        rows = [row for row, s in enumerate(batch.rollouts.staleness.tolist()) if s]
        d = torch.cat([logprobs_of(start, sampled[r], batch.rollouts.token_ids[r]) for r in rows])
        d = (d - torch.cat([batch.rollouts.logprobs[r] for r in rows])).double()
        assert logged["rollout/staleness_kl"] == pytest.approx(float((d.exp() - 1 - d).mean()), abs=1e-5)


def test_the_engines_mismatch_is_that_of_fresh_responses_alone(tiny_policy, make_batch, earlier_policy):
    options = {"anchor": "own", "mini_batches": 1, "lr": 0.0}
    batch, _ = stale_batch(make_batch, earlier_policy)
    _, logged = step(tiny_policy, batch, **options)
    assert "rollout/engine_mismatch_kl" not in logged
    assert "rollout/staleness_kl" in logged
    mixed, sampled = stale_batch(make_batch, earlier_policy, fresh=[4])
    _, logged = step(tiny_policy, mixed, advantage=lambda groups: torch.ones(12), **options)
    start = AutoModelForCausalLM.from_pretrained(tiny_policy)
    difference = logprobs_of(start, sampled[4], mixed.rollouts.token_ids[4]) - mixed.rollouts.logprobs[4]
    assert logged["rollout/engine_mismatch_max"] == pytest.approx(float(difference.abs().max()), abs=1e-5)
    nothing = torch.zeros(len(batch.rollouts), dtype=torch.long)
    fresh = replace(batch, rollouts=replace(batch.rollouts, staleness=nothing))
    _, logged = step(tiny_policy, fresh, **options)
    assert "rollout/engine_mismatch_kl" in logged
    assert not [name for name in logged if name.startswith("rollout/staleness")]


def test_the_expected_gradient_over_stale_samples_is_the_on_policy_one(tiny_policy, earlier_policy):
    """One question and its rephrasing, responses of one token, all of them: E_μ[w A ∇log π] = E_π[A ∇log π].

    The expectation over samples is taken by repeating each response as often as the sampling policy's probability says:
    SGD with a learning rate of 1 shows the gradient as the change of the weights.
    """
    start = AutoModelForCausalLM.from_pretrained(tiny_policy)
    q0, q1 = torch.tensor([5, 6, 7]), torch.tensor([8, 9])
    vocabulary = torch.arange(0, len(start.model.embed_tokens.weight))
    rewards = torch.linspace(-1.0, 1.0, len(vocabulary)).sin()

    def probabilities(model, prompt):
        with torch.no_grad():
            return torch.softmax(model(prompt[None]).logits[0, -1], -1)

    def change(sampler, staleness):
        """−∇ of the expected loss when `sampler` draws from q0 and q1 and both are scored under q0."""
        rows = list(itertools.product((0, 1), vocabulary.tolist()))
        prompts = [Prompt(0, v, "plain", "", ids, q0, len(vocabulary)) for v, ids in enumerate((q0, q1))]
        drawn = [probabilities(sampler, ids) for ids in (q0, q1)]
        tokens = torch.tensor([token for _, token in rows])
        rephrasing = torch.tensor([v for v, _ in rows])
        rollouts = Rollouts(
            prompts=prompts, prompt=rephrasing, question=torch.zeros_like(rephrasing), rephrasing=rephrasing,
            token_ids=list(tokens[:, None]), logprobs=[drawn[v][t].log()[None] for v, t in rows],
            truncated=torch.zeros(len(rows), dtype=torch.bool), text=[""] * len(rows),
            correct=torch.zeros(len(rows), dtype=torch.bool), answers=[None] * len(rows), rewards=rewards[tokens],
            replayed=torch.zeros(len(rows), dtype=torch.bool), staleness=torch.full((len(rows),), staleness),
        )  # fmt: skip
        # Each response stands for its share of the samples: its probability takes the place of a count.
        shares = torch.stack([drawn[v][t] for v, t in rows])
        batch = QuestionBatch(
            groups=[QuestionGroup("q", "q", ("r",), ("1",))], prompts=prompts, rollouts=rollouts
        )
        model, _ = step(
            tiny_policy, batch, advantage=lambda groups: groups.rewards * shares * len(shares), mini_batches=1,
            staleness_cap=math.inf,
        )  # fmt: skip
        before = dict(start.named_parameters())
        return torch.cat([(p - before[name]).flatten() for name, p in model.named_parameters()]).detach()

    on_policy, stale, uncorrected = change(start, 0), change(earlier_policy, 2), change(earlier_policy, 0)
    size = float(on_policy.norm())
    assert float((stale - on_policy).norm()) < 1e-3 * size
    assert float((uncorrected - on_policy).norm()) > 0.02 * size, "else there is nothing to correct"
