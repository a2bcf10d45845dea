"""Credit per token in an update: against plain PyTorch on padded batches, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from tagrpo.contrib.entropy_mechanism.credit import ClipCovCredit, KLCovCredit
from tagrpo.contrib.high_entropy_tokens.credit import HighEntropyCredit
from tagrpo.contrib.rl_zvp.credit import ZeroVarianceCredit
from tagrpo.contrib.unlikeliness.advantage import UnlikelinessAdvantage
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import Credit, Loss, TokenCredit

# The second question is solved by all responses, the third by none.
REWARDS = [
    [[0.0, 1.0], [1.0]],
    [[1.0, 1.0], [1.0, 1.0]],
    [[0.0, 0.0], [0.0]],
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
]


def make_update(folder, credit=None, loss=None, advantage=None, token_budget=60, lr=0.5, **options):
    policy = CausalPolicy(load_causal_lm(folder))
    return PolicyUpdate(
        Scorer(policy, token_budget=token_budget),
        advantage or GroupAdvantage("question", scale="none"),
        loss or PolicyLoss(None, None, kl_coef=0.0),
        torch.optim.SGD(policy.parameters(), lr=lr),
        UpdateOptions(**{"max_grad_norm": 1e9, "mini_batches": 4, **options}),
        credit=credit,
    )


def learned(update, batch):
    result = update(batch.rollouts, len(batch.groups))
    return torch.cat([p.detach().flatten() for p in update.scorer.policy.model.parameters()]), result


def padded(model, rollouts):
    """[R, T] log-probs and entropies under q0, and the mask, by one forward per response."""
    logprobs, entropies = [], []
    for r, ids in enumerate(rollouts.token_ids):
        head = rollouts.prompts[int(rollouts.prompt[r])].anchor_ids
        table = torch.log_softmax(model(torch.cat([head, ids])[None]).logits[0, len(head) - 1 : -1], -1)
        logprobs.append(table[torch.arange(len(ids)), ids])
        entropies.append(-(table.exp() * table).sum(-1))
    mask = pad_sequence([torch.ones(len(row)) for row in logprobs], batch_first=True)
    return pad_sequence(logprobs, batch_first=True), pad_sequence(entropies, batch_first=True), mask


def kl_cov(advantages, logprobs, entropies, mask, question):
    tokens = mask > 0
    table = advantages[:, None].expand_as(mask)
    centred = (table - table[tokens].mean()) * (logprobs - logprobs[tokens].mean())
    penalty = torch.zeros_like(mask)
    penalty[tokens] = (
        (centred[tokens] >= centred[tokens].topk(int(0.3 * tokens.sum())).values[-1]) & (centred[tokens] > 0)
    ).float()
    return table, 0.8 * penalty


def high_entropy(advantages, logprobs, entropies, mask, question):
    tokens = mask > 0
    count = int(np.ceil(0.3 * int(tokens.sum())))
    chosen = tokens & (entropies >= entropies[tokens].topk(count).values[-1])
    return advantages[:, None] * chosen * tokens.sum() / count, torch.zeros_like(mask)


def zero_variance(advantages, logprobs, entropies, mask, question):
    if question in (0, 3):
        return advantages[:, None].expand_as(mask), torch.zeros_like(mask)
    highest = (entropies * mask).max(1, keepdim=True).values
    return 0.1 * (entropies if question == 1 else entropies - highest), torch.zeros_like(mask)


METHODS = {
    "kl_cov": (KLCovCredit(share=0.3, coef=0.8), kl_cov),
    "high_entropy": (HighEntropyCredit(0.3), high_entropy),
    "zero_variance": (ZeroVarianceCredit(0.1), zero_variance),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_update_equals_plain_pytorch_on_padded_batches(tiny_policy, make_batch, name):
    """Four mini-batches of a question each, ranked under the policy before the first of them."""
    credit, method = METHODS[name]
    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    with torch.no_grad():
        old, entropies, mask = padded(model, rollouts)
    silent = 0
    for question in range(4):
        rows = rollouts.question == question
        advantages = rollouts.rewards[rows] - rollouts.rewards[rows].mean()
        given, penalty = method(advantages, old[rows], entropies[rows], mask[rows], question)
        silent += int((((given != 0) | (penalty != 0)) & (mask[rows] > 0)).any(1).logical_not().sum())
        log_ratio = padded(model, rollouts)[0][rows] - (old[rows])
        terms = (-log_ratio.exp() * given + penalty * log_ratio.abs()) * mask[rows]
        model.zero_grad()
        (terms.sum(1) / mask[rows].sum(1)).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    found, result = learned(make_update(tiny_policy, credit), batch)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    start = torch.cat([p.detach().flatten() for p in load_causal_lm(tiny_policy).parameters()])
    assert float((found - expected).norm()) < 1e-4 * float((expected - start).norm())
    plain, _ = learned(make_update(tiny_policy), batch)
    assert float((found - plain).norm()) > 0.01 * float((expected - start).norm())
    assert result.dropped == silent, "responses of which no token has a credit need no forward"


@pytest.mark.parametrize("credit", [ClipCovCredit(0.3, -0.3, 1.0), KLCovCredit(0.3), HighEntropyCredit(0.3)])
@pytest.mark.parametrize("chunk", [None, 5])
def test_neither_micro_batches_nor_chunks_change_the_update(tiny_policy, make_batch, credit, chunk):
    def parameters(token_budget):
        update = make_update(tiny_policy, credit, token_budget=token_budget, mini_batches=2)
        update.scorer.policy.chunk_size = chunk
        return learned(update, make_batch(REWARDS))[0]

    torch.testing.assert_close(parameters(25), parameters(1000), atol=2e-6, rtol=0)


def test_clip_cov_silences_and_the_advantages_that_are_shown_are_means_over_tokens(tiny_policy, make_batch):
    class Spied(ClipCovCredit):
        def __call__(self, inputs):
            self.given = super().__call__(inputs)
            self.response = inputs.response
            return self.given

    credit = Spied(0.5, -1.0, 1.0)
    _, result = learned(make_update(tiny_policy, credit, mini_batches=1), make_batch(REWARDS))
    for row, advantage in enumerate(result.experience.advantages.tolist()):
        assert advantage == pytest.approx(
            float(credit.given.advantages[credit.response == row].mean()), abs=1e-6
        )


def test_a_response_learns_if_any_of_its_tokens_does_even_where_they_cancel(tiny_policy, make_batch):
    class Cancels(TokenCredit):
        def __call__(self, inputs):
            place = torch.cat(
                [torch.arange(n) - (n - 1) / 2 for n in torch.bincount(inputs.response).tolist() if n]
            )
            return Credit(place)

    class Penalises(TokenCredit):
        def __call__(self, inputs):
            return Credit(torch.zeros_like(inputs.logprobs), {"log_ratio": torch.ones_like(inputs.logprobs)})

    batch = make_batch(REWARDS)
    alone = sum(len(ids) == 1 for ids in batch.rollouts.token_ids)
    assert 0 < alone < len(batch.rollouts)
    for credit, dropped in ((Cancels(), alone), (Penalises(), 0)):
        _, result = learned(make_update(tiny_policy, credit), batch)
        assert result.dropped == dropped


def test_a_credit_is_told_the_verdicts_of_its_mini_batch(tiny_policy, make_batch):
    class Asks(HighEntropyCredit):
        def __call__(self, inputs):
            seen.append(inputs.groups.correct.tolist())
            return super().__call__(inputs)

    batch, seen = make_batch(REWARDS), []
    learned(make_update(tiny_policy, Asks(0.3)), batch)
    question, correct = batch.rollouts.question, batch.rollouts.correct
    assert seen == [correct[question == q].tolist() for q in range(4)]


@pytest.mark.parametrize("mini_batches", [1, 4])
def test_likelihood_alone_is_plain_supervised_learning(tiny_policy, make_batch, mini_batches):
    """A gradient of the log-probs at each token, which the first mini-batch has too."""

    class Imitates(TokenCredit):
        def __call__(self, inputs):
            return Credit(
                torch.zeros_like(inputs.logprobs), {"nll": inputs.groups.correct[inputs.response].float()}
            )

    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    for questions in torch.arange(4).tensor_split(mini_batches):
        rows = torch.isin(rollouts.question, questions)
        logprobs, _, mask = (table[rows] for table in padded(model, rollouts))
        model.zero_grad()
        (-(logprobs * mask).sum(1) / mask.sum(1) * rollouts.correct[rows]).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * (0 if parameter.grad is None else parameter.grad)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    start = torch.cat([p.detach().flatten() for p in load_causal_lm(tiny_policy).parameters()])
    found, result = learned(make_update(tiny_policy, Imitates(), mini_batches=mini_batches), batch)
    assert float((found - expected).norm()) < 1e-4 * float((expected - start).norm())
    assert result.dropped == int((~rollouts.correct).sum())


def scored_by(update, batch, monkeypatch):
    calls, score = [], update.scorer.score
    monkeypatch.setattr(
        update.scorer, "score", lambda given, rows: calls.append(rows.tolist()) or score(given, rows)
    )
    learned(update, batch)
    return calls


def test_one_forward_serves_strategy_credit_and_old_log_probs_and_none_is_made_where_nobody_asks(
    tiny_policy, make_batch, monkeypatch
):
    batch = make_batch(REWARDS)
    everything = list(range(len(batch.rollouts)))
    assert scored_by(make_update(tiny_policy, mini_batches=1), batch, monkeypatch) == []
    assert scored_by(make_update(tiny_policy, KLCovCredit(0.3)), batch, monkeypatch) == [everything]
    unlikely = UnlikelinessAdvantage(GroupAdvantage("question"))
    assert scored_by(make_update(tiny_policy, KLCovCredit(0.3), advantage=unlikely), batch, monkeypatch) == [
        everything
    ]


def test_masked_responses_are_neither_scored_nor_counted(tiny_policy, make_batch, monkeypatch):
    batch = make_batch(REWARDS)
    truncated = torch.zeros(len(batch.rollouts), dtype=torch.bool)
    truncated[[0, 5]] = True
    batch.rollouts = replace(batch.rollouts, truncated=truncated)
    update = make_update(tiny_policy, HighEntropyCredit(0.3), mask_truncated=True)
    assert scored_by(update, batch, monkeypatch) == [(~truncated).nonzero()[:, 0].tolist()]


def test_what_cannot_work_is_refused_by_name(tiny_policy, make_batch):
    with pytest.raises(ValueError, match=r"loss\.ratio=token.*PolicyLoss.*credit=KLCovCredit"):
        make_update(tiny_policy, KLCovCredit(), loss=PolicyLoss(ratio="sequence", kl_coef=0.0))

    class Blind(Loss):
        by_token = True

        def __call__(self, inputs):
            raise AssertionError("never called")

    with pytest.raises(ValueError, match="got Blind with credit=KLCovCredit"):
        make_update(tiny_policy, KLCovCredit(), loss=Blind())

    class Broken(TokenCredit):
        def __call__(self, inputs):
            return Credit(torch.zeros_like(inputs.logprobs).index_fill(0, torch.tensor([0]), torch.nan))

    with pytest.raises(FloatingPointError, match=r"Broken \(credit\).*advantages"):
        learned(make_update(tiny_policy, Broken()), make_batch(REWARDS))
