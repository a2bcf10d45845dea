"""The scheduler of comparisons, with stand-ins for training runs."""

from __future__ import annotations

import sys
import time

import pytest
from rich.console import Console

from tagrpo.compare import Cell, cells_of, run_cells

QUIET = Console(quiet=True)


def cell(root, name, code):
    """A cell that runs `code` in its directory."""
    directory = root / name / "seed0"
    command = [sys.executable, "-c", f"import os, time; os.chdir({str(directory)!r}); {code}"]
    return Cell(name, 0, directory, command)


FINISH = "open('test.json', 'w').write('{}'); open('runs.txt', 'a').write('x')"


def test_cells_run_once_and_are_kept(tmp_path):
    run_cells([cell(tmp_path, "a", FINISH), cell(tmp_path, "b", FINISH)], 2, QUIET)
    again = [cell(tmp_path, "a", FINISH), cell(tmp_path, "c", FINISH)]
    run_cells(again, 1, QUIET)
    assert [c.state for c in again] == ["done", "done"]
    assert (tmp_path / "a" / "seed0" / "runs.txt").read_text() == "x", "a finished cell does not run again"


def test_a_failed_cell_is_reported_and_the_others_finish(tmp_path):
    cells = [cell(tmp_path, "bad", "print('the reason'); raise SystemExit(3)"), cell(tmp_path, "good", FINISH)]
    with pytest.raises(RuntimeError, match=r"(?s)1 of 2 cells failed.*the reason"):
        run_cells(cells, 1, QUIET)
    assert cells[1].state == "done"
    retried = cell(tmp_path, "bad", "print('the reason'); raise SystemExit(3)")
    retried.prepare()
    assert retried.state == "waiting", "a failed cell runs again next time"


def test_other_settings_in_the_same_place_are_refused(tmp_path):
    run_cells([cell(tmp_path, "a", FINISH)], 1, QUIET)
    with pytest.raises(ValueError, match="Choose another `root`"):
        run_cells([cell(tmp_path, "a", FINISH + "; pass")], 1, QUIET)


def test_no_more_than_the_workers_run_at_a_time(tmp_path):
    code = (
        "open('began', 'w').write(str(time.time())); time.sleep(1); open('ended', 'w').write(str(time.time())); "
        + FINISH
    )
    cells = [cell(tmp_path, name, code) for name in "abc"]
    run_cells(cells, 1, QUIET)

    def times(name):
        return [float((c.directory / name).read_text()) for c in cells]

    assert all(end <= begin for end, begin in zip(times("ended")[:-1], times("began")[1:], strict=True))


def test_an_interrupt_ends_the_children(tmp_path, monkeypatch):
    sleeper = cell(tmp_path, "a", "time.sleep(600)")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_cells([sleeper], 1, QUIET)
    assert sleeper.process.poll() is not None
    assert sleeper.state == "stopped"


def test_every_method_runs_with_every_seed(tmp_path):
    cells = cells_of(tmp_path, {"grpo": ["experiment=grpo"], "ta": []}, [0, 3], ["iterations=2"])
    assert [(c.method, c.seed) for c in cells] == [("grpo", 0), ("ta", 0), ("grpo", 3), ("ta", 3)]
    assert cells[2].command[1:] == [
        "-m", "tagrpo.train", "name=grpo", "seed=3", f"hydra.run.dir={tmp_path}/grpo/seed3",
        "iterations=2", "experiment=grpo",
    ]  # fmt: skip
