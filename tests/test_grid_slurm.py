"""Grids of runs as jobs of SLURM, with a stand-in for `srun` that executes them on this machine."""

from __future__ import annotations

import os
import signal

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from rich.console import Console

from tagrpo.runs.grid import run_grid, stop
from tests.helpers import grid_run, wait_until

SRUN = """#!/bin/sh
while case "$1" in --*) true;; *) false;; esac; do echo "$1" >> {options}; shift; done
export SLURM_NTASKS=1
exec "$@"
"""
FINISH = "open('test.json', 'w').write('{}')"


@pytest.fixture
def options(tmp_path, monkeypatch):
    """The file in which the stand-in keeps the options of all jobs."""
    file, program = tmp_path / "options.txt", tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUN.format(options=file))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return file


def launcher(*overrides):
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg = compose("compare", ["launcher=slurm", *overrides])
    return OmegaConf.to_container(cfg.launcher, resolve=True)


def run_in_queue(runs, *overrides):
    return run_grid(runs, [{}] * len(runs), Console(quiet=True), launcher(*overrides))


def test_every_run_is_a_job_with_the_options_of_the_launcher(options, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "8")  # of an allocation in which the grid itself was started
    code = "print(os.environ.get('SLURM_NTASKS'), os.environ['OMP_NUM_THREADS']); " + FINISH
    runs = [grid_run(tmp_path, name, code) for name in "ab"]
    assert run_in_queue(runs, "launcher.partition=short", "gpus_per_run=8", "+launcher.account=lab") == []
    assert [run.state for run in runs] == ["done", "done"]
    for run in runs:
        assert (run.directory / "log.txt").read_text() == "None 1\n", "Lightning starts the ranks itself"
    shared = {"partition=short", "gpus-per-node=8", "cpus-per-task=16", "account=lab", "time=1440", "signal=TERM@600"}
    names = {"job-name=a-seed0", "job-name=b-seed0"}
    assert set(options.read_text().splitlines()) == {f"--{option}" for option in {*shared, *names, "ntasks=1"}}


def test_without_gpus_none_are_asked_for(options, tmp_path):
    run_in_queue([grid_run(tmp_path, "a", FINISH)])
    assert "gpus" not in options.read_text()
    assert "partition" not in options.read_text()


def test_a_failed_run_is_not_started_again(options, tmp_path):
    (failed,) = run_in_queue([grid_run(tmp_path, "a", "print('the reason'); raise SystemExit(3)")])
    assert failed.log_tail().splitlines()[-1] == "the reason"
    assert failed.starts == 1


def test_a_run_that_ends_by_itself_without_results_has_failed(options, tmp_path):
    (failed,) = run_in_queue([grid_run(tmp_path, "a", "open('finished', 'w')")])
    assert failed.starts == 1


def test_an_interrupt_ends_the_jobs(options, tmp_path):
    runs = [grid_run(tmp_path, name, "open('began', 'w'); time.sleep(600)") for name in "ab"]
    for run in runs:
        run.start(launcher(), {})
        wait_until((run.directory / "began").exists)
    stop(runs)
    assert [run.process.wait(10) for run in runs] == [-signal.SIGTERM] * 2


def test_a_run_that_was_asked_to_stop_goes_on_in_another_job(options, tmp_path):
    code = (
        "assert 'resume=auto' in sys.argv; open('began', 'a').write('x'); resumed = os.path.exists('checkpoint'); "
        "save = lambda *_: (open('checkpoint', 'w'), sys.exit(0)); signal.signal(signal.SIGTERM, save); "
        "resumed or os.kill(os.getpid(), signal.SIGTERM); " + FINISH
    )
    run = grid_run(tmp_path, "a", code)
    assert run_in_queue([run]) == []
    assert (run.state, run.starts) == ("done", 2)
    assert (run.directory / "began").read_text() == "xx"
