"""Verifiers that score in the background, and a pool of processes that compare untrusted answers within bounds."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..types import Score, Verifier
from .extraction import Reference

_SANDBOX = Path(__file__).with_name("sandbox.py")
_BATCH = 64
"""Jobs per message at most: enough that messages cost nothing, few enough that workers share evenly."""
_Batch = tuple[Sequence[Any], Sequence[Future["Outcome"]]]


class BackgroundVerifier(Verifier):
    """Scores through `score_async` and `close`, which derived classes define. As a context it ends its workers."""

    in_background = True

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        return self.score_batch([response], [reference])[0]

    def score_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Score each response against the reference answers in the same place."""
        return self.score_async(responses, references)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Outcome(NamedTuple):
    """The result of one job."""

    value: Any
    """The return value of `compare(job)`; None when it failed."""
    failure: str | None
    """`timeout`, `memory`, `crash` or the name of the exception it raised; None when it returned."""


class WorkerPool:
    """Runs `compare(job)` of a Python file on batches of jobs, in `workers` processes.

    Each worker is an interpreter of its own (`sandbox.py`) that compares in forks of itself, so that the pool works
    from any thread, beside CUDA and under any launcher. Limits hold per job: CPU time (so that a busy machine does not
    change outcomes), ten times as much wall time, and memory; a job that exceeds one leaves those beside it alone.

    Workers start with the first jobs. `close` ends them, as does the end of the interpreter or of the pool
    object; should this process be killed, they end after their current batch. A worker that was killed from
    outside is replaced and its batch repeated, once. A forked copy of this process starts workers of its own.

    Args:
        compare: File that defines `compare(job)`, for jobs and values that JSON can carry.
        workers: Processes.
        cpu_seconds: CPU time that one job may use.
        memory_bytes: Memory of its own that a fork may take (RLIMIT_DATA; elsewhere than on Linux it may bound less).
    """

    def __init__(self, compare: Path, workers: int, cpu_seconds: float, memory_bytes: int) -> None:
        if workers < 1 or cpu_seconds <= 0 or memory_bytes <= 0:
            raise ValueError(
                "Expected at least one worker and positive limits, but got "
                f"workers={workers}, cpu_seconds={cpu_seconds}, memory_bytes={memory_bytes}."
            )
        self.workers = workers
        self._command = [sys.executable, "-P", str(_SANDBOX), str(compare), str(cpu_seconds), str(memory_bytes)]
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def submit(self, jobs: Sequence[Any]) -> list[Future[Outcome]]:
        """The outcomes of these jobs, in their order; returns at once.

        A future raises RuntimeError when workers do not start (for want of a dependency, say) or keep dying,
        CancelledError when the pool is closed before its job is done.
        """
        size = max(1, min(_BATCH, -(-len(jobs) // self.workers)))
        futures: list[Future[Outcome]] = [Future() for _ in jobs]
        with self._lock:
            if jobs and (self._running is None or self._running.pid != os.getpid()):
                self._running = _Running(self._command, self.workers)
                weakref.finalize(self, self._running.stop)
            for start in range(0, len(jobs), size):
                batch = slice(start, start + size)
                self._running.batches.put((jobs[batch], futures[batch]))  # type: ignore[union-attr]
        return futures

    def close(self) -> None:
        """End the workers and cancel what they have not finished. The next `submit` starts new ones."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Running:
    """The threads and processes of a started pool; without a reference to it, so that it can be collected."""

    def __init__(self, command: list[str], workers: int) -> None:
        self.pid = os.getpid()
        self.batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._command = command
        self._stopped = False
        self._lock = threading.Lock()  # guards _stopped, and _processes, none of which has been waited for
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        if self.pid != os.getpid():  # a forked copy owns neither the threads nor the processes
            return
        with self._lock:
            self._stopped = True
            for process in self._processes:
                os.killpg(process.pid, signal.SIGKILL)
        for _ in self._threads:
            self.batches.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _serve(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        while (batch := self.batches.get()) is not None:
            jobs, futures = batch
            code: int | None = None
            try:
                for _ in range(2):
                    process = process or self._start()
                    if reply := _exchange(process, json.dumps(jobs).encode() + b"\n"):
                        break
                    code, process = self._end(process), None
                else:
                    raise RuntimeError(
                        f"A comparing process ended twice (exit code {code}) on a batch of {len(jobs)} jobs: "
                        f"{self._command}. If it printed a traceback above, what it imports is missing; otherwise the "
                        "system killed it, most often for memory: use fewer workers."
                    )
                for future, outcome in zip(futures, json.loads(reply), strict=True):
                    future.set_result(Outcome(*outcome))
            except BaseException as error:  # raised where the caller waits
                for future in futures:
                    future.set_exception(error)
        if process is not None:
            self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise CancelledError("The worker pool was closed.")
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process; its forks are killed with it
                env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy's search order, hence outcomes at the limit
            )
            self._processes.add(process)
            return process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Kill a process with its forks; returns its exit code, which is its own if it had ended before."""
        with self._lock:
            self._processes.discard(process)
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
            pass
        return process.wait()


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """The reply line, empty when the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
        reply = process.stdout.readline()
    except OSError:
        return b""
    return reply if reply.endswith(b"\n") else b""
