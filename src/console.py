"""What all console scripts do before they hand over to Hydra."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from typing import Any

from .redaction import refuse_secret_arguments


def entry_point(main: Callable[[], Any]) -> Callable[[], Any]:
    r"""`main` as a console script: no secrets among its arguments, and nothing it prints fails for want of a character.

    A terminal that knows ASCII alone shows others as `\u2022`.

    Raises:
        SystemExit: an argument holds a secret.
    """

    @wraps(main)
    def run() -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        refuse_secret_arguments(sys.argv[1:])
        return main()

    return run
