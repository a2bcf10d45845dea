"""Sender of weights to one vLLM server, by the server's routes and the backend that it was started with."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from ...foreign import read_json
from ..engines.base import EngineError
from ..engines.weight_stream import Weights, address_towards, offered
from .flags import START
from .sums import compare_sums

CHECKSUM_BYTES = 1 << 26
"""Size of the largest list of check sums."""
SLOWEST = 1e9
"""Bytes per second of the slowest network that NCCL is expected on."""


class WeightSender:
    """Sender of weights to a server that is paused; it is also a client for vLLM's trainer engines.

    Every method raises the errors of the server's `post`.

    Args:
        server: Client of the server, a `VLLMServer`.
        version: Version of the weights.
    """

    def __init__(self, server: Any, version: str) -> None:
        self.server = server
        self.version = version
        self.on_failure: Callable[[Exception], None] = lambda _: None  # of `update_weights`

    def stream(self, weights: Weights) -> None:
        """Offer weights over TCP, and have the server take them and compute with them.

        Raises:
            EngineError: if the server says that it has weights which it did not take.
        """
        limit = self.server.limit
        stalled = partial(self.server.give_up, f"it took no weights for {limit:.0f} s")
        taken = threading.Event()
        self.init_weight_transfer_engine({})
        self.start_weight_update()
        host = address_towards(urlsplit(self.server.url).hostname or "")
        with offered(weights, limit, host, stalled, taken.set) as where:
            self.update_weights(where)
            if not taken.wait(limit):
                raise EngineError(
                    f"Expected {self.server.url} to take the weights, but it only confirmed them. {START}"
                )
        self.finish_weight_update()

    def broadcast(self, weights: Weights, held: str, workers: int) -> None:
        """Broadcast weights by NCCL in the server's group, or in a new one if the server has left its group.

        Args:
            weights: Names and tensors on the CPU.
            held: Version that the server holds.
            workers: Number of the server's workers.

        Raises:
            EngineError: if NCCL fails.
            TimeoutError: if the server does not join or does not take the weights in time; it is given up.
        """
        from .nccl import NcclGroup

        server, groups = self.server, self.server.groups
        seconds = server.limit + sum(tensor.nbytes for _, tensor in weights) / SLOWEST
        group = groups.pop(server.url, None)
        try:
            if group is None or group.version != held:
                if group is not None:
                    group.close()
                server.post("/shutdown_weight_transfer_engine")
                group = NcclGroup(self, workers, server.limit)
            self.on_failure = group.fail
            group.send(self, weights, seconds)
        except TimeoutError:
            server.give_up(f"it took no weights for {seconds:.0f} s")
            raise
        group.version = self.version
        groups[server.url] = group

    def compare_sums(self, weights: Weights) -> None:
        """Compare check sums of the server with weights.

        Raises:
            ForeignDataError: if the reply is no list of check sums.
            EngineError: if some differ, or none can be compared; the server is left without a version.
        """
        action = {"action": "checksum"}
        reply = self.server.post("/weight_checker", action, self.server.timeout, most=CHECKSUM_BYTES)
        source = f"the reply of {self.server.url}/weight_checker"
        sums = read_json(dict[str, dict[str, str]], reply, source=source, remedy=START)
        compared, wrong = compare_sums(sums.get("checksums", {}), weights)
        if wrong or not compared:
            self.server.post("/update_weight_version", {"new_version": "unfinished"})
            raise EngineError(
                f"Expected {self.server.url} to hold the weights that were sent (rollout.engine.check_weights), but "
                f"of {compared} compared {len(wrong)} differ: {wrong[:3]}. Check the type of its weights (--dtype)."
            )

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Prepare the workers for transfers."""
        self.server.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin an update, after ending one that a killed trainer has left."""
        try:
            self.server.post("/start_weight_update")
        except httpx.HTTPStatusError:
            self.server.post("/finish_weight_update")
            self.server.post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Have the workers receive weights; returns when they have."""
        try:
            self.server.post("/update_weights", {"update_info": update_info}, self.server.timeout)
        except Exception as error:
            self.on_failure(error)
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Clear the cache of prefixes, and name the weights; the server is still paused."""
        self.server.post("/reset_prefix_cache")
        self.server.post("/finish_weight_update", {"weight_version": weight_version or self.version})
