"""Signals that ask a run to end: a scheduler that needs the machine sends SIGTERM, SLURM also SIGUSR1 where told to.

They replace Lightning's handlers, which call collectives that ranks without a signal do not join, and which under SLURM
write a checkpoint in the middle of whatever is going on.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Notes that this process was asked to end. `received` is read where it is safe to end."""

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """Handle the signals from now on; does nothing outside the main thread, where Python allows no handlers.

        To be called after Lightning has installed its own handlers; it restores the handlers from before when it ends.
        """
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Nothing else: the signal may have come within a collective, or while a file is written.
        self.received = True
