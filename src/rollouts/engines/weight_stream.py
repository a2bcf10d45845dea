"""Weights over HTTP, from the trainer's memory into an engine's: no file, no CUDA, any number of receivers.

During an update, the trainer listens. It answers each receiver that sends the token of this update, first
with a line of JSON (names, types, shapes), and then with the bytes of every tensor in that order. Neither
side waits longer than a time limit for the next bytes.
"""

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor

from ...types.checks import dtype_name

Weights = Sequence[tuple[str, Tensor]]
CHUNK = 1 << 20
"""Bytes per send."""
FAMILIES = {True: socket.AF_INET6, False: socket.AF_INET}
"""Whether an address contains a colon → address family."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        weights: Weights,
        timeout: float,
        host: str,
        stalled: Callable[[], None],
        taken: Callable[[], None],
    ) -> None:
        self.weights = weights
        self.seconds = timeout
        self.stalled = stalled
        self.taken = taken
        self.moved = time.monotonic()
        self.token = secrets.token_hex(16)
        self.address_family = FAMILIES[":" in host]
        super().__init__((host, 0), _Handler)

    def service_actions(self) -> None:
        """Call `stalled` when no bytes have moved for too long; `serve_forever` calls this in every round."""
        if time.monotonic() - self.moved > self.seconds:
            self.stalled()

    def handle_error(self, *_: object) -> None:
        """Log nothing: a receiver that is gone fails at its own end, where the cause is known."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0  # seconds that a connection may stay silent before it has shown the token

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization", "")
        if not secrets.compare_digest(shown.encode(), f"Bearer {self.server.token}".encode()):
            self.send_error(401)
            return
        self.connection.settimeout(self.server.seconds)
        self.send_response(200)
        self.end_headers()
        weights = self.server.weights
        described = [(name, dtype_name(t.dtype), list(t.shape)) for name, t in weights]
        self.wfile.write(json.dumps(described).encode() + b"\n")
        for _, tensor in weights:
            content = bytes_of(tensor)
            for start in range(0, len(content), CHUNK):
                self.wfile.write(content[start : start + CHUNK])
                self.server.moved = time.monotonic()
        self.server.taken()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def offered(
    weights: Weights,
    timeout: float,
    host: str,
    stalled: Callable[[], None],
    taken: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Offer tensors while the block runs, and yield the arguments of `receive_weights`.

    `weights` are on the CPU and contiguous; `host` is the address of this machine to listen at. If no
    receiver has taken any bytes for `timeout` seconds, `stalled` is called, repeatedly, also after the
    last byte. `taken` is called when a receiver has got the last byte.
    """
    with _Server(weights, timeout, host, stalled, taken) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield {"host": host, "port": server.server_port, "token": server.token, "timeout": timeout}
        finally:
            server.shutdown()


def receive_weights(host: str, port: int, token: str, timeout: float) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) on the CPU as they arrive.

    Raises:
        OSError: if the sender refuses, is silent or ends too early.
    """
    with closing(HTTPConnection(host, port, timeout=timeout)) as connection:
        connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        if response.status != 200:
            raise ConnectionError(f"Expected weights from {host}:{port}, but it answered {response.status}.")
        for name, dtype, shape in json.loads(response.readline()):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            left = bytes_of(tensor)
            while left:
                count = response.readinto(left)
                if not count:
                    raise ConnectionError(
                        f"Expected {len(left)} more bytes of {name}, but the stream has ended."
                    )
                left = left[count:]
            yield name, tensor


def address_towards(host: str) -> str:
    """Return the address of this machine at which `host` can reach it."""
    with socket.socket(FAMILIES[":" in host], socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only chooses the route
        return str(probe.getsockname()[0])


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, of any type."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
