"""Lines that a child process with third-party code writes; an incomplete line is an error that names it."""

from ...foreign import ForeignDataError
from ...rewards.sandbox import next_line


def complete_line(reading: int, buffer: bytearray, deadline: float, source: str, remedy: str) -> bytes | None:
    """Return the next line of a child process, without the line break; None if the output has ended.

    Args:
        reading: Descriptor of the pipe.
        buffer: Bytes read beyond the previous line; the same object in each call.
        deadline: Time to wait until, on the clock of `time.monotonic`.
        source: Name of the line in messages.
        remedy: Last sentence of a message, which says what to do.

    Raises:
        TimeoutError: if the deadline passes before the line is complete.
        ForeignDataError: if the line is too long.
    """
    try:
        return next_line(reading, buffer, deadline)
    except ValueError as error:
        raise ForeignDataError(f"Expected {source} to have an end, but got {error}. {remedy}") from None
