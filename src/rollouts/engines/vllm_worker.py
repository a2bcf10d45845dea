"""What runs inside a vLLM server's workers: the receiving end of `WeightSender`.

A server loads this module through `--worker-extension-cls` (see `serve.py`); importing it makes `stream` known to vLLM
as a weight-transfer backend, beside its own `nccl`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from .vllm import retie_output_head
from .weight_stream import receive_weights

BACKEND = "stream"


@dataclass
class StreamInitInfo(WeightTransferInitInfo):
    """Nothing: each update makes a connection of its own."""


@dataclass
class StreamUpdateInfo(WeightTransferUpdateInfo):
    """Where the sender of this update listens."""

    host: str
    port: int
    token: str
    timeout: float


class StreamWeightTransferEngine(WeightTransferEngine[StreamInitInfo, StreamUpdateInfo]):
    """Loads checkpoint-format weights from a TCP stream, one tensor at a time."""

    init_info_cls = StreamInitInfo
    update_info_cls = StreamUpdateInfo

    def init_transfer_engine(self, init_info: StreamInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Put the layers back into the form that checkpoints load into."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load; the base class would synchronise an accelerator, which a CPU lacks."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: StreamUpdateInfo) -> None:
        """Load every tensor of the stream."""
        model: Any = self.model
        model.load_weights(receive_weights(update_info.host, update_info.port, update_info.token, update_info.timeout))

    def finish_weight_update(self) -> None:
        """Bring the layers into the form that kernels want."""
        finalize_layerwise_reload(self.model, self.model_config)
        retie_output_head(self.model)

    def shutdown(self) -> None:
        """Nothing is held between updates."""


class WorkerExtension:
    """Named by `--worker-extension-cls`, so that every worker imports this module before it builds its model."""

    model_runner: Any

    def weight_digests(self) -> dict[str, str]:
        """`weight_digests` of this worker's model, for `/collective_rpc`."""
        return weight_digests(self.model_runner.get_model())


def weight_digests(model: nn.Module) -> dict[str, str]:
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


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, StreamWeightTransferEngine)
