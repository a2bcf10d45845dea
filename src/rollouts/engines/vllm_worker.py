"""The receiving end of `weight_stream`, a weight-transfer backend inside a vLLM server's workers (see `serve.py`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
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
    """Loads checkpoint-format weights as they arrive, one tensor at a time."""

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
        model.load_weights(receive_weights(**asdict(update_info)))

    def finish_weight_update(self) -> None:
        """Bring the layers into the form that kernels want."""
        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]
        retie_output_head(self.model)

    def shutdown(self) -> None:
        """Nothing is held between updates."""


class WorkerExtension:
    """Named by `--worker-extension-cls`, so that every worker imports this module before it builds its model."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, StreamWeightTransferEngine)
