"""Signals that ask a run to end: a scheduler that needs the machine sends SIGTERM, SLURM also SIGUSR1 where told to.

Lightning's own handlers call collectives that ranks without a signal do not join, and save in the middle of anything.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import ClassVar

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Notes that this process was asked to end. `received` is read where it is safe to end."""

    listening: ClassVar[StopRequest | None] = None
    """The instance whose handlers are installed."""

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """Handle the signals from now on, once Lightning has installed its own handlers; in the main thread alone."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)
            StopRequest.listening = self

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Nothing else: the signal may have come within a collective, or while a file is written.
        self.received = True


def asked_to_stop() -> bool:
    """Whether this process was asked to end, for those who wait for something that may take long."""
    return StopRequest.listening is not None and StopRequest.listening.received
