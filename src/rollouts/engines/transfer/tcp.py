"""Backend of vLLM's weight transfer that receives `weight_stream`; imported in vLLM's workers alone."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ..vllm import retie_output_head
from ..weight_stream import receive_weights


@dataclass
class TcpInitInfo(WeightTransferInitInfo):
    """Empty: each update opens a connection of its own."""


@dataclass
class TcpUpdateInfo(WeightTransferUpdateInfo):
    """Arguments of `receive_weights`."""

    host: str
    port: int
    token: str
    timeout: float


class TcpWeightTransferEngine(WeightTransferEngine[TcpInitInfo, TcpUpdateInfo]):
    """Receiver of the weights that `weight_stream.offered` offers, one tensor at a time."""

    init_info_cls = TcpInitInfo
    update_info_cls = TcpUpdateInfo

    def init_transfer_engine(self, init_info: TcpInitInfo) -> None:
        """Do nothing; see `TcpInitInfo`."""

    def start_weight_update(self) -> None:
        """Prepare the layers for new weights."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load all weights; the base class would synchronize an accelerator that CPUs lack."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: TcpUpdateInfo) -> None:
        """Load each tensor as it arrives.

        Raises:
            OSError: if the stream is refused, hangs or breaks off.
        """
        where = update_info.host, update_info.port, update_info.token, update_info.timeout
        try:
            self.model.load_weights(receive_weights(*where))
        except Exception:
            # vLLM counts the parts of a layer as they arrive. It would complete a layer of this stream with parts of
            # the next stream, and fail on the rest.
            self.finish_weight_update()
            raise

    def finish_weight_update(self) -> None:
        """Let the model compute with the new weights, and tie the output head again."""
        finalize_layerwise_reload(self.model, self.model_config)
        retie_output_head(self.model)

    def shutdown(self) -> None:
        """Do nothing: no connection outlives an update."""
