"""The pool against a comparison that hangs, explodes and dies on demand, and knows nothing of mathematics."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path

import pytest

from tagrpo.foreign import ForeignDataError
from tagrpo.rewards.workers import Outcome, WorkerPool, read_outcomes

COMPARE = """
    import ctypes, os, signal, time

    signal.signal(signal.SIGPROF, signal.SIG_IGN)  # libraries do such things on import
    signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def compare(job):
        if job == "spin":
            while True:
                pass
        if job == "sleep":
            time.sleep(60)
        if job == "bigint":
            return len(str(7 ** 7 ** 9))
        if job == "grow":
            blocks = []
            while True:
                blocks.append(bytes(1 << 20))  # reserved, not touched: quick on any machine
        if job == "allocate":
            return len(bytearray(1 << 40))
        if job == "swallow":
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
        if job == "segfault":
            ctypes.string_at(0)
        if job == "exit":
            os._exit(0)
        if job == "raise":
            raise ZeroDivisionError
        if job == "deep":
            return (lambda f: f(f))(lambda f: f(f))
        if job == "print":
            print("not an answer", flush=True)
            os.write(1, b"nor this")
        if job == "pid":
            return os.getpid()
        if job == "parent":
            return os.getppid()
        return job
"""
LIMITS = {"cpu_seconds": 0.2, "memory_bytes": 200 << 20}


@pytest.fixture(scope="module")
def compare(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "compare.py"
    path.write_text(textwrap.dedent(COMPARE))
    return path


@pytest.fixture
def pool(compare):
    with closing(WorkerPool(compare, workers=1, **LIMITS)) as pool:
        yield pool


def value(pool, job):
    return outcomes_of(pool, [job])[0].value


def outcomes_of(pool, jobs):
    return pool.submit(jobs)()


def is_running(pid):
    """Whether the process exists, unreaped ones included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("job", "failure"),
    [
        ("spin", "timeout"),
        ("bigint", "timeout"),
        ("swallow", "timeout"),
        ("grow", "memory"),
        ("allocate", "memory"),
        ("segfault", "crash"),
        ("exit", "crash"),
        ("raise", "ZeroDivisionError"),
        ("deep", "RecursionError"),
    ],
)
def test_a_bad_job_is_named_and_those_beside_it_are_compared(pool, job, failure):
    outcomes = outcomes_of(pool, [1, job, [2, "\ud800\x00"], job, 3])
    bad = Outcome(None, failure)
    assert outcomes == [Outcome(1, None), bad, Outcome([2, "\ud800\x00"], None), bad, Outcome(3, None)]


def test_a_comparison_that_waits_without_computing_is_ended_too(compare):
    with closing(WorkerPool(compare, workers=1, cpu_seconds=0.05, memory_bytes=1 << 30)) as pool:
        assert outcomes_of(pool, ["sleep", 1]) == [Outcome(None, "timeout"), Outcome(1, None)]


def test_what_a_comparison_prints_is_no_answer(pool):
    assert outcomes_of(pool, ["print", 1]) == [Outcome("print", None), Outcome(1, None)]


def test_outcomes_keep_the_order_of_many_batches(compare):
    with closing(WorkerPool(compare, workers=3, **LIMITS)) as pool:
        waits = [pool.submit(list(range(start, start + 100))) for start in range(0, 1000, 100)]
        outcomes = [outcome.value for wait in waits for outcome in wait()]
    assert outcomes == list(range(1000))


def test_jobs_are_shared_among_the_workers(compare):
    with closing(WorkerPool(compare, workers=2, **LIMITS)) as pool:
        outcomes = outcomes_of(pool, ["parent", "parent"])
    assert len({outcome.value for outcome in outcomes}) == 2


def test_no_jobs_start_no_worker(compare):
    before = threading.active_count()
    with closing(WorkerPool(compare, workers=4, **LIMITS)) as pool:
        assert pool.submit([])() == []
        assert threading.active_count() == before


def test_jobs_of_one_batch_share_a_fork_until_one_of_them_ends_it(pool):
    first, same, _, other = (
        outcome.value for outcome in outcomes_of(pool, ["pid", "pid", "segfault", "pid"])
    )
    assert first == same != other


def test_a_killed_supervisor_is_replaced(pool):
    os.kill(value(pool, "parent"), signal.SIGKILL)
    assert value(pool, 3) == 3, "its batch is repeated"


def test_closing_leaves_no_process_and_cancels_what_is_left(compare):
    pool = WorkerPool(compare, workers=1, cpu_seconds=60, memory_bytes=1 << 30)
    processes = [value(pool, "parent")]
    unfinished = [pool.submit(["spin"]), pool.submit([1])]
    pool.close()
    for wait in unfinished:
        with pytest.raises(CancelledError):
            wait()
    assert not any(map(is_running, processes))
    assert value(pool, 5) == 5, "the next jobs start new workers"
    pool.close()
    pool.close()


def test_dropping_the_pool_ends_its_workers(compare):
    pool = WorkerPool(compare, workers=1, **LIMITS)
    processes = [value(pool, "pid"), value(pool, "parent")]
    del pool
    assert all(map(gone_soon, processes))


def test_it_works_from_a_thread_and_in_a_forked_process(compare):
    with closing(WorkerPool(compare, workers=1, **LIMITS)) as pool:
        seen = [value(pool, "parent")]
        thread = threading.Thread(target=lambda: seen.append(value(pool, "parent")))
        thread.start()
        thread.join()
        assert seen[0] == seen[1]
        child = os.fork()
        if child == 0:
            own = value(pool, "parent")
            pool.close()
            os._exit(0 if own != seen[0] and not is_running(own) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert value(pool, "parent") == seen[0], "the fork's workers were its own"


def run_script(compare, body):
    prelude = "from contextlib import closing\nfrom pathlib import Path\n"
    prelude += "from tagrpo.rewards.workers import WorkerPool\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{prelude}compare = Path({str(compare)!r})\n{textwrap.dedent(body)}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gone_soon(pid):
    deadline = time.monotonic() + 300
    while is_running(pid) and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True  # dead, and not yet reaped by its supervisor or by init
        time.sleep(0.02)
    return not is_running(pid)


@pytest.mark.distributed
def test_a_program_that_never_closes_its_pool_exits_cleanly(compare):
    body = """
        pool = WorkerPool(compare, 1, 0.5, 1 << 30)
        print(pool.submit(["parent", "pid"])())
        unfinished = pool.submit(["spin"])
    """
    process = run_script(compare, body)
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert all(gone_soon(outcome.value) for outcome in eval(output, {"Outcome": Outcome}))


@pytest.mark.distributed
def test_workers_of_a_killed_program_end_by_themselves(compare):
    body = """
        pool = WorkerPool(compare, 1, 0.2, 1 << 30)
        print(pool.submit(["parent", "pid"])(), flush=True)
        pool.submit(["spin"])()
        import time; time.sleep(60)
    """
    process = run_script(compare, body)
    workers = [outcome.value for outcome in eval(process.stdout.readline(), {"Outcome": Outcome})]
    process.kill()
    process.communicate(timeout=300)
    assert all(map(gone_soon, workers))


@pytest.mark.distributed
def test_ctrl_c_interrupts_the_program_and_not_its_workers(compare):
    body = """
        import os, signal, threading
        with closing(WorkerPool(compare, 1, 1.5, 1 << 30)) as pool:
            first = pool.submit(["parent"])()[0].value
            try:
                threading.Timer(0.1, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
                pool.submit(["spin"])()
            except KeyboardInterrupt:
                print("interrupted", pool.submit(["parent"])()[0].value == first)
    """
    process = run_script(compare, "import os\nos.setpgrp()\n" + textwrap.dedent(body))
    output, _ = process.communicate(timeout=300)
    assert output == "interrupted True\n"


@pytest.mark.distributed
def test_workers_import_neither_the_main_program_nor_torch(tmp_path):
    compare = tmp_path / "modules.py"
    compare.write_text("import sys\ndef compare(job):\n    return job in sys.modules\n")
    program = tmp_path / "program.py"
    program.write_text(
        "print('main')\n"
        "from contextlib import closing\n"
        "from pathlib import Path\n"
        "from tagrpo.rewards.workers import WorkerPool\n"
        f"with closing(WorkerPool(Path({str(compare)!r}), 2, 1.0, 1 << 30)) as pool:\n"
        "    print(pool.submit(['torch', 'tagrpo', 'numpy'])())\n"
    )
    output = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert output == f"main\n{[Outcome(False, None)] * 3}\n"


def test_a_file_that_does_not_load_is_an_error_and_no_wrong_answer(tmp_path, capfd):
    compare = tmp_path / "broken.py"
    compare.write_text("import there_is_no_such_module\n")
    with (
        closing(WorkerPool(compare, workers=1, **LIMITS)) as pool,
        pytest.raises(RuntimeError, match="ended twice"),
    ):
        outcomes_of(pool, [1])
    assert "there_is_no_such_module" in capfd.readouterr().err


def test_a_file_that_fails_prints_neither_escape_sequences_nor_keys(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("MINE_API_KEY", "4f9a0c7d21b8")
    compare = tmp_path / "broken.py"
    noise = "print('\\x1b[2J out', flush=True)\nimport os; os.system('printf \"\\\\033[31m of a child\"')\n"
    compare.write_text(f"{noise}raise ValueError('\\x1b]0;title\\x07 ' + '4f9a0c7d' + '21b8')\n")
    with (
        closing(WorkerPool(compare, workers=1, **LIMITS)) as pool,
        pytest.raises(RuntimeError, match="ended twice"),
    ):
        outcomes_of(pool, [1])
    printed = capfd.readouterr().err
    assert "".join(printed.splitlines()).isprintable()
    assert "4f9a0c7d21b8" not in printed
    assert printed.endswith("ValueError: \\x1b]0;title\\x07 <removed>\n")
    assert "\\x1b[2J out" in printed
    assert "of a child" in printed


def test_a_comparison_that_prints_without_end_changes_no_outcome(tmp_path, capfd):
    path = tmp_path / "loud.py"
    path.write_text(
        "import os\ndef compare(job):\n    for _ in range(200): os.write(1, b'x\\x1b[2J' * 9999)\n    return job\n"
    )
    with closing(WorkerPool(path, 1, 10.0, 1 << 30)) as pool:
        assert outcomes_of(pool, [1, 2]) == [Outcome(1, None), Outcome(2, None)]
    assert "\x1b" not in capfd.readouterr().err


def test_bad_settings_are_errors(compare):
    for settings in ({"workers": 0}, {"cpu_seconds": 0.0}, {"memory_bytes": -1}):
        with pytest.raises(ValueError, match="positive limits"):
            WorkerPool(compare, **{"workers": 1, **LIMITS, **settings})


HOSTILE = """
    import os, signal, subprocess, sys, time

    def compare(job):
        if job == "ignore":
            for name in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM):
                signal.signal(name, signal.SIG_IGN)
            time.sleep(3600)
        if job == "child":
            subprocess.run([sys.executable, "-c", "import os; os.write(1, b'noise'); print(input())"])
            os.system("echo noise; cat")
        if job == "input":
            return sys.stdin.read(), os.read(0, 10).decode()
        if job == "nan":
            return float("nan")
        if job == "object":
            return object()
        if isinstance(job, str) and job.startswith("write "):
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, job[6:].encode() + b"\\n")
                except OSError:
                    pass
            os._exit(0)
        if job == "daemon":
            if os.fork() == 0:
                time.sleep(3600)
        return job
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    path = tmp_path / "hostile.py"
    path.write_text(textwrap.dedent(HOSTILE))
    with closing(WorkerPool(path, workers=1, cpu_seconds=0.1, memory_bytes=1 << 30)) as pool:
        yield pool


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("ignore", Outcome(None, "timeout")),
        ("input", Outcome(["", ""], None)),
        ("object", Outcome(None, "crash")),
        ("write [1, null]", Outcome(None, "crash")),
        ("write {", Outcome(None, "crash")),
        ("write " + "[" * 5000, Outcome(None, "crash")),
        ("write \x00", Outcome(None, "crash")),
        ("daemon", Outcome("daemon", None)),
    ],
)
def test_what_a_comparison_reads_writes_ignores_or_leaves_behind_changes_no_other_outcome(
    hostile, job, expected
):
    assert outcomes_of(hostile, [1, job, 2]) == [Outcome(1, None), expected, Outcome(2, None)]


def test_what_child_processes_print_and_read_is_not_the_protocol(tmp_path):
    path = tmp_path / "hostile.py"
    path.write_text(textwrap.dedent(HOSTILE))
    with closing(WorkerPool(path, workers=1, cpu_seconds=10.0, memory_bytes=1 << 30)) as pool:
        assert outcomes_of(pool, ["child", 1]) == [Outcome("child", None), Outcome(1, None)]


def test_nan_is_handed_on_for_the_verifier_to_judge(hostile):
    (outcome,) = outcomes_of(hostile, ["nan"])
    assert outcome.value != outcome.value


@pytest.mark.parametrize("loading", ["import time; time.sleep(3600)", "while True: pass", "input()"])
def test_loading_has_a_time_limit_and_no_terminal(tmp_path, loading):
    path = tmp_path / "slow.py"
    path.write_text(f"{loading}\ndef compare(job):\n    return job\n")
    options = {"source": "the environment 'mine'", "remedy": "Raise data.load_seconds.", "start_seconds": 1.0}
    with closing(WorkerPool(path, 1, 0.1, 1 << 30, **options)) as pool:
        with pytest.raises(RuntimeError, match=r"environment 'mine'.*data\.load_seconds"):
            outcomes_of(pool, [1])
        assert not pool._workers


@pytest.mark.parametrize(
    "reply", [b"", b"{", b"3", b"null", b"[[1, null]]", b'[{"value": 1}]', b"[]", b"[" * 9000]
)
def test_a_worker_that_sends_something_else_than_outcomes_is_named(reply):
    with pytest.raises(ForeignDataError, match=r"environment 'mine'.*Set x\."):
        read_outcomes(reply, 1, "the environment 'mine'", "Set x.")
    good = b'[{"value": [1], "failure": null}]'
    assert read_outcomes(good, 1, "the environment 'mine'", "Set x.") == [Outcome([1], None)]


@pytest.mark.parametrize("seconds", [1e5, 1e7])
def test_time_limits_of_months_are_kept(seconds, tmp_path):
    file = tmp_path / "compare.py"
    file.write_text("def compare(job): return job + 1\n")
    pool = WorkerPool(file, 1, seconds, 1 << 30, start_seconds=1e9)
    try:
        assert [outcome.value for outcome in pool.submit([1, 2])()] == [2, 3]
    finally:
        pool.close()
