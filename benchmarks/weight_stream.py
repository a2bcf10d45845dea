"""GB/s of weights over TCP to one and to two servers on this machine, beside a plain socket, in one run.

    python benchmarks/weight_stream.py --gigabytes 0.5 2 --rounds 5 --json benchmarks/results/weight_stream.json

Each receiver is a process of its own, as a server is. The stream is that of `rollouts.engines.weight_stream`; the
plain socket sends the same bytes in the same chunks, and its receiver reads them into tensors of the same sizes. In
every round each way sends once, one after the other. Seconds are wall seconds from the start until the last receiver has
the last byte. Ratios are medians over rounds of a way's seconds within one round.
"""

import argparse
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from workload import report

from tagrpo.rollouts.engines.weight_stream import CHUNK, Weights, bytes_of, offered, receive_weights

Where = dict[str, Any]


def made_weights(gigabytes: float, tensors: int) -> Weights:
    """Equal float32 tensors of this size together."""
    size = int(gigabytes * 1e9 / 4 / tensors)
    return [(f"layer.{i}", torch.full((size,), float(i))) for i in range(tensors)]


def take_stream(where: Where) -> int:
    """Receive as a server does, and keep nothing; returns the number of bytes."""
    return sum(tensor.nbytes for _, tensor in receive_weights(**where))


def take_plain(where: Where) -> int:
    """Receive what a plain socket sends, into new tensors as well."""
    total = 0
    with socket.create_connection((where["host"], where["port"])) as connection:
        for _ in range(where["tensors"]):
            left = bytes_of(torch.empty(where["size"], dtype=torch.uint8))
            while left:
                count = connection.recv_into(left)
                left, total = left[count:], total + count
    return total


TAKE: dict[str, Callable[[Where], int]] = {"stream": take_stream, "plain": take_plain}


def receiver(pipe: Connection) -> None:
    """Receive whenever told to, until told to end."""
    while (job := pipe.recv()) is not None:
        way, where = job
        pipe.send(TAKE[way](where))


def over_stream(weights: Weights, pipes: Sequence[Connection]) -> list[int]:
    """Send weights to every receiver at once; returns the bytes of each."""
    with offered(weights, 60.0, "127.0.0.1", lambda: None) as where:
        for pipe in pipes:
            pipe.send(("stream", where))
        return [pipe.recv() for pipe in pipes]


def over_socket(weights: Weights, pipes: Sequence[Connection]) -> list[int]:
    """Send the same bytes over plain sockets, a thread for each."""

    def send(connection: socket.socket) -> None:
        with connection:
            for _, tensor in weights:
                content = bytes_of(tensor)
                for start in range(0, len(content), CHUNK):
                    connection.sendall(content[start : start + CHUNK])

    with socket.create_server(("127.0.0.1", 0)) as server:
        shape = {"tensors": len(weights), "size": weights[0][1].nbytes}
        for pipe in pipes:
            pipe.send(("plain", {"host": "127.0.0.1", "port": server.getsockname()[1], **shape}))
        for _ in pipes:
            threading.Thread(target=send, args=(server.accept()[0],)).start()
        return [pipe.recv() for pipe in pipes]


SEND = {"plain": over_socket, "stream": over_stream}


def measured(
    gigabytes: float, tensors: int, rounds: int, pipes: Sequence[Connection]
) -> list[dict[str, Any]]:
    """A row for each way and number of receivers."""
    weights = made_weights(gigabytes, tensors)
    size = sum(tensor.nbytes for _, tensor in weights)
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds + 1):
        for receivers in (1, len(pipes)):
            for way, send in SEND.items():
                began = time.perf_counter()
                taken = send(weights, pipes[:receivers])
                seconds.setdefault((way, receivers), []).append(time.perf_counter() - began)
                assert taken == [size] * receivers
    rows = []
    for (way, receivers), times in seconds.items():
        beside = {
            "of_plain": seconds["plain", receivers],
            "of_one_receiver": seconds[way, 1],
        }
        ratios = {
            name: median(t / other for t, other in zip(times[1:], others[1:], strict=True))
            for name, others in beside.items()
        }
        rate = size / 1e9 / median(times[1:])
        rows.append(
            {"gigabytes": gigabytes, "way": way, "receivers": receivers, "gb_per_s_each": rate, **ratios}
        )
    return rows


def compared(sizes: Sequence[float], tensors: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of all sizes in GB, with two receivers that are forked before there are threads."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=receiver, args=(theirs,), daemon=True).start()
        pipes.append(ours)
    rows: list[dict[str, Any]] = []
    for gigabytes in sizes:
        rows += measured(gigabytes, tensors, rounds, pipes)
    for pipe in pipes:
        pipe.send(None)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms up")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = compared(arguments.gigabytes, arguments.tensors, arguments.rounds)
    report({"rows": rows}, arguments)


if __name__ == "__main__":
    main()
