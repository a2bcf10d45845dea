"""One vLLM server: where it is, calls to it, and how it gets weights.

A server that hangs during a transfer of weights is given up within 60 s; a moving transfer may take `timeout`.
"""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from .access import FILE, VARIABLE
from .base import EngineError
from .weight_stream import Weights, address_towards, offered

Json = dict[str, Any]
PROBE_SECONDS = 15.0
"""Time limit of a probe; the engine answers between two steps."""
CONTROL_SECONDS = 45.0
"""Time limit of calls that neither sample nor move weights, and of a pause in a transfer of weights."""
START = "Start the server with `python -m tagrpo.rollouts.engines.serve`."
TOKEN = f"Its token is another one: set {VARIABLE} to the same value for the server and all ranks, or copy {FILE}."
HINTS = {401: TOKEN, 403: START, 404: START}
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

    def failure_to_hold(self, version: str, send: Weights | None = None) -> str:
        """Why it does not hold the weights `version`, empty when it does; the weights `send` are sent to it first."""
        try:
            held = self.get("/weight_info")["weight_version"]
            self.answers = True
            if send is not None:
                if held != version:
                    self.exchange_weights(send, version)
                    held = version
                self.context = int(self.get("/v1/models")["data"][0]["max_model_len"])
        except (*FAILURES, LookupError, TypeError) as error:  # the latter two of a program that is no such server
            return self.why(error)
        return "" if held == version else f"it holds the weights {held}"

    def exchange_weights(self, weights: Weights, version: str) -> None:
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
