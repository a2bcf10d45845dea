"""Packed scores against one plain forward of the same model per response."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tagrpo.modules.logprobs import CausalPolicy, token_scores
from tagrpo.modules.packing import pack

SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=False)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "sliding window": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=1,
                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ),
}  # fmt: skip
SHARED = {"qwen3", "qwen2", "llama"}
PROMPT_LENGTHS = (1, 7, 5, 4)
PROMPT = torch.tensor([0, 0, 1, 1, 1, 2, 0])  # the last prompt has no response
RESPONSE_LENGTHS = (1, 9, 4, 5, 12, 3, 2)


@pytest.fixture(params=list(MODELS))
def model(request):
    torch.manual_seed(0)
    model = MODELS[request.param]()
    model.kind = request.param
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


@pytest.fixture
def sequences():
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 50, (n,), generator=generator) for n in PROMPT_LENGTHS]
    responses = [torch.randint(3, 50, (n,), generator=generator) for n in RESPONSE_LENGTHS]
    return prompts, responses


def plain(model, prompts, responses, temperature=1.0):
    """[R] of [T_r] log-probs and entropies, one unpadded forward per response."""
    logprobs, entropies = [], []
    for p, response in zip(PROMPT.tolist(), responses, strict=True):
        logits = model(torch.cat([prompts[p], response])[None]).logits[0, len(prompts[p]) - 1 : -1] / temperature
        distribution = torch.distributions.Categorical(logits=logits)
        logprobs.append(distribution.log_prob(response))
        entropies.append(distribution.entropy())
    return logprobs, entropies


def gradient(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return flat


@pytest.mark.parametrize("checkpointing", [False, True])
def test_scores_and_gradients_equal_plain_forwards(model, sequences, checkpointing):
    prompts, responses = sequences
    logprobs, entropies = plain(model, prompts, responses, temperature=0.8)
    weight = [torch.randn(len(r), generator=torch.Generator().manual_seed(i)) for i, r in enumerate(responses)]
    sum(((a + 0.3 * h) * w).sum() for a, h, w in zip(logprobs, entropies, weight, strict=True)).backward()
    expected = gradient(model)

    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = CausalPolicy(model.train(), temperature=0.8, chunk_size=5)
    assert policy.shares_prefix == (model.kind in SHARED)
    batch = pack(prompts, PROMPT, responses, torch.arange(7), share_prefix=policy.shares_prefix)
    scores = policy(batch, entropy="grad")
    order = batch.rows.tolist()
    torch.testing.assert_close(scores.logprobs, torch.cat([logprobs[r] for r in order]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropy, torch.cat([entropies[r] for r in order]), atol=1e-5, rtol=1e-5)
    ((scores.logprobs + 0.3 * scores.entropy) * torch.cat([weight[r] for r in order])).sum().backward()
    torch.testing.assert_close(gradient(model), expected, atol=1e-5, rtol=1e-5)


def test_micro_batches_add_up(model, sequences):
    prompts, responses = sequences
    policy = CausalPolicy(model)
    for rows in (torch.arange(7), torch.tensor([4]), torch.tensor([0, 6, 2, 3]), torch.tensor([5, 1])):
        batch = pack(prompts, PROMPT, responses, rows, share_prefix=policy.shares_prefix)
        policy(batch).logprobs.sum().backward()
        if len(rows) == 7:
            whole = gradient(model)
    torch.testing.assert_close(gradient(model), whole, atol=1e-5, rtol=1e-5)


def test_no_tensor_of_tokens_times_vocabulary_is_kept(sequences):
    torch.manual_seed(0)
    vocabulary = 4096
    model = Qwen3ForCausalLM(Qwen3Config(**{**SMALL, "vocab_size": vocabulary}, head_dim=8))
    prompts, responses = sequences
    batch = pack(prompts, PROMPT, responses, torch.arange(7))
    sizes = []

    def keep(tensor):
        if not isinstance(tensor, nn.Parameter) and tensor.data_ptr() not in parameters:
            sizes.append(tensor.numel())
        return tensor

    parameters = {p.data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        CausalPolicy(model, chunk_size=8)(batch)
    assert max(sizes) < vocabulary, "a row of logits was kept for the backward"


def test_minus_infinity_among_the_logits_gives_a_finite_entropy():
    scores = token_scores(torch.tensor([[0.0, 0.0, -torch.inf]]), torch.tensor([1]), 1.0, "grad")
    torch.testing.assert_close(scores.entropy, torch.tensor([2.0]).log())
