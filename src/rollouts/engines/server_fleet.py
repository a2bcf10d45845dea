"""The vLLM servers of one run: calls to each, which of them hold the current weights, and how they get them.

A request goes to another server at once when its connection breaks, and within 60 s when its server hangs: two failed
probes in a row end all requests to a server. While probes are answered, a request may take as long as `timeout`. A
server that hangs during a transfer of weights is given up within 60 s too; a moving transfer may take `timeout`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from torch import Tensor

from ...distributed import gather_objects, rank
from ...runs.preemption import asked_to_stop
from ...types import Completion
from .access import FILE, VARIABLE, shared_token
from .base import EngineError
from .weight_stream import address_towards, offered

LOG = logging.getLogger(__name__)
Json = dict[str, Any]
PROBE_EVERY, PROBE_SECONDS = 5.0, 15.0
"""Seconds between probes of a server that is sampling, and limit of a probe; the engine answers between two steps."""
CONTROL_SECONDS = 45.0
"""Time limit of calls that neither sample nor move weights, and of a pause in a transfer of weights."""
START = "Start the server with `python -m tagrpo.rollouts.engines.serve`."
HINTS = {
    401: f"Its token is another one: set {VARIABLE} to the same value for the server and all ranks, or copy {FILE}.",
    403: START,
    404: START,
}
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, EngineError)  # of calls to a server


def listed(entry: str) -> list[str]:
    """URLs of the servers that an entry of `rollout.engine.url` names now; OSError if there are none.

    >>> listed("http://10.0.0.7:8000/"), listed("dns:http://127.0.0.1:8000")
    (['http://10.0.0.7:8000'], ['http://127.0.0.1:8000'])
    """
    kind, _, rest = entry.partition(":")
    if kind == "file":
        lines = (line.partition("#")[0].strip(" /\t") for line in Path(rest).expanduser().read_text().splitlines())
        if urls := list(filter(None, lines)):
            return urls
        raise OSError("it lists no server")
    if kind == "dns":
        where = urlsplit(rest)
        found = socket.getaddrinfo(where.hostname, where.port or where.scheme, type=socket.SOCK_STREAM)
        ends = sorted((str(end[0]), int(end[1])) for *_, end in found)
        return [f"{where.scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in ends]
    return [entry.rstrip("/")]


class Server:
    """Calls to one server. They raise EngineError if it refuses, another of `FAILURES` if it is gone or fails."""

    def __init__(self, url: str, timeout: float, token: str) -> None:
        self.url = url
        self.timeout = timeout
        self.answers = False
        self.state = ""  # why it gets no more requests; empty while it holds the current weights
        self.context = 0
        self.under_way = 0
        self.sockets: dict[int, socket.socket] = {}  # by thread
        self.client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            # A connection for each request: kept ones are dead after a restart or an error of the server.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,  # no proxy between trainer and engine
        )

    def get(self, path: str) -> Json:
        """GET JSON within `PROBE_SECONDS`."""
        return self.post(path, None, PROBE_SECONDS, "GET")

    def post(self, path: str, body: Json | None = None, timeout: float | None = None, method: str = "POST") -> Json:
        """POST JSON and return the JSON answer, within `timeout` (default `CONTROL_SECONDS`) and `self.timeout`."""
        limits = httpx.Timeout(min(timeout or CONTROL_SECONDS, self.timeout), connect=10.0)
        trace = {"trace": self._note_socket}
        response = self.client.request(method, self.url + path, json=body, timeout=limits, extensions=trace)
        if 400 <= response.status_code < 500:
            raise EngineError(
                f"Expected {response.request.url} to accept the request, but it answered {response.status_code}: "
                f"{response.text[:500]}. {HINTS.get(response.status_code, '')}"
            )
        response.raise_for_status()
        try:
            return response.json() if response.content else {}
        except ValueError as error:
            raise EngineError(f"Expected JSON from {response.request.url}, but got: {response.text[:500]}") from error

    def _note_socket(self, event: str, details: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self.sockets[threading.get_ident()] = details["return_value"].get_extra_info("socket")

    def give_up(self, why: str) -> None:
        """Send it no more requests, and make those under way, in any thread, fail at once."""
        self.state = self.state or why
        for connection in list(self.sockets.values()):
            with suppress(OSError):  # it has been closed
                connection.shutdown(socket.SHUT_RDWR)

    def why(self, error: Exception) -> str:
        """Why a call failed; if the server was given up meanwhile, the reason for that comes first."""
        return ": ".join(filter(None, (self.state, type(error).__name__, str(error))))

    def exchange_weights(self, weights: Sequence[tuple[str, Tensor]], version: str) -> None:
        """Stop what is being sampled, let the workers receive the weights, forget cached prefixes.

        Until the weights are complete and the cache is empty, the server reports their version as "unfinished".
        """
        self.post("/update_weight_version", {"new_version": "unfinished"})
        self.post("/pause?mode=abort")
        limit, host = min(CONTROL_SECONDS, self.timeout), address_towards(urlsplit(self.url).hostname or "")
        with offered(weights, limit, host, partial(self.give_up, f"it took no weights for {limit:.0f} s")) as where:
            self.post("/collective_rpc", {"method": "take_weights", "kwargs": where}, self.timeout)
        self.post("/reset_prefix_cache")
        self.post("/update_weight_version", {"new_version": version})
        self.post("/resume")


class ServerFleet:
    """The servers, and the weights that they should hold. `sync` and `prepare` are collective.

    Rank 0 alone holds a copy of the weights, in host memory, and sends them; it alone looks the servers up, at each
    `prepare` and while none is ready. All ranks know which servers are ready.

    Args as for `VLLMServerEngine`; `retries` is how often a server that answers may refuse the weights.
    """

    def __init__(self, urls: Sequence[str], dtype: torch.dtype, timeout: float, retries: int, patience: float) -> None:
        self.token = gather_objects(shared_token())[0]
        self.entries = urls
        self.dtype = dtype
        self.timeout = timeout
        self.retries = retries
        self.patience = patience
        self.context = 0
        self.version = "none"  # of the weights; no other run has the same
        self.weights: dict[str, Tensor] = {}
        self.servers: dict[str, Server] = {}
        self.choosing = threading.Lock()

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Gather the weights on rank 0, tensor by tensor, and send them to every server."""
        self.version = gather_objects(uuid.uuid4().hex)[0]
        self.weights = {}
        for name, tensor in parameters:
            if rank() == 0:
                self.weights[name] = tensor.detach().to(self.dtype).to("cpu", copy=True).contiguous()
        self.prepare()

    def prepare(self) -> None:
        """Bring the current weights into every server that answers; all ranks learn which these are.

        Raises:
            EngineError: there is none, on every rank.
            SystemExit: with code 0, on every rank: rank 0 was asked to stop while it waited.
        """
        ready, failure = gather_objects(self._prepared() if rank() == 0 else ({}, ""))[0]
        if failure:
            raise EngineError(failure)
        if not ready:
            raise SystemExit(0)
        self.context = min(ready.values())
        first = rank() % len(ready)  # ranks with few requests begin with different servers
        self.servers = self._servers([*ready][first:] + [*ready][:first])

    def _servers(self, urls: Sequence[str]) -> dict[str, Server]:
        return {url: Server(url, self.timeout, self.token) for url in urls}

    def _prepared(self) -> tuple[dict[str, int], str]:
        """Send weights until a server holds them. Returns ready URL → context or the error; neither if told to stop."""
        began, failures, said = time.monotonic(), 0, ""
        while not asked_to_stop():
            urls: list[str] = []
            states: dict[str, str] = {}
            for entry in self.entries:
                try:
                    urls += listed(entry)
                except (OSError, ValueError) as error:  # the latter of a port that is no number
                    states[entry] = str(error)
            servers = self._servers(urls)
            with ThreadPoolExecutor(max(len(servers), 1)) as threads:
                states |= zip(servers, threads.map(partial(self._state, send=True), servers.values()), strict=True)
            if ready := {url: server.context for url, server in servers.items() if not states[url]}:
                return ready, ""
            found = "; ".join(f"{where}: {why}" for where, why in states.items())
            waited = time.monotonic() - began
            # A server that answers and fails is not about to start: it counts against `retries`, not `patience`.
            failures += any(server.answers for server in servers.values())
            if failures > self.retries or waited > self.patience:
                return {}, (
                    f"Expected a vLLM server that takes the weights, but after {failures} failed attempts "
                    f"(rollout.engine.retries) and {waited:.0f} s (rollout.engine.patience) there is none: "
                    f"{found}. {START} Check rollout.engine.url."
                )
            if found != said:
                said = found
                LOG.warning(
                    "Waiting up to %.0f s (rollout.engine.patience) for a vLLM server: %s", self.patience, found
                )
            time.sleep(min(1.0, self.patience / 10))
        return {}, ""

    def _state(self, server: Server, *, send: bool) -> str:
        """Why `server` does not hold the current weights, empty when it does; with `send` they are sent to it first."""
        try:
            held = server.get("/weight_info")["weight_version"]
            server.answers = True
            if send:
                if held != self.version:
                    server.exchange_weights(list(self.weights.items()), self.version)
                    held = self.version
                server.context = int(server.get("/v1/models")["data"][0]["max_model_len"])
        except (*FAILURES, LookupError, TypeError) as error:  # the latter two of a program that is no such server
            return server.why(error)
        return "" if held == self.version else f"it holds the weights {held}"

    def ask(self, path: str, body: Json, read: Callable[[Json], list[Completion]]) -> list[Completion]:
        """Ask the least busy server, and where that fails the next one; return what `read` makes of the answer.

        Raises:
            EngineError: every server has failed, or `timeout` seconds are over; the message has the reason of each.
        """
        failed: dict[str, str] = {}
        began = time.monotonic()
        while left := [server for server in self.servers.values() if not server.state and server.url not in failed]:
            with self.choosing:
                server = min(left, key=lambda server: server.under_way)
                server.under_way += 1
            try:
                return read(server.post(path, body, max(began + self.timeout - time.monotonic(), 0.001)))
            except FAILURES as error:
                failed[server.url] = server.why(error)
            finally:
                with self.choosing:
                    server.under_way -= 1
        raise EngineError("; ".join(f"{url}: {failed.get(url, server.state)}" for url, server in self.servers.items()))

    def watch(self, server: Server, done: threading.Event) -> None:
        """Until `done`, probe a server that is being asked, and give it up after two failures in a row."""
        before = ""
        while not done.wait(PROBE_EVERY):
            why = server.state or self._state(server, send=False)
            if before and why and not done.is_set():
                if not server.state:
                    LOG.warning("Going on without %s until the next sync: %s", server.url, why)
                server.give_up(why)
            before = why

    def close(self) -> None:
        """Drop connections and the copy of the weights; the servers go on."""
        for server in self.servers.values():
            server.give_up("the fleet is closed")
        self.weights = {}
