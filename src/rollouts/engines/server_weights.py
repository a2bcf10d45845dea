"""HTTP to one vLLM server, and the two ways in which its weights are exchanged, both over vLLM's weight transfer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from torch import Tensor

from .access import FILE, VARIABLE
from .base import EngineError
from .weight_stream import address_towards, offered

UNFINISHED = "unfinished"
"""Version of a server while weights are on their way into it."""
CONTROL_SECONDS = 60.0
"""Limit of calls that neither sample nor move weights."""
HINTS = {
    401: f"Its token is another one: set {VARIABLE} to the same value for the server and all ranks, or copy {FILE}.",
    403: "Start the server with `python -m tagrpo.rollouts.engines.serve`.",
    404: "Start the server with `python -m tagrpo.rollouts.engines.serve`.",
}

Weights = Sequence[tuple[str, Tensor]]


class Server:
    """Calls to one server; also a `VLLMWeightSyncClient` of vLLM.

    Raises (all methods):
        EngineError: it refuses the request, and would again.
        httpx.HTTPError: it is gone, hangs, or has failed.
    """

    def __init__(self, url: str, timeout: float, token: str) -> None:
        self.url = url
        self.timeout = timeout
        self.answers = False
        self.client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout, connect=10.0),
            # A connection for each request: kept ones are dead after a restart or an error of the server.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,  # no proxy between trainer and engine
        )

    @property
    def host(self) -> str:
        """Where it runs."""
        return urlsplit(self.url).hostname or ""

    @property
    def context(self) -> int:
        """Tokens of the longest prompt with its response."""
        return int(self.get("/v1/models")["data"][0]["max_model_len"])

    def get(self, path: str, timeout: float = 10.0) -> dict[str, Any]:
        """GET JSON."""
        return self._checked(self.client.get(self.url + path, timeout=timeout))

    def post(self, path: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """POST JSON, get JSON."""
        return self._checked(self.client.post(self.url + path, json=body, timeout=timeout or self.timeout))

    @staticmethod
    def _checked(response: httpx.Response) -> dict[str, Any]:
        if 400 <= response.status_code < 500:
            hint = HINTS.get(response.status_code, "")
            raise EngineError(
                f"Expected {response.request.url} to accept the request, but it answered {response.status_code}: "
                f"{response.text[:500]}. {hint}"
            )
        response.raise_for_status()
        return response.json() if response.content else {}

    @property
    def version(self) -> str:
        """The server's name for the weights that it holds."""
        return str(self.get("/weight_info")["weight_version"])

    def exchange_weights(self, transfer: Callable[[Server, Weights], None], weights: Weights, version: str) -> None:
        """Stop what is being sampled, exchange the weights, forget cached prefixes.

        Until all of it is done the server says that its weights are `UNFINISHED`.
        """
        limit = min(CONTROL_SECONDS, self.timeout)
        self.post("/update_weight_version", {"new_version": UNFINISHED}, limit)
        self.post("/pause?mode=abort", timeout=limit)
        transfer(self, weights)
        self.post("/reset_prefix_cache", timeout=limit)
        self.post("/update_weight_version", {"new_version": version}, limit)
        self.post("/resume", timeout=limit)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the workers meet the sender."""
        self.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Make the workers ready to load."""
        try:
            self.post("/start_weight_update")
        except httpx.HTTPStatusError:
            # A trainer that died has left a session open. An update that names no sender fails, which ends it.
            with suppress(httpx.HTTPStatusError):
                self.post("/update_weights", {"update_info": {}})
            self.post("/start_weight_update")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Let the workers receive and load; returns when they have."""
        self.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Make the workers ready to sample."""
        self.post("/finish_weight_update", {"weight_version": weight_version} if weight_version else None)


def stream_transfer(server: Server, weights: Weights) -> None:
    """Offer the weights to the workers of the server (backend `stream` of `vllm_worker`) until all have loaded them."""
    server.start_weight_update()
    with offered(weights, server.timeout, address_towards(server.host)) as where:
        server.update_weights(where)
    server.finish_weight_update()


def nccl_transfer(server: Server, weights: Weights) -> None:
    """Send from this process's GPU to those of the server (vLLM's own backend `nccl`).

    Each transfer makes a group of its own, which takes about a second, so that a restarted server finds no dead one.

    Raises:
        EngineError: the transfer hangs. NCCL can't be interrupted: its thread stays behind.
    """
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    device = torch.cuda.current_device()

    class Source(WeightSource):
        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                yield name, tensor.to(device)

    def send() -> None:
        torch.cuda.set_device(device)
        host = address_towards(server.host)
        info = NCCLTrainerInitInfo(
            master_address=host,
            master_port=_free_port(host),
            world_size=1 + int(server.get("/get_world_size")["world_size"]),
            rank=0,
        )
        engine = WeightTransferTrainerFactory.trainer_init(info, client=server, source=Source())

        def close() -> None:
            engine.shutdown()
            server.post("/shutdown_weight_transfer_engine", timeout=CONTROL_SECONDS)

        try:
            engine.send_weights()
        except BaseException:
            with suppress(Exception):  # it would take the place of the cause
                close()
            raise
        close()

    _within(server.timeout, send, f"NCCL transfer of weights to {server.url}")


def _within(seconds: float, task: Callable[[], None], name: str) -> None:
    """Run `task` in a daemon thread, which no exit of the interpreter waits for."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            task()
            outcome.set_result(None)
        except BaseException as error:  # raised where the caller waits
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        outcome.result(seconds)
    except TimeoutError as error:
        raise EngineError(
            f"Expected the {name} to end within {seconds:.0f} s (rollout.engine.timeout), but it hangs. Look at the "
            "server's log, or use rollout.engine.transfer=stream."
        ) from error


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])
