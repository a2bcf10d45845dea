"""Signals that ask a run to end: a scheduler that needs the machine sends SIGTERM, SLURM also SIGUSR1 where told to.

Lightning's own handlers call collectives that ranks without a signal do not join, and save in the middle of anything.
"""

from __future__ import annotations

import signal
import threading

RECEIVED: set[int] = set()
"""Signals since `listen`: only noted, for they may come within a collective, or while a file is written."""


def listen() -> None:
    """Note signals from now on, once Lightning has installed its own handlers; in the main thread alone."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: RECEIVED.add(number))


def asked_to_stop() -> bool:
    """Whether this process was asked to end; looked up where it can end safely, and during long waits."""
    return bool(RECEIVED)
