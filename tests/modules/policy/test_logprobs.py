"""Scores of many responses in micro-batches, against one plain forward for each."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo.modules.policy.logprobs import PromptedResponses, Scorer
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.packing.policy import CausalPolicy

PROMPTS = [torch.tensor([5, 6, 7, 8]), torch.tensor([9, 10])]
PROMPT = torch.tensor([0, 1, 0, 1, 0])
RESPONSES = [torch.tensor(ids) for ids in ([11, 12, 13], [14], [15, 16], [17, 18, 19, 20], [21])]


@pytest.fixture
def responses():
    return PromptedResponses(prompts=PROMPTS, prompt=PROMPT, responses=RESPONSES)


def plain(model, row):
    """Log-probs and entropies of one response's tokens, in float64."""
    prompt, response = PROMPTS[int(PROMPT[row])], RESPONSES[row]
    with torch.no_grad():
        logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1].double()
    logprobs = logits.log_softmax(-1)
    return logprobs[torch.arange(len(response)), response], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("token_budget", [1, 9, 1000])
def test_scores_are_those_of_plain_forwards_for_any_token_budget(tiny_policy, responses, token_budget):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    scorer = Scorer(CausalPolicy(load_causal_lm(tiny_policy)), token_budget=token_budget)
    scores = scorer.score(responses, torch.tensor([4, 0, 3]))
    assert not scores.logprobs.requires_grad
    columns = zip(
        *(column.split(responses.lengths.tolist()) for column in scores[:2]), scores.entropy, strict=True
    )
    for row, (logprobs, entropies, mean) in enumerate(columns):
        expected, entropy = plain(model, row) if row in (0, 3, 4) else torch.zeros(2, len(logprobs)).double()
        torch.testing.assert_close(logprobs.double(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropies.double(), entropy, atol=1e-5, rtol=0)
        assert float(mean) == pytest.approx(float(entropy.mean()), abs=1e-5)


def test_micro_batches_have_every_row_once_within_the_budget(tiny_policy, responses):
    scorer = Scorer(CausalPolicy(load_causal_lm(tiny_policy)), token_budget=6)
    batches = list(scorer.pack(responses, torch.arange(5)))
    assert sorted(torch.cat([packed.rows for packed, _ in batches]).tolist()) == [0, 1, 2, 3, 4]
    assert all(packed.input_ids.numel() <= 6 for packed, _ in batches)
    assert len(batches) > 1
    assert [last for _, last in batches] == [False] * (len(batches) - 1) + [True]


def test_rows_of_a_micro_batch_ascend(tiny_policy, responses):
    scorer = Scorer(CausalPolicy(load_causal_lm(tiny_policy)), token_budget=8)
    for rows in itertools.permutations(range(5)):
        for packed, _ in scorer.pack(responses, torch.tensor(rows)):
            assert packed.rows.tolist() == sorted(packed.rows.tolist())


def test_nothing_to_score_is_one_dummy(tiny_policy, responses):
    scorer = Scorer(CausalPolicy(load_causal_lm(tiny_policy)))
    ((packed, last),) = scorer.pack(responses, torch.arange(0))
    assert last
    assert packed.rows.tolist() == []
    assert scorer.policy(packed).logprobs.shape == (2,)
    assert scorer.score(responses, torch.arange(0)).logprobs.tolist() == [0.0] * 11


def test_the_reference_is_the_second_model_or_the_policy_without_its_adapters(tiny_policy, responses):
    start = AutoModelForCausalLM.from_pretrained(tiny_policy)
    expected = torch.cat([plain(start, row)[0] for row in range(5)])

    def moved(policy):
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1)
        return policy

    reference = CausalPolicy(load_causal_lm(tiny_policy))
    two = Scorer(moved(CausalPolicy(load_causal_lm(tiny_policy))), reference)
    adapted = Scorer(moved(CausalPolicy(load_causal_lm(tiny_policy, lora=LoraSettings(rank=2)))))
    for scorer in (two, adapted):
        ((packed, _),) = scorer.pack(responses, torch.arange(5))
        assert packed.rows.tolist() == [0, 1, 2, 3, 4]
        torch.testing.assert_close(scorer.reference_logprobs(packed).double(), expected, atol=1e-5, rtol=0)
        assert float((scorer.policy(packed).logprobs.double() - expected).abs().max()) > 0.01
