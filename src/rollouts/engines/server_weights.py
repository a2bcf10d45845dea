"""HTTP to one vLLM server, and how its weights are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
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


class Server:
    """Calls to one server.

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

    def exchange_weights(self, weights: Sequence[tuple[str, Tensor]], version: str) -> None:
        """Stop what is being sampled, let the workers receive the weights, forget cached prefixes.

        Until all of it is done the server says that its weights are `UNFINISHED`.
        """
        limit = min(CONTROL_SECONDS, self.timeout)
        self.post("/update_weight_version", {"new_version": UNFINISHED}, limit)
        self.post("/pause?mode=abort", timeout=limit)
        self._start_update()
        with offered(weights, self.timeout, address_towards(self.host)) as where:
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
