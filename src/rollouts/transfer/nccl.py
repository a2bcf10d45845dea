"""Sender of vLLM's `nccl` backend: the trainer's first rank and the workers of one server form a group.

Each server has a group of its own. In a common group, one dead server would leave the workers of all others
waiting in a broadcast that nothing can end from outside. The group is made from a unique id, which servers
get by their guarded route: vLLM's other way, a store at an open port, unpickles what anyone writes there.
"""

import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, VLLMWeightSyncClient, WeightSource
from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferInitInfo,
)

from ..engines.base import EngineError
from ..engines.weight_stream import Weights


def own_device() -> torch.device:
    """Return the GPU of this process."""
    return torch.device("cuda", torch.cuda.current_device())


class HostSource(WeightSource):
    """Weights in host memory, copied to a device one tensor at a time.

    The first rank keeps full tensors of the sharded parameters there: a server that comes back during sampling
    gets weights when no other rank takes part.

    Args:
        weights: Names and tensors on the CPU.
        device: Device to copy to.
    """

    def __init__(self, weights: Weights, device: torch.device) -> None:
        self.weights = weights
        self.device = device

    def metadata(self) -> list[ParamMeta]:
        """Return name, type and shape of each tensor."""
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.weights]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.weights:
            yield name, tensor.to(self.device, non_blocking=True)


class NcclGroup:
    """Group of the trainer's first rank and the workers of one server, over which weights are broadcast.

    Calls of NCCL whose peer is gone never return: they run in daemon threads, and a failure aborts the group.

    Args:
        server: Client of the server.
        workers: Number of the server's workers.
        seconds: Time limit for the group to form.

    Raises:
        EngineError: if NCCL fails.
        TimeoutError: if the group is not complete in time.
        Exception: if a call of the server fails.
    """

    def __init__(self, server: VLLMWeightSyncClient, workers: int, seconds: float) -> None:
        self.version = ""  # of the weights that the server got last over this group
        self.device = own_device()
        unique_id = torch.cuda.nccl.unique_id()
        info = NCCLWeightTransferInitInfo(
            rank_offset=1,
            world_size=workers + 1,
            nccl_unique_id_b64=base64.b64encode(unique_id).decode(),
        )
        source = HostSource([], self.device)
        self.engine = NCCLTrainerWeightTransferEngine(client=server, source=source, packed=False)

        def join() -> None:
            group = uid_init_process_group(unique_id, 0, workers + 1, self.device)
            self.engine.model_update_group = group

        self._run(join, seconds, partial(server.init_weight_transfer_engine, worker_init_payload(info)))

    def send(self, server: VLLMWeightSyncClient, weights: Weights, seconds: float) -> None:
        """Broadcast weights, and have the server, by its present client, compute with them.

        The client calls `fail` if its `update_weights` fails: else the broadcast would wait for the server.

        Raises:
            EngineError: if NCCL fails.
            TimeoutError: if the transfer takes longer than `seconds`.
            Exception: if a call of the server fails.
        """
        self.engine.client = server
        self.engine.source = HostSource(weights, self.device)
        self._run(self.engine.send_weights, seconds)

    def close(self) -> None:
        """Abort the group: calls of NCCL that wait for a peer end."""
        self.engine.shutdown()

    def fail(self, error: Exception) -> None:
        """End the call that is running with an error."""
        with suppress(InvalidStateError):  # it has ended, or something else failed before
            self.outcome.set_exception(error)

    def _run(self, task: Callable[[], None], seconds: float, *beside: Callable[[], None]) -> None:
        """Run a task until it ends, it or a call `beside` it fails, or the time is up."""
        self.outcome: Future[None] = Future()

        def run(job: Callable[[], None]) -> None:
            # With a stream of its own, a broadcast to a dead server holds up no other work.
            with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream(self.device)):
                try:
                    job()
                    if job is task:
                        self.outcome.set_result(None)
                except Exception as error:
                    self.fail(error)

        for job in (task, *beside):
            threading.Thread(target=run, args=(job,), daemon=True).start()
        try:
            self.outcome.result(seconds)
        except Exception as error:
            self.close()
            if isinstance(error, RuntimeError) and not isinstance(error, EngineError):
                raise EngineError(f"The group of NCCL has failed: {error}") from error
            raise
