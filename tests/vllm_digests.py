"""What a vLLM model computes with, for tests; a server loads it by `--worker-extension-cls vllm_digests.Digests`."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding


class Digests:
    """Adds `weight_digests` to what `/collective_rpc` can call."""

    model_runner: Any

    def weight_digests(self) -> dict[str, str]:
        return digests_of(self.model_runner.get_model())


def weight_digests(self) -> dict[str, str]:
    """`weight_digests` of this worker's model, for `/collective_rpc`."""
    return digests_of(self.model_runner.get_model())


def digests_of(model: nn.Module) -> dict[str, str]:
    """VLLM's name → SHA-256 of each weight as the kernels compute with it, without padded vocabulary.

    CPU kernels hold packed copies that only a product gives back: x Wᵀ with x = 1 is exact, as it adds zeros alone.
    """
    config: Any = model.config
    digests = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            tensor = parameter.detach().cpu()
            if name == "weight" and isinstance(module, (LinearBase, ParallelLMHead)):
                size = module.input_size if isinstance(module, LinearBase) else module.embedding_dim
                ones: torch.Tensor = torch.eye(size).to(parameter)
                method: Any = module.quant_method
                tensor = method.apply(module, ones).detach().cpu().T
            if isinstance(module, VocabParallelEmbedding):
                tensor = tensor[: config.vocab_size]
            raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
            digests[f"{module_name}.{name}"] = hashlib.sha256(raw).hexdigest()
    return digests
