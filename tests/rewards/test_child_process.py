"""Output of strangers' programs is printed, but no terminal obeys it, no key is in it, and nobody waits for its end."""

import contextlib
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tagrpo.rewards.child_process import KEPT, LONGEST_LINE, MOST_PRINTED, ChildProcess

SOURCE = "the program 'mine'"
KEY = "4f9a0c7d21b8e6"


def started(script, *arguments):
    """A process that runs a script, as soon as it has closed its standard output or ended."""
    child = ChildProcess(
        [sys.executable, "-S", "-E", "-c", textwrap.dedent(script), *arguments], dict(os.environ), SOURCE
    )
    while os.read(child.output, 1 << 16):
        pass
    return child


def printed(capfd, script, *arguments, patience=60.0):
    """The exit code, and what this process has printed of what the script prints."""
    child = started(script, *arguments)
    code = child.end(patience)
    return code, capfd.readouterr().err


def test_lines_are_printed_in_order_and_the_exit_code_is_the_programs(capfd):
    script = """
        import os, sys
        os.write(2, "ä\\nb\\r\\nc\\rd".encode() + b"\\xff")
        sys.exit(3)
    """
    assert printed(capfd, script) == (3, "ä\nb\nc\nd\\xff\n")


def test_a_terminal_obeys_nothing(capfd):
    _, text = printed(
        capfd, "import os; os.write(2, b'\\x1b[2J\\x1b]0;title\\x07 \\xe2\\x80\\xae\\x00\\x9b1m\\n')"
    )
    assert text.isascii()
    assert "".join(text.splitlines()).isprintable()
    assert r"\x1b[2J" in text


def test_a_traceback_is_printed_to_its_end(capfd):
    code, text = printed(capfd, "raise ValueError('one\\n\\x1b[31mtwo')")
    assert code == 1
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: one\n\\x1b[31mtwo\n")


BEFORE = [0, LONGEST_LINE - 7, LONGEST_LINE, MOST_PRINTED - 7, MOST_PRINTED + 3 * KEPT]


@pytest.mark.parametrize(
    ("variable", "before", "filler"),
    [
        *(("MINE_API_KEY", before, filler) for before in BEFORE for filler in ("x", "y\n")),
        *((name, LONGEST_LINE - 7, "x") for name in ("WANDB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OUR_SECRET")),
    ],
)
def test_a_key_of_the_environment_is_never_printed_wherever_it_stands(
    monkeypatch, capfd, variable, before, filler
):
    monkeypatch.setenv(variable, KEY)
    script = f"""
        import os
        text = ({filler!r} * {before})[:{before}] + "{KEY[:5]}" + "{KEY[5:]}" + " " * {KEPT - 5} + "\\nlast line"
        while text:
            text = text[os.write(2, text.encode()):]
    """
    _, text = printed(capfd, script)
    assert not any(KEY[start : start + 5] in text for start in range(len(KEY) - 5))
    assert text.endswith("\nlast line\n")


def test_a_key_of_several_lines_is_removed_line_by_line(monkeypatch, capfd):
    lines = ["first line of a key", "second line of a key"]
    monkeypatch.setenv("MINE_PRIVATE_KEY", "\n".join(lines))
    script = "import os, sys, time\nfor line in sys.argv[1:]:\n    os.write(2, line.encode() + b'\\n'); time.sleep(0.2)"
    _, text = printed(capfd, script, *lines, "more")
    assert text == "<removed>\n<removed>\nmore\n"


@pytest.mark.parametrize("line", ["a line of text\n", "no end ", "\r", "\n", "é\x1b"])
def test_output_of_megabytes_is_left_out_but_for_its_beginning_and_its_end(capfd, line):
    script = f"""
        import os
        block = memoryview(({line!r} * 100_000).encode())
        for _ in range({200_000_000 // len(line.encode()) // 100_000 // 100}):
            left = block
            while left:
                left = left[os.write(2, left):]
        os.write(2, b"\\nTraceback:\\n  the last\\nline\\n")
    """
    code, text = printed(capfd, script)
    assert code == 0
    assert text.endswith("\nTraceback:\n  the last\nline\n")
    assert SOURCE in text or "more bytes of this line" in text
    assert len(text) < 8 * MOST_PRINTED


@pytest.mark.parametrize("size", [MOST_PRINTED - 1, MOST_PRINTED, MOST_PRINTED + 1, MOST_PRINTED + KEPT - 20])
def test_little_more_than_the_limit_is_printed_whole(capfd, size):
    script = f"""
        import os
        lines = "".join(f"{{row}}\\n" for row in range({size}))[:{size}].encode()
        while lines:
            lines = lines[os.write(2, lines):]
    """
    _, text = printed(capfd, script)
    expected = "".join(f"{row}\n" for row in range(size))[:size]
    assert text == expected + "\n" * (not expected.endswith("\n"))


def test_a_long_line_is_cut_and_those_after_it_are_printed(capfd):
    _, text = printed(capfd, f"import os; os.write(2, b'a' * {LONGEST_LINE + 5} + b'\\nnext\\n')")
    long, after, _ = text.split("\n")
    assert long.startswith("aaaa")
    assert "5 more bytes" in long
    assert after == "next"


@pytest.mark.parametrize("flood", [False, True])
def test_nobody_waits_for_a_process_that_keeps_the_pipe_open(capfd, tmp_path, flood):
    script = f"""
        import os, sys, time
        if os.fork() == 0:
            os.setsid()
            with open(sys.argv[1], "w") as file:
                file.write(str(os.getpid()))
            os.close(1)
            while {flood}:
                os.write(2, b"again and again\\n" * 1000)
            time.sleep(3600)
        while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
            time.sleep(0.01)
        os.write(2, b"said before the end\\n")
    """
    path = tmp_path / "pid"
    try:
        code, text = printed(capfd, script, str(path))
        assert code == 0
        assert flood or text == "said before the end\n"
    finally:
        os.kill(int(path.read_text()), signal.SIGKILL)


def test_lines_are_printed_while_the_process_runs(capfd):
    child = started("import os, time; os.write(2, b'now\\npart'); os.close(1); time.sleep(3600)")
    text = ""
    deadline = time.monotonic() + 300
    while not text and time.monotonic() < deadline:
        text = capfd.readouterr().err
        time.sleep(0.01)
    assert text == "now\n"
    assert child.end() == child.end() == -signal.SIGKILL
    assert capfd.readouterr().err == "part\n"


def test_a_process_that_ignores_signals_and_its_forks_are_killed(capfd):
    script = """
        import os, signal, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.fork()
        os.close(1)
        time.sleep(3600)
    """
    child = started(script)
    assert child.end(patience=0.1) == -signal.SIGKILL
    deadline = time.monotonic() + 300
    while set(states_of_session(child.process.pid)) - {"Z"}:  # a process dies some time after the signal
        assert time.monotonic() < deadline
        time.sleep(0.01)


def states_of_session(session):
    """States of the processes of a session; Z is that of one that has ended and has not been reaped."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield fields[0]


def test_no_descriptors_are_left_open(capfd):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        printed(capfd, "print('x')")
    assert len(os.listdir("/proc/self/fd")) == before
