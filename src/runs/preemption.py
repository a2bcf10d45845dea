"""Handle signals that ask a run to end.

A scheduler sends SIGTERM when it needs the machine; SLURM can be told to send SIGUSR1 too. Lightning's
handlers call collectives that ranks without a signal do not join, and save in mid-iteration.
"""

import signal
import threading

RECEIVED: set[int] = set()
"""Signals received since `listen`; only recorded, as a collective or a file write may be in progress."""


def listen() -> None:
    """Replace Lightning's signal handlers by handlers that add the signal to `RECEIVED`; main thread only."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: RECEIVED.add(number))


def asked_to_stop() -> bool:
    """Return whether this process was asked to end. Called where ending is safe, and during long waits."""
    return bool(RECEIVED)
