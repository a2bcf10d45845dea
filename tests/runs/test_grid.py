"""Grids of runs, with stand-ins for training runs, on this machine and through the commands of SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from tagrpo.runs import grid as module
from tagrpo.runs.grid import run_grid, stop, table_of
from tests.helpers import grid_run, wait_until

QUIET = Console(quiet=True)
FINISH = "open('test.json', 'w').write('{}'); open('runs.txt', 'a').write('x')"
LOCAL = {"cluster": "local", "timeout_min": 60}


def run_here(runs, workers=1, environments=None):
    return run_grid(runs, LOCAL, environments or [{}] * workers, QUIET)


def test_a_run_waits_for_the_one_that_it_goes_on_from(tmp_path):
    first = grid_run(tmp_path, "first", f"time.sleep(1); {FINISH}")
    second = grid_run(tmp_path, "second", f"assert os.path.exists('../../first/seed0/test.json'); {FINISH}")
    second.after = first
    assert run_here([second, first], 2) == []
    assert [first.state, second.state] == ["done", "done"]


def test_a_run_that_goes_on_from_a_failed_one_is_not_started(tmp_path):
    first, second = grid_run(tmp_path, "first", "sys.exit(3)"), grid_run(tmp_path, "second", FINISH)
    second.after = first
    assert run_here([first, second], 2) == [first, second]
    assert not second.directory.exists()
    assert f"not started, since {first.directory}" in second.log_tail()


def test_finished_runs_are_kept(tmp_path):
    assert run_here([grid_run(tmp_path, "a", FINISH), grid_run(tmp_path, "b", FINISH)], 2) == []
    again = [grid_run(tmp_path, "a", FINISH), grid_run(tmp_path, "c", FINISH)]
    run_here(again)
    assert [run.state for run in again] == ["kept", "done"]
    assert again[0].seconds > 0
    assert (tmp_path / "a" / "seed0" / "runs.txt").read_text() == "x", "a finished run is not executed again"


def test_a_failed_run_is_returned_and_the_others_finish(tmp_path):
    code = "open('left.txt', 'w'); print('the reason'); raise SystemExit(3)"
    runs = [grid_run(tmp_path, "bad", code), grid_run(tmp_path, "good", FINISH)]
    (failed,) = run_here(runs)
    assert failed.method == "bad"
    assert failed.log_tail().splitlines()[-1] == "the reason"
    assert runs[1].state == "done"


def test_a_run_that_ends_well_without_results_has_failed(tmp_path):
    (failed,) = run_here([grid_run(tmp_path, "a", "pass")])
    assert failed.state == "failed"


def test_where_a_run_wrote_nothing_the_log_is_that_of_submitit(tmp_path):
    (failed,) = run_here([grid_run(tmp_path, "a", "os._exit(5)")])
    assert failed.log_tail().splitlines()[-1].endswith("ended with 5: see log.txt.")


def test_an_unfinished_run_is_continued_in_its_directory(tmp_path):
    # The second attempt needs what the first has left behind, as a run needs its checkpoint.
    code = "assert 'resume=auto' in sys.argv; first = not os.path.exists('left.txt'); open('left.txt', 'w'); "
    switch = tmp_path / "switch"
    code += f"first and exit(1); os.path.exists({str(switch)!r}) or exit(2); {FINISH}"
    assert len(run_here([grid_run(tmp_path, "a", code)])) == 1
    switch.touch()
    assert run_here([grid_run(tmp_path, "a", code)]) == []


def test_other_settings_in_the_same_place_are_refused(tmp_path):
    run_here([grid_run(tmp_path, "a", FINISH, "lr=1", "x=2")])
    with pytest.raises(ValueError, match=r"lr=2.*lr=1.*`root`"):
        run_here([grid_run(tmp_path, "a", FINISH, "lr=2", "x=2")])
    with pytest.raises(ValueError, match=r"y=3"):
        run_here([grid_run(tmp_path, "a", FINISH, "lr=1", "x=2", "y=3")])
    with pytest.raises(ValueError, match=r"x=2"):
        run_here([grid_run(tmp_path, "a", FINISH, "lr=1")])
    with pytest.raises(ValueError, match=r"order of settings"):
        run_here([grid_run(tmp_path, "a", FINISH, "x=2", "lr=1")])


def test_the_place_of_a_run_is_no_setting(tmp_path):
    run_here([grid_run(tmp_path, "a", FINISH, "hydra.run.dir=here")])
    again = grid_run(tmp_path, "a", FINISH, "hydra.run.dir=there")
    again.prepare()
    assert again.state == "kept"


def test_foreign_files_are_never_removed(tmp_path):
    mine = tmp_path / "a" / "seed0" / "thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(ValueError, match="holds other files"):
        run_here([grid_run(tmp_path, "a", FINISH)])
    assert mine.exists()


def began(count):
    """Code of a run that notes when it began, and waits until `count` of the runs have begun."""
    wait = f"while len(glob.glob('../../*/seed0/began')) < {count}: time.sleep(0.05)"
    return f"import glob; open('began', 'w').write(str(time.time()))\n{wait}\n"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.runs), 2])
def test_as_many_runs_go_at_a_time_as_there_are_places(tmp_path, workers):
    code = f"{began(workers)}open('ended', 'w').write(str(time.time())); {FINISH}"
    runs = [grid_run(tmp_path, name, code) for name in "abc"]
    run_here(runs, workers)

    def times(name):
        return [float((run.directory / name).read_text()) for run in runs]

    begins, ends = times("began"), times("ended")
    at_once = [sum(b <= moment < e for b, e in zip(begins, ends, strict=True)) for moment in begins]
    assert max(at_once) == workers


def test_the_largest_run_of_a_seed_begins_first_and_seeds_keep_their_order(tmp_path):
    code = f"open('../../order', 'a').write(os.path.basename(os.path.dirname(os.getcwd())) + ' '); {FINISH}"
    runs = [grid_run(tmp_path, name, code) for name in ("small", "large", "middle", "next")]
    for run, size in zip(runs, (1, 3, 2, 4), strict=True):
        run.size = size
    runs[-1].seed = 1
    assert run_here(runs) == []
    assert (tmp_path / "order").read_text().split() == ["large", "middle", "small", "next"]


PRINT_ENVIRONMENT = "print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['OMP_NUM_THREADS'], 'SLURM_NTASKS' in os.environ); "


def test_each_place_has_devices_of_its_own_and_a_process_one_thread(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "8")  # of an allocation in which the grid itself was started
    runs = [grid_run(tmp_path, name, PRINT_ENVIRONMENT + began(2) + FINISH) for name in "ab"]
    run_here(runs, environments=[{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "7"}])
    assert [(run.directory / "log.txt").read_text() for run in runs] == ["4 1 False\n", "7 1 False\n"]


def test_a_variable_is_removed_where_a_place_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run = grid_run(tmp_path, "a", PRINT_ENVIRONMENT + FINISH)
    run_here([run], environments=[{"CUDA_VISIBLE_DEVICES": None}])
    assert (run.directory / "log.txt").read_text() == "None 3 False\n", (
        "not the empty list that submitit sets"
    )


def alive(pid):
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def content(path):
    return path.exists() and path.read_text()


GRANDCHILD = (
    "import subprocess; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "open('child.txt', 'w').write(str(p.pid)); time.sleep(600)"
)


def test_an_interrupt_ends_children_and_grandchildren(tmp_path, monkeypatch):
    sleeper = grid_run(tmp_path, "a", GRANDCHILD)
    child = sleeper.directory / "child.txt"

    def interrupt(table, **_):
        wait_until(lambda: content(child))
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Live, "update", lambda self, table, **_: interrupt(table))
    with pytest.raises(KeyboardInterrupt):
        run_here([sleeper])
    assert sleeper.state == "stopped"
    wait_until(lambda: not alive(int(child.read_text())))


def test_a_run_ends_even_when_it_is_stopped_before_its_process_is_there(tmp_path):
    run = grid_run(
        tmp_path, "a", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    run.start(LOCAL, {})
    stop([run])
    assert run.job.done()
    time.sleep(1)
    assert not (tmp_path / "pid").exists() or not alive(int((tmp_path / "pid").read_text()))


def test_children_that_ignore_termination_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    code = "import signal; signal.signal(15, signal.SIG_IGN); open('on', 'w').write(str(os.getpid())); time.sleep(600)"
    stubborn = grid_run(tmp_path, "a", code)
    stubborn.start(LOCAL, {})
    pid = int(wait_until(lambda: content(stubborn.directory / "on")))
    stop([stubborn])
    wait_until(lambda: not alive(pid))


PROGRAM = """
import signal, sys
from pathlib import Path
from rich.console import Console
from tagrpo.runs.grid import GridRun, run_grid
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
code = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(600)"
runs = [GridRun("a", 0, Path({root!r}) / "a", [sys.executable, "-c", code])]
run_grid(runs, {{"cluster": "local", "timeout_min": 60}}, [{{}}], Console(quiet=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.runs)])
def test_an_end_from_outside_leaves_no_run_behind(tmp_path, number):
    program = PROGRAM.format(pid=str(tmp_path / "pid"), root=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, start_new_session=True
    )
    pid = int(wait_until(lambda: content(tmp_path / "pid")))
    # A terminal sends Ctrl-C to its whole process group, submitit's processes among it.
    os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
    assert process.wait(600) == (143 if number == signal.SIGTERM else -signal.SIGINT)
    assert not alive(pid)


def test_progress_is_the_last_line_about_it_that_the_run_has_written(tmp_path):
    mine = grid_run(tmp_path, "a", "")
    mine.directory.mkdir(parents=True)
    lines = [*(f"iteration {i}/20000 · reward 0.50" for i in range(1, 20001)), "a warning", ""]
    (mine.directory / "log.txt").write_text("\n".join(lines))
    assert mine.progress() == "", "one that waits has none"
    mine.state = "running"
    assert mine.progress() == "iteration 20000/20000 · reward 0.50"
    (mine.directory / "log.txt").unlink()
    assert mine.progress() == ""


def test_a_large_grid_shows_what_is_under_way_or_failed_and_counts_all(tmp_path):
    runs = [grid_run(tmp_path, f"m{number}", "pass") for number in range(1000)]
    for run, state in zip(runs, ("done", "done", "failed", "running", "queued"), strict=False):
        run.state = state
    with (console := Console(width=100)).capture() as said:
        console.print(table_of(runs))
    rows = [line.split("│")[1].strip() for line in said.get().splitlines() if line.startswith("│")]
    assert rows == ["m2", "m3", "m4"]
    assert "2 done, 1 failed, 1 running, 1 queued, 995 waiting" in " ".join(said.get().split())
    with console.capture() as said:
        console.print(table_of(runs[:40]))
    assert said.get().count("waiting") == 35
