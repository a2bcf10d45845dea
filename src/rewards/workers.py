"""Verifiers that score in the background, and a pool of processes that compare untrusted answers.

Time and memory of a comparison are bounded.

The pools of `multiprocessing` and `pebble` are unsuitable: they fork this process with its threads and CUDA,
or import its main module and torch in each worker, and bound wall time alone, so that a busy machine would
change outcomes.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..foreign import ForeignDataError, Message, Text, read
from ..types import Score, Verifier
from .canonical import Reference
from .child_environment import child_environment
from .child_process import PATIENCE, ChildProcess
from .sandbox import GRACE, WALL_FACTOR, is_ready, next_line

_SANDBOX = Path(__file__).with_name("sandbox.py")
_BATCH = 64
"""Largest number of jobs per message: messages stay cheap, and work is shared evenly."""


class BackgroundVerifier(Verifier):
    """Base class for verifiers with workers; subclasses define `score_async` and `close`.

    A `with` block calls `close` at its end.
    """

    in_background = True

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        return self.score_batch([response], [reference])[0]

    def score_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Score each response against the reference answers at the same position."""
        return self.score_async(responses, references)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Outcome(NamedTuple):
    """Result of one job."""

    value: Any
    """Return value of `compare(job)`; None if the job failed."""
    failure: str | None
    """`timeout`, `memory`, `crash` or the name of the exception of the job; None if the job returned."""


class WorkerPool:
    """Pool of `workers` processes that run `compare(job)` of a Python file on batches of jobs.

    Each worker is a separate interpreter (`sandbox.py`) that compares in forks of itself, so that the pool
    works from any thread, beside CUDA and under any launcher. Limits apply to each job: `cpu_seconds` (so
    that a busy machine does not change outcomes), ten times as much wall time, and `memory_bytes` of private
    memory (RLIMIT_DATA; outside Linux it may count less). A job that exceeds a limit does not affect other
    jobs. Workers start with the first jobs, and `close` ends them at once. Without `close`, workers finish
    their batch and end together with the pool object or this process, which waits for them unless it is
    killed. A worker that was killed from outside is replaced, and its batch is repeated once. A forked copy
    of this process starts its own workers.

    Args:
        compare: File that defines `compare(job)`, for jobs and values that JSON can represent.
        python: Interpreter of the workers.
        variables: Additional environment variables of the workers, by name.
        inherited: Names of variables that the workers get from this process, in addition to those of
            `child_environment`.
        start_seconds: Largest number of seconds that a worker may take to load the file.
        source: Name of the workers' program in errors.
        remedy: Advice for errors of the workers, with the setting to change.
    """

    def __init__(
        self,
        compare: Path,
        workers: int,
        cpu_seconds: float,
        memory_bytes: int,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
        inherited: Sequence[str] = (),
        start_seconds: float = 600.0,
        source: str = "",
        remedy: str = "",
    ) -> None:
        if workers < 1 or cpu_seconds <= 0 or memory_bytes <= 0 or start_seconds <= 0:
            found = f"workers={workers}, cpu_seconds={cpu_seconds}, memory_bytes={memory_bytes}"
            found = f"{found}, start_seconds={start_seconds}"
            raise ValueError(f"Expected at least one worker and positive limits, but got {found}.")
        self.workers = workers
        limits = [str(cpu_seconds), str(memory_bytes)]
        self._command = [python, "-P", str(_SANDBOX), str(compare), *limits]
        self._seconds = WALL_FACTOR * cpu_seconds + GRACE + 1.0  # of one job
        self._start_seconds = start_seconds
        self._variables = dict(variables or {})
        self._inherited = tuple(inherited)
        self._source = source or compare.name
        self._remedy = remedy
        self._lock = threading.Lock()  # guards what follows
        self._pid = 0  # of the process that owns the threads
        self._threads: ThreadPoolExecutor | None = None  # each has a worker and waits for its replies
        self._workers: set[ChildProcess] = set()
        self._of_thread = threading.local()

    def submit(self, jobs: Sequence[Any]) -> Callable[[], list[Outcome]]:
        """Start comparing, and return a function that waits for the outcomes, in the order of the jobs.

        The returned function raises RuntimeError if workers do not start (for example because a dependency is
        missing) or keep dying, ForeignDataError if they send anything other than outcomes, and CancelledError
        if the pool is closed before the outcomes arrive.
        """
        size = max(1, min(_BATCH, -(-len(jobs) // self.workers)))
        with self._lock:
            if self._threads is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._threads = ThreadPoolExecutor(self.workers)
                self._workers = set()
                weakref.finalize(self, _end_all, self._workers, self._pid).atexit = False
            batches = [
                self._threads.submit(self._outcomes, jobs[start : start + size])
                for start in range(0, len(jobs), size)
            ]
        return lambda: [outcome for batch in batches for outcome in batch.result()]

    def _outcomes(self, jobs: Sequence[Any]) -> list[Outcome]:
        request = json.dumps(jobs).encode() + b"\n"
        late = ""
        for _ in range(2):
            worker = self._worker()
            try:
                reply = self._reply(worker, request, len(jobs))
            except TimeoutError as error:
                reply = None
                late = str(error)
            except ValueError as error:  # a line without end
                reply = None
                late = f"sent {error}"
            if reply is not None:
                return read_outcomes(reply, len(jobs), self._source, self._remedy)
            with self._lock:
                self._workers.discard(worker.process)
            code = worker.process.end(patience=0.0 if late else PATIENCE)
            if late:
                expected = f"Expected the comparing process of {self._source} to answer"
                raise RuntimeError(f"{expected}, but it {late}. {self._remedy}")
        raise RuntimeError(
            f"A comparing process of {self._source} ended twice (exit code {code}) on a batch of {len(jobs)} "
            f"jobs: {self._command}. If it printed a traceback above, what it imports is missing; otherwise "
            f"the system killed it, most often for memory: use fewer workers. {self._remedy}"
        )

    def _reply(self, worker: _Worker, request: bytes, num_jobs: int) -> bytes | None:
        """Return the reply line to a request; None if the worker has ended.

        Raises:
            TimeoutError: if the reply takes too long.
        """
        if not worker.ready:
            deadline = time.monotonic() + self._start_seconds
            line = worker.next_line(deadline, f"did not load within {self._start_seconds:.0f} s")
            worker.ready = line == b'"ready"'
            if not worker.ready:
                return None
        seconds = num_jobs * self._seconds + 60.0
        late = f"did not answer within {seconds:.0f} s"
        deadline = time.monotonic() + seconds
        return worker.next_line(deadline, late) if worker.send(request, deadline, late) else None

    def _worker(self) -> _Worker:
        """Return the worker of this thread, or a new one."""
        with self._lock:
            if self._threads is None:
                raise CancelledError("The worker pool was closed.")
            worker: _Worker | None = getattr(self._of_thread, "worker", None)
            if worker is None or worker.process not in self._workers:
                # The hash seed is for sympy's search order, hence outcomes at the limit.
                environment = {**child_environment(self._inherited), **self._variables}
                process = ChildProcess(self._command, environment, self._source, stdin=subprocess.PIPE)
                worker = self._of_thread.worker = _Worker(process)
                self._workers.add(process)
            return worker

    def close(self) -> None:
        """End the workers and cancel their unfinished jobs; the next `submit` starts new workers."""
        with self._lock:
            threads = self._threads
            self._threads = None
            if threads is None or self._pid != os.getpid():
                return
            for process in self._workers:
                process.kill()
            workers = self._workers
        threads.shutdown(cancel_futures=True)  # those that wait for a reply clean up after their worker
        _end_all(workers, self._pid)


class _Outcome(Message):
    value: Any
    failure: Text | None


def read_outcomes(reply: bytes, num_jobs: int, source: str, remedy: str) -> list[Outcome]:
    """Read the outcomes of `num_jobs` jobs. Values may be NaN; the caller checks their meaning.

    Raises:
        ForeignDataError: if the reply is anything else.
    """
    source = f"the comparing process of {source}"
    try:
        value = json.loads(reply)
    except (ValueError, RecursionError):
        value = reply[:200]
    outcomes = read(list[_Outcome], value, source=source, remedy=remedy)
    if len(outcomes) != num_jobs:
        raise ForeignDataError(f"Expected {num_jobs} outcomes of {source}, but got {len(outcomes)}. {remedy}")
    return [Outcome(outcome.value, outcome.failure) for outcome in outcomes]


class _Worker:
    """A process and its pipes, which are read and written until a deadline."""

    def __init__(self, process: ChildProcess) -> None:
        self.process = process
        self.ready = False  # whether it has loaded its file
        self.buffer = bytearray()
        os.set_blocking(process.input, False)

    def send(self, content: bytes, deadline: float, late: str) -> bool:
        """Write to the process; return False if the process has ended.

        Raises:
            TimeoutError: if the deadline passes first; the message is `late`.
        """
        try:
            writing = self.process.input
            poll = select.poll()
            poll.register(writing, select.POLLOUT)
            left = memoryview(content)
            while left:
                if not is_ready(poll, deadline):
                    raise TimeoutError(late)
                left = left[os.write(writing, left) :]
        except TimeoutError:
            raise
        except (OSError, ValueError):  # the latter of a pipe that was closed
            return False
        return True

    def next_line(self, deadline: float, late: str) -> bytes | None:
        """Read a line; return None if the process has ended.

        Raises:
            TimeoutError: if the deadline passes first; the message is `late`.
        """
        try:
            return next_line(self.process.output, self.buffer, deadline, most=1 << 30)
        except TimeoutError:
            raise TimeoutError(late) from None
        except OSError:
            return None


def _end_all(processes: set[ChildProcess], owner: int) -> None:
    """Kill the processes, unless this process is a forked copy of their owner."""
    while processes and owner == os.getpid():
        processes.pop().end()
