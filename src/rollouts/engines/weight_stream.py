"""Weights over TCP, from the trainer's memory into an engine's: no file, no CUDA, any number of receivers.

The receiver connects to the sender and shows a secret. The sender answers with the length of a JSON text (eight bytes),
the text (names, types, shapes), and the bytes of every tensor in that order. Every wait has a limit, so that neither
side hangs on a dead peer.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

TOKEN_BYTES = 32
LENGTH_BYTES = 8


class WeightSender:
    """Listens on a free port and sends the same tensors to each receiver that knows the token.

    Args:
        weights: (name, tensor) on the CPU, contiguous.
        receivers: Connections to wait for.
        timeout: Seconds that a connection, or a chunk of bytes, may take.
    """

    def __init__(self, weights: Sequence[tuple[str, Tensor]], receivers: int, timeout: float) -> None:
        self.weights = weights
        self.receivers = receivers
        self.timeout = timeout
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self.listener = socket.create_server(("", 0), backlog=receivers)
        self.listener.settimeout(timeout)
        self.connections: list[socket.socket] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def send(self) -> None:
        """Serve all receivers, then return.

        Raises:
            OSError: a receiver does not connect, disconnects, or stops reading.
        """
        with self.listener, ThreadPoolExecutor(self.receivers) as threads:
            waiting = [threads.submit(self._serve, self._accept()) for _ in range(self.receivers)]
            for future in waiting:
                future.result()

    def _accept(self) -> socket.socket:
        """The next connection that shows the token; others are dropped."""
        while True:
            connection, _ = self.listener.accept()
            connection.settimeout(self.timeout)
            shown = bytearray(TOKEN_BYTES)
            try:
                _receive_into(connection, memoryview(shown))
            except OSError:
                shown = bytearray()
            if secrets.compare_digest(bytes(shown), self.token.encode()):
                self.connections.append(connection)
                return connection
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        described = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in self.weights]
        with connection:
            text = json.dumps(described).encode()
            connection.sendall(len(text).to_bytes(LENGTH_BYTES) + text)
            for _, tensor in self.weights:
                connection.sendall(_bytes_of(tensor))

    def close(self) -> None:
        """Stop listening and sending; a `send` that is under way raises."""
        for end in (self.listener, *self.connections):
            with suppress(OSError):  # not connected any more
                end.shutdown(socket.SHUT_RDWR)
            end.close()


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


def _receive_into(connection: socket.socket, target: memoryview) -> None:
    """Fill `target`."""
    done = 0
    while done < len(target):
        count = connection.recv_into(target[done:])
        if not count:
            raise ConnectionError(f"Expected {len(target)} bytes of weights, but the stream ended after {done}.")
        done += count
