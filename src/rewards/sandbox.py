"""Script of the child processes of `workers.WorkerPool`, which compares untrusted answers in forks of itself.

`python sandbox.py COMPARE CPU_SECONDS MEMORY_BYTES` loads the Python file COMPARE, which defines
`compare(job)`, and writes the line `"ready"`. It then answers each line of JSON jobs on its standard input
with a line of outcomes, each `{"value": …, "failure": …}`. A fork compares the jobs of a line one by one. If
a limit ends the fork, another fork continues with the next job. The file and its forks do not have the
descriptors of this protocol as standard input or output, so that nothing that they or their child processes
read or print disturbs the protocol. Only the standard library is used.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import runpy
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

WALL_FACTOR = 10
"""Wall seconds per CPU second.

This limit ends a comparison that waits without computing, but not a comparison on a busy machine."""
GRACE = 5.0
"""Further wall seconds after which a fork that ignores the signals of its limits is killed."""
LONGEST_POLL = 3600.0
"""Longest wait of one call of `poll`, in seconds; `poll` takes at most 2^31 milliseconds."""
MOST_BYTES = 1 << 26
"""Length of the longest line that is read, in bytes."""
PROTOCOL: list[int] = []
"""Descriptors of jobs and outcomes, which forks close: untrusted code could write to them."""


def is_ready(poll: select.poll, deadline: float) -> bool:
    """Wait until a descriptor of `poll` is ready; return False if the deadline passes first.

    `deadline` is a time of `time.monotonic`.
    """
    while True:
        left = deadline - time.monotonic()
        if poll.poll(min(max(left, 0.0), LONGEST_POLL) * 1000):
            return True
        if left <= LONGEST_POLL:
            return False


def next_line(reading: int, buffer: bytearray, deadline: float, most: int = MOST_BYTES) -> bytes | None:
    """Return the next line of a pipe without its end; None if the pipe has ended.

    Args:
        reading: Descriptor of the pipe.
        buffer: Bytes read beyond the previous line; the same object in each call.
        deadline: Time of `time.monotonic` to wait until.
        most: Bytes of the longest line.

    Raises:
        TimeoutError: if the deadline has passed before the line was complete.
        ValueError: if the line is longer than `most`.
    """
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    searched = 0
    while (end := buffer.find(b"\n", searched)) < 0:
        searched = len(buffer)
        if searched > most:
            raise ValueError(f"a line of more than {most} bytes")
        if not is_ready(poll, deadline):
            raise TimeoutError("no complete line")
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return None
        buffer += chunk
    line = bytes(buffer[:end])
    del buffer[: end + 1]
    return line


def outcomes_of(
    compare: Callable[[Any], Any], jobs: list[Any], cpu_seconds: float, memory_bytes: int
) -> list[Any]:
    """Return the outcome of each job, even if other jobs end the fork that compares them."""
    outcomes: list[Any] = []
    while len(outcomes) < len(jobs):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _compare_and_exit(compare, jobs[len(outcomes) :], writing, cpu_seconds, memory_bytes)
        os.close(writing)
        timed_out = False
        buffer = bytearray()
        try:
            while len(outcomes) < len(jobs):
                line = next_line(reading, buffer, time.monotonic() + WALL_FACTOR * cpu_seconds + GRACE)
                if line is None:
                    break
                outcomes.append(_checked(json.loads(line)))
        except TimeoutError:
            timed_out = True
        except (ValueError, RecursionError):  # something else than an outcome: the fork counts as crashed
            pass
        finally:
            os.close(reading)
        os.kill(child, signal.SIGKILL)  # it may have closed the pipe and gone on
        _, status = os.waitpid(child, 0)
        if len(outcomes) < len(jobs):
            by_limit = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
            outcomes.append({"value": None, "failure": "timeout" if timed_out or by_limit else "crash"})
    return outcomes


def _checked(outcome: Any) -> Any:
    """Return the output of a fork if it is an outcome.

    Raises:
        ValueError: if the output is anything else.
    """
    if not isinstance(outcome, dict) or outcome.keys() != {"value", "failure"}:
        raise ValueError("no outcome")
    return outcome


def _compare_and_exit(
    compare: Callable[[Any], Any], jobs: list[Any], writing: int, cpu_seconds: float, memory_bytes: int
) -> NoReturn:
    """Compare the jobs under the limits, write a line for each, and exit."""
    try:
        for descriptor in PROTOCOL:
            os.close(descriptor)
        for name in (signal.SIGPROF, signal.SIGALRM):
            # which ends the process, whatever the file's imports installed
            signal.signal(name, signal.SIG_DFL)
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
            _write(writing, {"value": outcome[0], "failure": outcome[1]})
    finally:
        os._exit(0)


def _write(descriptor: int, message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def main(file: str, cpu_seconds: str, memory_bytes: str) -> None:
    """Load `file`, and apply its function `compare` to the jobs on standard input until the input ends."""
    reply_to = os.dup(1)  # child processes do not inherit the copies
    jobs_from = os.dup(0)
    PROTOCOL[:] = reply_to, jobs_from
    os.dup2(2, 1)  # what a library prints must not reach the protocol
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    compare = runpy.run_path(file)["compare"]
    gc.collect()
    gc.freeze()  # collections in a child would otherwise copy every page of this process
    _write(reply_to, "ready")
    for line in os.fdopen(jobs_from, "rb"):
        _write(reply_to, outcomes_of(compare, json.loads(line), float(cpu_seconds), int(memory_bytes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
