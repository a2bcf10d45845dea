"""Safe output of errors that a command does not explain.

Third-party parts may raise errors with any text. Such a text may contain escape sequences, which a terminal
would obey, or an API key from the environment. Hydra and the interpreter would print the text unchanged.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any

from hydra.errors import CompactHydraException

from ..redaction import for_terminal


class UncaughtError(CompactHydraException):
    """Error whose text is the traceback of another error, so that Hydra prints only this text."""


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without secrets and control characters."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # the error's own code fails
        text = f"{type(error).__name__}\n"
    return for_terminal(text)


def reported(main: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `main` and raises an `UncaughtError` in place of any error.

    If HYDRA_FULL_ERROR=1, the error itself is raised.
    """

    @wraps(main)
    def call(*arguments: Any) -> Any:
        try:
            return main(*arguments)
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                raise
            raise UncaughtError(traceback_of(error)) from None

    return call


@contextmanager
def printed_safely() -> Iterator[None]:
    """Make the interpreter print uncaught errors by `traceback_of`, also in threads and finalizers.

    Raises:
        SystemExit: if the block raises a SystemExit. Secrets and control characters are removed from its
            text.
    """
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_error_of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _print_unraisable
    try:
        yield
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            raise
        sys.exit(for_terminal(str(end.code)))
    except BaseException:
        hook = sys.excepthook

        def print_error(_: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            text = traceback_of(error.with_traceback(trace))
            if hook is sys.__excepthook__:
                print(text, end="", file=sys.stderr)
            else:  # a library such as W&B notes that the program has failed
                hook(UncaughtError, UncaughtError(text), None)

        sys.excepthook = print_error
        raise


def _print_error_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
        return
    name = failed.thread.name if failed.thread else "unknown"
    print(for_terminal(f"Exception in thread {name}:"), file=sys.stderr)
    print(traceback_of(failed.exc_value), end="", file=sys.stderr)


def _print_unraisable(failed: sys.UnraisableHookArgs) -> None:
    if failed.exc_value is None:
        return
    name = getattr(failed.object, "__qualname__", type(failed.object).__name__)
    print(for_terminal(f"{failed.err_msg or 'Exception ignored in'}: {name}"), file=sys.stderr)
    print(traceback_of(failed.exc_value), end="", file=sys.stderr)
