"""Verifiers that score in the background, and a pool of processes that compare untrusted answers within bounds.

The pools of `multiprocessing` and `pebble` are unsuitable: they fork this process with its threads and CUDA, or import
its main module and torch in each worker, and bound wall time alone, so that a busy machine would change outcomes.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..types import Score, Verifier
from .canonical import Reference

_SANDBOX = Path(__file__).with_name("sandbox.py")
_BATCH = 64
"""Most jobs per message: enough to make messages cheap, few enough to share work evenly."""


class BackgroundVerifier(Verifier):
    """Base class for verifiers with workers: define `score_async` and `close`. A `with` block calls `close` last."""

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

    Each worker is a separate interpreter (`sandbox.py`) that compares in forks of itself, so that the pool works from
    any thread, beside CUDA and under any launcher. Limits hold per job: `cpu_seconds` (so that a busy machine does not
    change outcomes), ten times as much wall time, and `memory_bytes` of private memory (RLIMIT_DATA; outside Linux it
    may cover less). A job that exceeds one does not affect other jobs.

    Workers start with the first jobs, and `close` ends them at once. Otherwise they finish their batch and end when the
    pool object or this process does; unless it is killed, this process waits for them. A worker that was killed from
    outside is replaced, and its batch is repeated once. A forked copy of this process starts its own workers.

    Args:
        compare: File that defines `compare(job)`, for jobs and values that JSON can carry.
        python: Interpreter of the workers.
        variables: Additional environment variables of the workers.
    """

    def __init__(
        self,
        compare: Path,
        workers: int,
        cpu_seconds: float,
        memory_bytes: int,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        if workers < 1 or cpu_seconds <= 0 or memory_bytes <= 0:
            found = f"workers={workers}, cpu_seconds={cpu_seconds}, memory_bytes={memory_bytes}"
            raise ValueError(f"Expected at least one worker and positive limits, but got {found}.")
        self.workers = workers
        limits = [str(cpu_seconds), str(memory_bytes)]
        self._command = [python, "-P", str(_SANDBOX), str(compare), *limits]
        self._variables = dict(variables or {})
        self._lock = threading.Lock()  # guards what follows
        self._pid = 0  # of the process that owns the threads
        self._threads: ThreadPoolExecutor | None = None  # each has a worker and waits for its replies
        self._workers: set[subprocess.Popen[bytes]] = set()
        self._of_thread = threading.local()

    def submit(self, jobs: Sequence[Any]) -> Callable[[], list[Outcome]]:
        """Start comparing, and return at once a function that waits for the outcomes, in the order of the jobs.

        That function raises RuntimeError if workers do not start (a dependency is missing, say) or keep dying, and
        CancelledError if the pool is closed first.
        """
        size = max(1, min(_BATCH, -(-len(jobs) // self.workers)))
        with self._lock:
            if self._threads is None or self._pid != os.getpid():
                self._pid, self._threads = os.getpid(), ThreadPoolExecutor(self.workers)
                self._workers = set()
                weakref.finalize(self, _end_all, self._workers, self._pid).atexit = False
            batches = [
                self._threads.submit(self._outcomes, jobs[start : start + size]) for start in range(0, len(jobs), size)
            ]
        return lambda: [outcome for batch in batches for outcome in batch.result()]

    def _outcomes(self, jobs: Sequence[Any]) -> list[Outcome]:
        for _ in range(2):
            process = self._worker()
            if reply := _exchange(process, json.dumps(jobs).encode() + b"\n"):
                return [Outcome(*outcome) for outcome in json.loads(reply)]
            with self._lock:
                self._workers.discard(process)
            code = _end(process)
        raise RuntimeError(
            f"A comparing process ended twice (exit code {code}) on a batch of {len(jobs)} jobs: {self._command}. If "
            "it printed a traceback above, what it imports is missing; otherwise the system killed it, most often "
            "for memory: use fewer workers."
        )

    def _worker(self) -> subprocess.Popen[bytes]:
        """The worker of this thread, or a new one."""
        with self._lock:
            if self._threads is None:
                raise CancelledError("The worker pool was closed.")
            process: subprocess.Popen[bytes] | None = getattr(self._of_thread, "worker", None)
            if process is None or process not in self._workers:
                process = self._of_thread.worker = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for this process; its forks are killed with it
                    # The seed is for sympy's search order, hence outcomes at the limit.
                    env={**os.environ, **self._variables, "PYTHONHASHSEED": "0"},
                )
                self._workers.add(process)
            return process

    def close(self) -> None:
        """End the workers and cancel what they have not finished. The next `submit` starts new ones."""
        with self._lock:
            threads, self._threads = self._threads, None
            if threads is None or self._pid != os.getpid():
                return
            for process in self._workers:
                os.killpg(process.pid, signal.SIGKILL)
            workers = self._workers
        threads.shutdown(cancel_futures=True)  # those that wait for a reply clean up after their worker
        _end_all(workers, self._pid)


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """The reply line; empty if the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
        reply = process.stdout.readline()
    except OSError:
        return b""
    return reply if reply.endswith(b"\n") else b""


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kill a process and its forks; return the exit code, which is the process's own if it had already ended."""
    os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass
    return process.wait()


def _end_all(processes: set[subprocess.Popen[bytes]], owner: int) -> None:
    """Kill the processes, unless this process is a forked copy of their owner."""
    while processes and owner == os.getpid():
        _end(processes.pop())
