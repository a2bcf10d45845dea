"""The other end of `workers.WorkerPool`: a script that compares untrusted answers in replaceable children.

Run as `python sandbox.py COMPARE CPU_SECONDS MEMORY_BYTES`, where COMPARE is a Python file that defines
`compare(job)`. The supervisor loads that file once, forks a child, and answers each line of JSON jobs on its
standard input with a line of `[value, failure]` pairs. The kernel ends a child that uses up its time; a new
fork of the warm supervisor takes over at the next job: that costs milliseconds, not another interpreter.

Standard library only, and never imported as a part of the package, whose vocabulary needs torch.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

WALL_FACTOR = 10
"""Wall seconds per CPU second: ends a comparison that waits without computing, spares one on a crowded machine."""
POLL_SECONDS = 0.05
"""How often the memory of a busy child is read."""


def serve(compare: Callable[[Any], Any], cpu_seconds: float, memory_bytes: int, reply_to: int) -> None:
    """Answer batches until standard input ends."""
    child: Child | None = None
    try:
        for line in sys.stdin.buffer:
            jobs = json.loads(line)
            outcomes: list[Any] = []
            if child and child.has_ended():  # killed from outside: no job is to blame
                child.end()
                child = None
            while len(outcomes) < len(jobs):
                child = child or Child(compare, cpu_seconds, memory_bytes)
                outcomes += child.compare(jobs[len(outcomes) :])
                if len(outcomes) < len(jobs):
                    outcomes.append([None, child.end()])
                    child = None
            _write(reply_to, outcomes)
            if child and child.resident_bytes() > memory_bytes // 2:
                child.end()  # what earlier batches left behind must not count against the next
                child = None
    finally:
        if child:
            child.end()


class Child:
    """A fork of this process that compares job after job, under the limits, until one of them ends it."""

    def __init__(self, compare: Callable[[Any], Any], cpu_seconds: float, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._too_large = False
        self._channel, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._channel.close()
            _compare_and_exit(compare, theirs.fileno(), cpu_seconds, memory_bytes)
        theirs.close()

    def compare(self, jobs: list[Any]) -> list[Any]:
        """The outcomes of these jobs; of the first few when one of them ended the child."""
        try:
            self._channel.sendall(json.dumps(jobs).encode() + b"\n")
        except OSError:
            return []
        received = bytearray()
        with contextlib.suppress(ConnectionError):  # the child has ended
            while received.count(b"\n") < len(jobs):
                if select.select([self._channel], [], [], POLL_SECONDS)[0]:
                    chunk = self._channel.recv(1 << 16)
                    if not chunk:
                        break
                    received += chunk
                elif not self._too_large and self.resident_bytes() > self.memory_bytes:
                    self._too_large = True
                    os.kill(self.pid, signal.SIGKILL)
        return [json.loads(line) for line in received[: received.rfind(b"\n") + 1].splitlines()]

    def has_ended(self) -> bool:
        """Whether an idle child is gone: it says nothing unasked, so what there is to read is its end."""
        return bool(select.select([self._channel], [], [], 0)[0])

    def resident_bytes(self) -> int:
        """Resident memory; 0 where the system does not tell, so that RLIMIT_AS alone bounds it."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return 0

    def end(self) -> str:
        """End the child if it has not ended, and say what would have ended it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if self._too_large:
            return "memory"
        timed_out = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
        return "timeout" if timed_out else "crash"


def _compare_and_exit(compare: Callable[[Any], Any], channel: int, cpu_seconds: float, memory_bytes: int) -> NoReturn:
    for name in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)  # which ends the process, whatever the file's imports installed
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 * memory_bytes, hard))  # for growth faster than the polling
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        for line in os.fdopen(channel, "rb", closefd=False):
            for job in json.loads(line):
                signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
                signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * cpu_seconds)
                outcome: tuple[Any, str | None]
                try:
                    outcome = (compare(job), None)
                except MemoryError:
                    outcome = (None, "memory")
                except Exception as error:  # untrusted input: whatever it provokes is its own failure
                    outcome = (None, type(error).__name__)
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                _write(channel, outcome)
    finally:
        os._exit(0)


def _write(descriptor: int, message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _exit_once(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the end of the child
    sys.exit(0)


def main(file: str, cpu_seconds: str, memory_bytes: str) -> None:
    """Load the file and serve its `compare`."""
    reply_to = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not reach the protocol
    signal.signal(signal.SIGTERM, _exit_once)
    compare = runpy.run_path(file)["compare"]
    gc.collect()
    gc.freeze()  # collections in a child would otherwise copy every page of this process
    serve(compare, float(cpu_seconds), int(memory_bytes), reply_to)


if __name__ == "__main__":
    main(*sys.argv[1:])
