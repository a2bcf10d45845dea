"""Signals that ask a run to end: a scheduler that needs the machine sends SIGTERM, SLURM also SIGUSR1 where told to.

Lightning's own handlers call collectives that ranks without a signal do not join, and save in mid-iteration.
"""

import signal
import threading

RECEIVED: set[int] = set()
"""Signals received since `listen`; only noted, because they may arrive during a collective or a write to a file."""


def listen() -> None:
    """Replace Lightning's signal handlers by ones that note the signal in `RECEIVED`; in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: RECEIVED.add(number))


def asked_to_stop() -> bool:
    """Return whether this process was asked to end; looked up where it can end safely, and during long waits."""
    return bool(RECEIVED)
