"""Weights over TCP, from the trainer's memory into an engine's: no file, no CUDA, any number of receivers.

The receiver connects to the sender and shows a secret. The sender answers with the length of a JSON text (eight bytes),
the text (names, types, shapes), and the bytes of every tensor in that order. Every wait has a limit, so that neither
side hangs on a dead peer.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

TOKEN_BYTES = 32
LENGTH_BYTES = 8
HANDSHAKE_SECONDS = 10.0
STRANGERS = 16
"""Connections without the token that are borne with at one time."""


class WeightSender:
    """Listens on a free port and sends the same tensors to each receiver that knows the token.

    Whoever connects has `HANDSHAKE_SECONDS` to show it, and holds up nobody else meanwhile.

    Args:
        weights: (name, tensor) on the CPU, contiguous.
        receivers: Connections to wait for.
        timeout: Seconds until all of them have connected, and that a chunk of bytes may take.
        host: Address to listen at, that of this machine at which the receivers can reach it.
    """

    def __init__(self, weights: Sequence[tuple[str, Tensor]], receivers: int, timeout: float, host: str) -> None:
        self.weights = weights
        self.receivers = receivers
        self.timeout = timeout
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self.listener = socket.create_server((host, 0), backlog=receivers + STRANGERS)
        self.connections: list[socket.socket] = []
        self.admitted: list[socket.socket] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def send(self) -> None:
        """Serve all receivers, then return.

        Raises:
            OSError: a receiver does not connect, disconnects, or stops reading.
        """
        deadline = time.monotonic() + self.timeout
        with self.listener, ThreadPoolExecutor(self.receivers + STRANGERS) as threads:
            sending = []
            try:
                while len(self.admitted) < self.receivers:
                    self.listener.settimeout(max(deadline - time.monotonic(), 0.001))
                    connection, _ = self.listener.accept()
                    self.connections.append(connection)
                    sending.append(threads.submit(self._answer, connection))
            except OSError:
                if len(self.admitted) < self.receivers:  # not the end of listening, which the last one brings about
                    self.close()
                    raise
        for future in sending:
            future.result()

    def _answer(self, connection: socket.socket) -> None:
        """Send the tensors if the connection shows the token, and drop it otherwise."""
        with connection:
            shown = bytearray(TOKEN_BYTES)
            with suppress(OSError):
                _receive_into(connection, memoryview(shown), time.monotonic() + HANDSHAKE_SECONDS)
            if not secrets.compare_digest(bytes(shown), self.token.encode()):
                return
            self.admitted.append(connection)
            if len(self.admitted) == self.receivers:
                _end(self.listener)
                for other in set(self.connections) - set(self.admitted):
                    _end(other)
            connection.settimeout(self.timeout)
            self._send_to(connection)

    def _send_to(self, connection: socket.socket) -> None:
        described = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in self.weights]
        text = json.dumps(described).encode()
        connection.sendall(len(text).to_bytes(LENGTH_BYTES) + text)
        for _, tensor in self.weights:
            connection.sendall(_bytes_of(tensor))

    def close(self) -> None:
        """Stop listening and sending; a `send` that is under way raises."""
        for end in (self.listener, *self.connections):
            _end(end)
            end.close()


def _end(connection: socket.socket) -> None:
    """Wake whoever waits at it."""
    with suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)


def receive_weights(host: str, port: int, token: str, timeout: float) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) as they arrive, on the CPU; one tensor exists at a time.

    Raises:
        OSError: the sender does not answer within `timeout` seconds, or the stream ends too early.
    """
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(token.encode())
        length = bytearray(LENGTH_BYTES)
        _receive_into(connection, memoryview(length))
        text = bytearray(int.from_bytes(length))
        _receive_into(connection, memoryview(text))
        for name, dtype, shape in json.loads(text):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _receive_into(connection, _bytes_of(tensor))
            yield name, tensor


def address_towards(host: str) -> str:
    """The address of this machine at which `host` can reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only chooses the route
        return str(probe.getsockname()[0])


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, of any type."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _receive_into(connection: socket.socket, target: memoryview, deadline: float | None = None) -> None:
    """Fill `target`, before the moment `deadline` of the monotonic clock if there is one."""
    done = 0
    while done < len(target):
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        count = connection.recv_into(target[done:])
        if not count:
            raise ConnectionError(f"Expected {len(target)} bytes of weights, but the stream ended after {done}.")
        done += count
