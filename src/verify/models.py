"""The tiny models that every trainer scores the batch with: the policy, the sampler and the reference.

The sampler and the reference are the policy with slightly different weights, so that ratios differ from 1,
clips act, and the divergence from the reference is not 0.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from ..modules.policy.model import load_causal_lm
from ..seeds import derive_seed
from .batch import Batch

LARGEST = 50_000_000
"""Parameters of the largest model that takes the place of the tiny one."""


@dataclass(frozen=True)
class Models:
    """Models of a comparison, float32, on the CPU."""

    policy: PreTrainedModel
    """π_θ, of which the gradient is taken."""
    reference: PreTrainedModel
    """π_ref of the divergence."""


def tiny_model(vocabulary: int, longest: int, seed: int = 0) -> PreTrainedModel:
    """Return a small Qwen3 of two layers whose random weights are large, so that its distributions are not flat."""
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=max(longest, 16), tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "tiny model"))
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8.0 if parameter.dim() > 1 else 1.0)
    return model


def moved(model: PreTrainedModel, name: str, size: float, seed: int = 0) -> PreTrainedModel:
    """Return a copy of a model whose matrices have moved by `size` of their root mean square, at random."""
    copied: PreTrainedModel = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.dim() > 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise * size * parameter.square().mean().sqrt())
    return copied


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    temperature: float,
) -> list[Tensor]:
    """Return [R] of [T_r] float32 log-probs, nats, by the model's own forward, one response at a time."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        found.append(logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0])
    return found


def models_for(batch: Batch, path: str | None, temperature: float, seed: int = 0) -> tuple[Batch, Models]:
    """Return the models of a comparison, and the batch with the log-probs of the sampler.

    Args:
        batch: Responses of any model.
        path: Folder of the policy whose sampled log-probs the batch has. None takes the model that the batch
            names if it is small enough, else a tiny model; the tokens are then renumbered, and the log-probs
            are those of the tiny model with other weights.
        temperature: Sampling temperature.
        seed: Seed of random weights.
    """
    named = path or batch.model
    if named is not None:
        model = load_causal_lm(named)
        if path or sum(parameter.numel() for parameter in model.parameters()) <= LARGEST:
            return batch, Models(model.eval(), moved(model, "reference", 0.02, seed).eval())
    batch = batch.in_dense_vocabulary()
    policy = tiny_model(max(batch.vocabulary, 8), batch.longest, seed).eval()
    sampler = moved(policy, "sampler", 0.6, seed)
    prompts = [row.prompt_ids for row in batch.rows]
    responses = [row.response_ids for row in batch.rows]
    sampled = logprobs_of(sampler, prompts, responses, temperature)
    batch = batch.with_logprobs([values.tolist() for values in sampled])
    return batch, Models(policy, moved(policy, "reference", 0.12, seed).eval())
