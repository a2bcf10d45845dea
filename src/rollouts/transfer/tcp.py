"""Receiver of `engines.weight_stream`, a backend of vLLM's weight transfer; imported in vLLM's workers alone."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ..engines.vllm import retie_output_head
from ..engines.weight_stream import receive_weights


@dataclass
class TcpUpdateInfo(WeightTransferUpdateInfo):
    """Arguments of `receive_weights`."""

    host: str
    port: int
    token: str
    timeout: float


class TcpWeightTransferEngine(WeightTransferEngine[WeightTransferInitInfo, TcpUpdateInfo]):
    """Receiver of the weights that `weight_stream.offered` offers, one tensor at a time.

    Each update opens a connection of its own, so that there is nothing to prepare and to close.
    """

    init_info_cls = WeightTransferInitInfo
    update_info_cls = TcpUpdateInfo

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Do nothing."""

    def shutdown(self) -> None:
        """Do nothing."""

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
        try:
            self.model.load_weights(receive_weights(**asdict(update_info)))  # type: ignore[operator]
        except Exception:
            # vLLM counts the parts of a layer as they arrive. It would complete a layer of this stream with
            # parts of the next stream, and fail on the rest.
            self.finish_weight_update()
            raise

    def finish_weight_update(self) -> None:
        """Let the model compute with the new weights, and tie the output head again."""
        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]
        retie_output_head(self.model)
