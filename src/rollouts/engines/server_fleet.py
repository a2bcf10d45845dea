"""The vLLM servers of one run: HTTP to each, which of them hold the current weights, and how they get them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from torch import Tensor

from ...distributed import gather_objects, rank
from ...runs.preemption import asked_to_stop
from .access import FILE, VARIABLE, shared_token
from .base import EngineError
from .weight_stream import address_towards, offered

LOG = logging.getLogger(__name__)
SAY_SECONDS = 5.0
"""Between two messages while there is no server."""
CONTROL_SECONDS = 60.0
"""Limit of calls that neither sample nor move weights."""
UNFINISHED = "unfinished"
"""Version of a server while weights are on their way into it."""
START = "Start the server with `python -m tagrpo.rollouts.engines.serve`."
HINTS = {
    401: f"Its token is another one: set {VARIABLE} to the same value for the server and all ranks, or copy {FILE}.",
    403: START,
    404: START,
}


class Server:
    """Calls to one server. They raise EngineError if it refuses, and httpx.HTTPError if it is gone, hangs or fails."""

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

    def get(self, path: str) -> dict[str, Any]:
        """GET JSON, within 10 seconds."""
        return _checked(self.client.get(self.url + path, timeout=10.0))

    def post(self, path: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """POST JSON, get JSON."""
        return _checked(self.client.post(self.url + path, json=body, timeout=timeout or self.timeout))

    def exchange_weights(self, weights: Sequence[tuple[str, Tensor]], version: str) -> None:
        """Stop what is being sampled, let the workers receive the weights, forget cached prefixes.

        Until all of it is done the server says that its weights are `UNFINISHED`.
        """
        limit = min(CONTROL_SECONDS, self.timeout)
        self.post("/update_weight_version", {"new_version": UNFINISHED}, limit)
        self.post("/pause?mode=abort", timeout=limit)
        self._start_update()
        with offered(weights, self.timeout, address_towards(urlsplit(self.url).hostname or "")) as where:
            self.post("/update_weights", {"update_info": where})
        self.post("/finish_weight_update")
        self.post("/reset_prefix_cache", timeout=limit)
        self.post("/update_weight_version", {"new_version": version}, limit)
        self.post("/resume", timeout=limit)

    def _start_update(self) -> None:
        try:
            self.post("/start_weight_update")
        except httpx.HTTPStatusError:
            # A trainer that died has left a session open. An update that names no sender fails, which ends it.
            with suppress(httpx.HTTPStatusError):
                self.post("/update_weights", {"update_info": {}})
            self.post("/start_weight_update")


def _checked(response: httpx.Response) -> dict[str, Any]:
    if 400 <= response.status_code < 500:
        raise EngineError(
            f"Expected {response.request.url} to accept the request, but it answered {response.status_code}: "
            f"{response.text[:500]}. {HINTS.get(response.status_code, '')}"
        )
    response.raise_for_status()
    return response.json() if response.content else {}


class ServerFleet:
    """Servers and the weights that they are to hold. `sync` and `prepare` are collective.

    Rank 0 alone holds a copy of the weights, in host memory, and sends them; all ranks know which servers are ready.

    Args as for `VLLMServerEngine`; `retries` is how often a server that answers may refuse the weights.
    """

    def __init__(self, urls: Sequence[str], dtype: torch.dtype, timeout: float, retries: int, patience: float) -> None:
        self.run, token = gather_objects((uuid.uuid4().hex, shared_token()))[0]
        self.servers = [Server(url.rstrip("/"), timeout, token) for url in urls]
        self.dtype = dtype
        self.retries = retries
        self.patience = patience
        self.syncs = 0
        self.context = 0
        self.weights: dict[str, Tensor] = {}
        self.ready: list[int] = []

    @property
    def version(self) -> str:
        """The name of the current weights on a server; no other run uses the same names."""
        return f"{self.run}-{self.syncs}"

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Gather the weights on rank 0, tensor by tensor, and send them to every server."""
        self.syncs += 1
        self.weights = {}
        for name, tensor in parameters:
            if rank() == 0:
                self.weights[name] = tensor.detach().to(self.dtype).to("cpu", copy=True).contiguous()
        self.prepare()

    def prepare(self) -> None:
        """Bring the current weights into every server that answers; all ranks learn which these are.

        Raises:
            EngineError: there is none, on every rank.
            SystemExit: with code 0, on every rank: the first one was asked to stop while it waited.
        """
        ready: list[int] = []
        context, failure = 0, ""
        if rank() == 0:
            try:
                ready = self._prepared()
                models = [self.servers[number].get("/v1/models") for number in ready]
                context = min((int(model["data"][0]["max_model_len"]) for model in models), default=0)
            except (httpx.HTTPError, EngineError) as error:
                failure = str(error)
        self.ready, self.context, failure = gather_objects((ready, context, failure))[0]
        if failure:
            raise EngineError(failure)
        if not self.ready:
            raise SystemExit(0)

    def _prepared(self) -> list[int]:
        """Numbers of the servers that hold the current weights, one at least; none when asked to stop."""
        said = began = time.monotonic()
        failures = 0
        while not asked_to_stop():
            with ThreadPoolExecutor(len(self.servers)) as threads:
                states = list(threads.map(self._bring_up_to_date, self.servers))
            if ready := [number for number, state in enumerate(states) if state is None]:
                return ready
            found = "; ".join(f"{server.url}: {state}" for server, state in zip(self.servers, states, strict=True))
            now = time.monotonic()
            # A server that answers and fails is not about to start: it counts against `retries`, not `patience`.
            failures += any(server.answers for server in self.servers)
            if failures > self.retries or now - began > self.patience:
                raise EngineError(
                    f"Expected a vLLM server that takes the weights, but after {failures} failed attempts and "
                    f"{now - began:.0f} s there is none: {found}. {START} Check rollout.engine.url."
                )
            if now - said > SAY_SECONDS:
                said = now
                waited = f"{now - began:.0f} of {self.patience:.0f} s (rollout.engine.patience)"
                LOG.warning("Waiting for a vLLM server, for %s: %s", waited, found)
            time.sleep(min(1.0, self.patience / 10))
        return []

    def _bring_up_to_date(self, server: Server) -> str | None:
        """None when `server` holds the current weights, else why it does not."""
        server.answers = False
        try:
            held = server.get("/weight_info")["weight_version"]
            server.answers = True
            if held != self.version:
                server.exchange_weights(list(self.weights.items()), self.version)
        except (httpx.HTTPError, OSError, EngineError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def close(self) -> None:
        """Drop connections and the copy of the weights; the servers go on."""
        for server in self.servers:
            server.client.close()
        self.weights = {}
