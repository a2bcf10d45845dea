"""The vLLM servers of one run: which of them hold the current weights, and how they get them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import torch
from torch import Tensor

from ...distributed import gather_objects, rank
from ...modules.policy.adapters import A, is_part
from ...runs.preemption import asked_to_stop
from .access import shared_token
from .base import EngineError
from .server_weights import Server

LOG = logging.getLogger(__name__)
SAY_SECONDS = 5.0
"""Between two messages while there is no server."""


class ServerFleet:
    """Servers and the weights that they are to hold. `sync` and `prepare` are collective.

    Rank 0 alone holds a copy of the weights, in host memory, and sends them; all ranks know which servers are ready.

    Args as for `VLLMServerEngine`; `retries` is how often a server that answers may refuse the weights.
    """

    def __init__(
        self,
        urls: Sequence[str],
        dtype: torch.dtype,
        timeout: float,
        retries: int,
        patience: float,
    ) -> None:
        self.run, token = gather_objects((uuid.uuid4().hex, shared_token()))[0]
        self.servers = [Server(url.rstrip("/"), timeout, token) for url in urls]
        self.dtype = dtype
        self.retries = retries
        self.patience = patience
        self.syncs = 0
        self.base = 0
        self.context = 0
        self.weights: dict[str, Tensor] = {}
        self.ready: list[int] = []

    @property
    def version(self) -> str:
        """The name of the current weights on a server; no other run uses the same names."""
        return f"{self.base_version}{self.syncs}"

    @property
    def base_version(self) -> str:
        """How the versions of servers begin that need the adapters alone, if there are any."""
        return f"{self.run}-{self.base}-"

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Gather the weights, or the adapters alone, on rank 0, tensor by tensor, and send them to every server."""
        self.syncs += 1
        new: dict[str, Tensor] = {}
        for name, tensor in parameters:
            if not is_part(name) and self.base != self.syncs:
                self.base, self.weights = self.syncs, {}
            if rank() == 0:
                # What the servers merge is rounded after that, not before, unless nothing is lost by it.
                merged_there = is_part(name) or name + A in new
                as_sent = _if_exact(tensor.detach(), self.dtype) if merged_there else tensor.detach().to(self.dtype)
                new[name] = as_sent.to("cpu", copy=True).contiguous()
        self.weights |= new
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
                context = min((self.servers[number].context for number in ready), default=0)
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
        deadline = time.monotonic() + self.patience
        failures = 0
        while not asked_to_stop():
            with ThreadPoolExecutor(len(self.servers)) as threads:
                states = list(threads.map(self._bring_up_to_date, self.servers))
            ready = [number for number, state in enumerate(states) if state is None]
            if ready:
                return ready
            # A server that answers and fails is not about to start: it counts against `retries`, not `patience`.
            failures += any(server.answers for server in self.servers)
            if failures > self.retries or time.monotonic() > deadline:
                raise EngineError(
                    f"Expected a vLLM server that takes the weights, but after {failures} failed attempts and "
                    f"{self.patience - deadline + time.monotonic():.0f} s there is none: "
                    + "; ".join(f"{s.url}: {state}" for s, state in zip(self.servers, states, strict=True))
                    + ". Start one with `python -m tagrpo.rollouts.engines.serve` and check rollout.engine.url."
                )
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                LOG.warning(
                    "Waiting for a vLLM server, for %.0f of %.0f s (rollout.engine.patience): %s",
                    said - began,
                    self.patience,
                    "; ".join(f"{s.url}: {state}" for s, state in zip(self.servers, states, strict=True)),
                )
            time.sleep(min(1.0, self.patience / 10))
        return []

    def _bring_up_to_date(self, server: Server) -> str | None:
        """None when `server` holds the current weights, else why it does not."""
        server.answers = False
        try:
            held = server.version
            server.answers = True
            if held != self.version:
                alone = held.startswith(self.base_version)
                sent = [(name, t) for name, t in self.weights.items() if is_part(name) or not alone]
                server.exchange_weights(sent, self.version)
        except (httpx.HTTPError, OSError, EngineError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def close(self) -> None:
        """Drop connections and the copy of the weights; the servers go on."""
        for server in self.servers:
            server.client.close()
        self.weights = {}


def _if_exact(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in another type if that changes no number, else as it is."""
    other = tensor.to(dtype)
    return other if torch.equal(other.to(tensor.dtype), tensor) else tensor
