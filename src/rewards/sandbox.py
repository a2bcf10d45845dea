"""The other end of `workers.WorkerPool`: a script that compares untrusted answers in forks of itself.

`python sandbox.py COMPARE CPU_SECONDS MEMORY_BYTES` loads the Python file COMPARE, which defines `compare(job)`, and
answers each line of JSON jobs on its standard input with a line of `[value, failure]` pairs. A fork compares the jobs
of a line one by one; where the kernel ends it, another fork goes on with the next job. Standard library only.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

WALL_FACTOR = 10
"""Wall seconds per CPU second: ends a comparison that waits without computing, but not one on a busy machine."""


def outcomes_of(compare: Callable[[Any], Any], jobs: list[Any], cpu_seconds: float, memory_bytes: int) -> list[Any]:
    """The outcome of each job, even if others end the fork that compares them."""
    outcomes: list[Any] = []
    while len(outcomes) < len(jobs):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _compare_and_exit(compare, jobs[len(outcomes) :], writing, cpu_seconds, memory_bytes)
        os.close(writing)
        with open(reading, "rb") as pipe:
            outcomes += [json.loads(line) for line in pipe if line.endswith(b"\n")]
        os.kill(child, signal.SIGKILL)  # it may have closed the pipe and gone on
        _, status = os.waitpid(child, 0)
        if len(outcomes) < len(jobs):
            timed_out = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
            outcomes.append([None, "timeout" if timed_out else "crash"])
    return outcomes


def _compare_and_exit(
    compare: Callable[[Any], Any], jobs: list[Any], writing: int, cpu_seconds: float, memory_bytes: int
) -> NoReturn:
    """Compare the jobs under the limits, write a line for each, and exit."""
    try:
        for name in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(name, signal.SIG_DFL)  # which ends the process, whatever the file's imports installed
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for job in jobs:
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * cpu_seconds)
            try:
                outcome: tuple[Any, str | None] = compare(job), None
            except MemoryError:
                outcome = None, "memory"
            except Exception as error:  # untrusted input: whatever it provokes is its own failure
                outcome = None, type(error).__name__
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _write(writing, outcome)
    finally:
        os._exit(0)


def _write(descriptor: int, message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def main(file: str, cpu_seconds: str, memory_bytes: str) -> None:
    """Load the file and serve its `compare` until standard input ends."""
    reply_to = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not reach the protocol
    compare = runpy.run_path(file)["compare"]
    gc.collect()
    gc.freeze()  # collections in a child would otherwise copy every page of this process
    for line in sys.stdin.buffer:
        _write(reply_to, outcomes_of(compare, json.loads(line), float(cpu_seconds), int(memory_bytes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
