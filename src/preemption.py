"""Signals that ask a run to end: a scheduler that needs the machine sends SIGTERM, SLURM also SIGUSR1 where told to.

Lightning's own handlers are replaced: they call collectives from within the handler, which ranks that got no signal do
not answer, and under SLURM they save in the middle of whatever is going on.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Notes that this process was asked to end. Whoever is at a safe point asks `received`."""

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """Take the signals over; does nothing outside the main thread, where Python has no handlers.

        Called after Lightning has put its own handlers in their place: it gives all signals back when it is done.
        """
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Nothing else: the signal may have come in the middle of a collective, or while a file is written.
        self.received = True
