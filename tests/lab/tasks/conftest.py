"""How much work a verifier does, whatever the machine is busy with."""

import sys

import pytest


@pytest.fixture
def lines_run():
    """Calls a function; returns its result and how many lines of Python ran."""

    def counted(function, *arguments):
        lines = 0

        def trace(frame, event, argument):
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            result = function(*arguments)
        finally:
            sys.settrace(before)
        return result, lines

    return counted
