"""Child processes that run third-party code: their session, environment and output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from ..redaction import for_terminal

LONGEST_LINE = 1 << 14
"""Number of bytes of a line that are printed."""
LONGEST_SECRET = 1 << 10
"""Number of bytes to leave out at the end of a cut line: a key that the cut divides would not be found."""
MOST_PRINTED = 1 << 18
"""Number of bytes of one process that are printed as they arrive."""
KEPT = 1 << 15
"""Number of bytes from the end of any further output that are printed when the process ends."""
PATIENCE = 5.0
"""Seconds in which a process that has closed its output may print the reason and end."""
PAUSE = 0.05
"""Seconds without further output after which lines are printed, since a key may extend over several lines."""
_CHUNK = 1 << 16
_MOST_AFTER_STOP = 1 << 22
"""Largest number of bytes to read after the process has ended; its children may print without end."""


class ChildProcess:
    """Process that runs a third-party program in a separate session.

    The standard error of the program and its child processes is printed to this process's standard error,
    with control characters escaped and keys removed. A program that prints without end is not waited for, and
    most of its output is left out.

    Args:
        command: The program and its arguments.
        environment: Environment variables of the program.
        source: Name of the program in messages: "the environment 'gsm8k-v1'".
        stdin: Standard input of the program, as for `subprocess.Popen`.

    Raises:
        OSError: if the program can't be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        source: str,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process; forks of the program are killed with it
            env=environment,
        )
        self._code: int | None = None
        assert self.process.stderr is not None
        self._errors = _Printer(self.process.stderr.fileno(), source)

    @property
    def input(self) -> int:
        """Descriptor of the pipe to the program's standard input."""
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    @property
    def output(self) -> int:
        """Descriptor of the pipe from the program's standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def kill(self) -> None:
        """Kill the process and its forks. Call `end` afterwards."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, patience: float = 0.0) -> int:
        """Kill the process and its forks, and print the rest of their output.

        Args:
            patience: Seconds in which the process may end by itself, and print the reason.

        Returns:
            The exit code, which is the program's own if the program had already ended. A second call only
                returns the code.
        """
        if self._code is not None:
            return self._code
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and not _has_ended(self.process.pid):
            time.sleep(0.01)
        self.kill()
        self._code = self.process.wait()
        self._errors.close()
        with contextlib.suppress(BrokenPipeError), self.process:  # closes the pipes
            pass
        return self._code


def _has_ended(pid: int) -> bool:
    """Check whether a child has ended, without reaping it, since its id still names its process group."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Printer:
    """Thread that prints the lines of a pipe until the pipe ends or `close` is called."""

    def __init__(self, pipe: int, source: str) -> None:
        self._reading = os.dup(pipe)  # which is the thread's to close
        self._source = source
        self._lines = _Lines()
        self._printed = 0
        self._end = bytearray()  # of what comes after `MOST_PRINTED` bytes
        self._left_out = 0  # bytes between these and the end
        self._stopping, self._stop = os.pipe()
        os.set_blocking(self._reading, False)
        self._thread = threading.Thread(target=self._run, name=f"errors of {source}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Print the rest of the pipe, even if another process keeps the pipe open, and end the thread."""
        os.close(self._stop)
        if self._thread is not threading.current_thread():  # where the garbage collector may run
            self._thread.join(5.0)  # longer only if this process's own standard error is blocked

    def _run(self) -> None:
        try:
            self._read()
            self._print(self._lines.take(unfinished=True))
            self._print_end()
        finally:
            os.close(self._reading)
            os.close(self._stopping)

    def _read(self) -> None:
        """Read the pipe to its end, or up to its content at the time when `close` is called."""
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        stopped = False
        left = _MOST_AFTER_STOP
        while left > 0:
            pause = None
            if stopped:
                pause = 0.0
            elif self._lines.complete:
                pause = PAUSE
            ready = dict(poll.poll(pause and pause * 1000))
            if self._stopping in ready:
                stopped = True
                poll.unregister(self._stopping)
            elif self._reading not in ready:
                if stopped:
                    return
                self._print(self._lines.take())
            if self._reading in ready:
                chunk = os.read(self._reading, _CHUNK)
                if not chunk:
                    return
                left -= len(chunk) * stopped
                # so that progress bars are lines
                self._add(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))

    def _add(self, chunk: bytes) -> None:
        if self._printed < MOST_PRINTED:
            self._lines.add(chunk)
            if len(self._lines.complete) >= _CHUNK:
                self._print(self._lines.take())
            return
        if self._lines.has_part:
            part, end, chunk = chunk.partition(b"\n")
            self._lines.add(part + end)
        self._end += chunk
        beyond = len(self._end) - KEPT
        if beyond > 0:
            if not self._left_out:
                limit = f"{MOST_PRINTED >> 10} KiB"
                _write(
                    f"[{self._source} has printed {limit}; of the rest, only the end is printed.]\n".encode()
                )
            self._left_out += beyond
            del self._end[:beyond]

    def _print(self, lines: bytes) -> None:
        self._printed += len(lines)
        _write(lines)

    def _print_end(self) -> None:
        """Print the last lines, without the first of them if its beginning is missing."""
        if self._left_out:
            first = self._end.find(b"\n") + 1 or LONGEST_SECRET
            del self._end[:first]
            _write(f"[{self._left_out + first} bytes of {self._source} are left out.]\n".encode())
        self._lines.add(bytes(self._end))
        _write(self._lines.take(unfinished=True))


class _Lines:
    """Lines of at most `LONGEST_LINE` bytes in a stream of bytes."""

    def __init__(self) -> None:
        self.complete = bytearray()
        """Lines with their ends."""
        self._part = bytearray()  # of the line that has not ended yet
        self._cut = 0  # bytes of this line that are left out

    @property
    def has_part(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._part or self._cut)

    def add(self, chunk: bytes) -> None:
        """Add bytes."""
        first, *others = chunk.split(b"\n")
        self._extend(first)
        for piece in others:
            self.complete += self._line() + b"\n"
            self._extend(piece)

    def take(self, unfinished: bool = False) -> bytes:
        """Return the complete lines, and forget them; with `unfinished`, also a line that has no end yet."""
        if unfinished and self.has_part:
            self.complete += self._line() + b"\n"
        taken = bytes(self.complete)
        self.complete.clear()
        return taken

    def _extend(self, piece: bytes) -> None:
        room = LONGEST_LINE - len(self._part)
        self._part += piece[:room]
        self._cut += len(piece[room:])

    def _line(self) -> bytes:
        line = bytes(self._part)
        cut = self._cut
        self._part.clear()
        self._cut = 0
        if not cut:
            return line
        shown = for_terminal(line.decode(errors="backslashreplace"))[:-LONGEST_SECRET]
        return f"{shown}[… {cut} more bytes of this line]".encode()


def _write(content: bytes) -> None:
    """Write lines to standard error, if it is open."""
    text = for_terminal(content.decode(errors="backslashreplace")).encode(errors="backslashreplace")
    # Not `sys.stderr`: the thread would hold the stream's lock, for which the interpreter waits when it ends.
    with contextlib.suppress(OSError):
        while text:
            try:
                text = text[os.write(2, text) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                select.select([], [2], [], 1.0)
