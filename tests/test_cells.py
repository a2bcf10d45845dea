"""The scheduler of comparisons, with stand-ins for training runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from tagrpo import cells as module
from tagrpo.cells import Cell, last_row, run_cells

QUIET = Console(quiet=True)
FINISH = "open('test.json', 'w').write('{}'); open('runs.txt', 'a').write('x')"


def cell(root, name, code, *settings):
    """A cell that runs `code` in its directory."""
    directory = root / name / "seed0"
    command = [sys.executable, "-c", f"import os, time; os.chdir({str(directory)!r}); {code}", *settings]
    return Cell(name, 0, directory, command)


def test_finished_cells_are_kept(tmp_path):
    assert run_cells([cell(tmp_path, "a", FINISH), cell(tmp_path, "b", FINISH)], 2, QUIET) == []
    again = [cell(tmp_path, "a", FINISH), cell(tmp_path, "c", FINISH)]
    run_cells(again, 1, QUIET)
    assert [c.state for c in again] == ["kept", "done"]
    assert (tmp_path / "a" / "seed0" / "runs.txt").read_text() == "x", "a finished cell does not run again"
    assert json.loads((tmp_path / "c/seed0/cell.json").read_text())["versions"]["torch"]


def test_a_failed_cell_is_returned_and_the_others_finish(tmp_path):
    code = "open('left.txt', 'w'); print('the reason'); raise SystemExit(3)"
    cells = [cell(tmp_path, "bad", code), cell(tmp_path, "good", FINISH)]
    (failed,) = run_cells(cells, 1, QUIET)
    assert failed.method == "bad"
    assert failed.log_tail().splitlines()[-1] == "the reason"
    assert cells[1].state == "done"


def test_a_run_that_ends_well_without_results_has_failed(tmp_path):
    (failed,) = run_cells([cell(tmp_path, "a", "pass")], 1, QUIET)
    assert failed.state == "failed"


def test_an_unfinished_cell_starts_anew_in_an_empty_directory(tmp_path):
    # The second run needs a file that the first must not leave behind.
    code = "assert not os.path.exists('left.txt'); open('left.txt', 'w'); "
    switch = tmp_path / "switch"
    code += f"os.path.exists({str(switch)!r}) or exit(1); {FINISH}"
    assert len(run_cells([cell(tmp_path, "a", code)], 1, QUIET)) == 1
    switch.touch()
    assert run_cells([cell(tmp_path, "a", code)], 1, QUIET) == []
    assert json.loads((tmp_path / "a/seed0/cell.json").read_text())["starts"] == 2, "the first start is on record"


def test_other_settings_in_the_same_place_are_refused(tmp_path):
    run_cells([cell(tmp_path, "a", FINISH, "lr=1", "x=2")], 1, QUIET)
    with pytest.raises(ValueError, match=r"run with `lr=2`, but it was run with `lr=1`. Choose another `root`"):
        run_cells([cell(tmp_path, "a", FINISH, "lr=2", "x=2")], 1, QUIET)


def test_the_place_of_a_run_is_no_setting(tmp_path):
    run_cells([cell(tmp_path, "a", FINISH, "hydra.run.dir=here")], 1, QUIET)
    again = cell(tmp_path, "a", FINISH, "hydra.run.dir=there")
    again.prepare()
    assert again.state == "kept"


def test_foreign_files_are_never_removed(tmp_path):
    mine = tmp_path / "a" / "seed0" / "thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(ValueError, match="holds other files"):
        run_cells([cell(tmp_path, "a", FINISH)], 1, QUIET)
    assert mine.exists()


@pytest.mark.parametrize(("workers", "most"), [(1, 1), (2, 2)])
def test_as_many_cells_run_at_a_time_as_there_are_workers(tmp_path, workers, most):
    code = "open('began', 'w').write(str(time.time())); time.sleep(0.7); open('ended', 'w').write(str(time.time())); "
    cells = [cell(tmp_path, name, code + FINISH) for name in "abc"]
    run_cells(cells, workers, QUIET)

    def times(name):
        return [float((c.directory / name).read_text()) for c in cells]

    began, ended = times("began"), times("ended")
    at_once = [sum(b <= moment < e for b, e in zip(began, ended, strict=True)) for moment in began]
    assert max(at_once) == most


def test_each_worker_has_devices_of_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = (
        f"open('environment', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'] + os.environ['OMP_NUM_THREADS']); {FINISH}"
    )
    cells = [cell(tmp_path, name, f"time.sleep(1); {code}") for name in "ab"]
    run_cells(cells, 2, QUIET, gpus=["4", "7"])
    assert sorted((c.directory / "environment").read_text() for c in cells) == ["41", "71"]


def alive(pid):
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(path, seconds=20):
    end = time.time() + seconds
    while not path.exists() or not path.read_text():
        assert time.time() < end, f"{path} never appeared"
        time.sleep(0.05)
    return path.read_text()


GRANDCHILD = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "open('child.txt', 'w').write(str(p.pid)); time.sleep(600)"
)


def test_an_interrupt_ends_children_and_grandchildren(tmp_path, monkeypatch):
    sleeper = cell(tmp_path, "a", GRANDCHILD)
    child = sleeper.directory / "child.txt"

    def interrupt(table, **_):
        wait_for(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Live, "update", lambda self, table, **_: interrupt(table))
    with pytest.raises(KeyboardInterrupt):
        run_cells([sleeper], 1, QUIET)
    assert sleeper.state == "stopped"
    end = time.time() + 20
    while alive(int(child.read_text())):  # it was killed; nobody waits until it is gone
        assert time.time() < end
        time.sleep(0.05)


def test_children_that_ignore_termination_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    stubborn = cell(
        tmp_path, "a", "import signal; signal.signal(15, signal.SIG_IGN); open('on', 'w').write('1'); time.sleep(600)"
    )
    stubborn.start({})
    wait_for(stubborn.directory / "on")
    stubborn.terminate()
    stubborn.stop()
    assert stubborn.state == "stopped"


def test_termination_from_outside_leaves_no_run_behind(tmp_path):
    program = f"""
import signal, sys
from pathlib import Path
from rich.console import Console
from tagrpo.cells import Cell, run_cells
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
directory = Path({str(tmp_path)!r}) / "a"
code = "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(600)"
run_cells([Cell("a", 0, directory, [sys.executable, "-c", code])], 1, Console(quiet=True))
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    pid = int(wait_for(tmp_path / "pid"))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 143
    assert not alive(pid)


def test_progress_is_read_from_what_the_run_has_written(tmp_path):
    code = (
        "open('config.yaml', 'w').write('iterations: 48'); "
        "open('metrics.csv', 'w').write('pass,rollout/reward,step\\n,0.25,0\\n,0.5,1\\n0.7,,1\\n,0.9'); " + FINISH
    )
    mine = cell(tmp_path, "a", code)
    assert mine.progress() == ("", "")
    run_cells([mine], 1, QUIET)
    assert mine.progress() == ("2/48", "0.50"), "rows of a validation and unfinished rows are passed over"


def test_the_last_row_of_a_long_file_is_found_without_reading_all_of_it(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,rollout/reward\n" + "".join(f"{i},0.5\n" for i in range(20000)))
    assert last_row(path, "rollout/reward", reach=100) == {"step": "19999", "rollout/reward": "0.5"}
    assert last_row(tmp_path / "none.csv", "step") is None
