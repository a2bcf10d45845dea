"""Grids of runs in the queue of SLURM, whose commands stand-ins in `fake_slurm.py` execute on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from tagrpo.runs import grid
from tagrpo.runs.grid import run_grid, stop
from tests.helpers import grid_run, wait_until

COMMANDS = ("sbatch", "srun", "sacct", "scancel", "scontrol")
FINISH = "open('test.json', 'w').write('{}')"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder of the stand-ins for the state of jobs; `closed` in it keeps jobs in the queue, `refused` one out."""
    folder = tmp_path / "slurm"
    (folder / "jobs").mkdir(parents=True)
    script = Path(__file__).with_name("fake_slurm.py").read_text()
    for name in COMMANDS:
        (folder / name).write_text(script.replace("#!/usr/bin/env python3", f"#!{sys.executable}"))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield folder / "jobs"
    (folder / "jobs" / "closed").unlink(missing_ok=True)


def launcher(*overrides):
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg = compose("compare", ["launcher=slurm", *overrides])
    return OmegaConf.to_container(cfg.launcher, resolve=True)


def run_in_queue(runs, *overrides):
    return run_grid(runs, launcher(*overrides), [{}] * len(runs), Console(quiet=True))


def job_of(slurm):
    (job,) = [path for path in slurm.iterdir() if path.is_dir()]
    return job


def test_every_run_is_a_job_with_the_options_of_the_launcher(slurm, tmp_path):
    code = (
        "print(os.environ['SLURM_JOB_ID'], os.environ.get('SLURM_NTASKS'), os.environ['OMP_NUM_THREADS']); "
        + FINISH
    )
    runs = [grid_run(tmp_path, name, code) for name in "ab"]
    assert run_in_queue(runs, "launcher.partition=short", "gpus_per_run=8", "+launcher.account=lab") == []
    assert [run.state for run in runs] == ["done", "done"]
    jobs = {path.name: path for path in slurm.iterdir()}
    assert len(jobs) == 2
    for run in runs:
        job, tasks, threads = (run.directory / "log.txt").read_text().split()
        assert (tasks, threads) == ("None", "1"), "Lightning starts the ranks itself"
        assert json.loads((run.directory / "run.json").read_text())["finished"]
        options = [
            line.removeprefix("#SBATCH --") for line in (jobs[job] / "script").read_text().splitlines()
        ]
        wanted = {
            "partition=short",
            "gpus-per-node=8",
            "account=lab",
            "time=1440",
            "requeue",
            "signal=USR2@600",
        }
        assert {*wanted, f"job-name={run.method}-seed0"} <= set(options)
        assert not any(option.startswith(("ntasks", "constraint")) for option in options)


def test_without_gpus_none_are_asked_for(slurm, tmp_path):
    run_in_queue([grid_run(tmp_path, "a", FINISH)])
    assert "--gpus" not in (job_of(slurm) / "script").read_text()


def test_a_failed_run_is_a_failed_job(slurm, tmp_path):
    (failed,) = run_in_queue([grid_run(tmp_path, "a", "print('the reason'); raise SystemExit(3)")])
    assert failed.log_tail().splitlines()[-1] == "the reason"
    wait_until(lambda: (job_of(slurm) / "state").read_text() == "FAILED")


def test_a_job_that_others_have_cancelled_has_failed(slurm, tmp_path):
    run = grid_run(tmp_path, "a", "time.sleep(600)")
    run.start(launcher(), {})
    wait_until((run.directory / "log.txt").exists)
    run.job.cancel()
    wait_until(lambda: run.poll() or run.state == "failed")


def test_an_interrupt_cancels_the_jobs(slurm, tmp_path):
    runs = [grid_run(tmp_path, name, "time.sleep(600)") for name in "ab"]
    for run in runs:
        run.start(launcher(), {})
    stop(runs)
    assert [run.state for run in runs] == ["stopped", "stopped"]
    assert [(path / "state").read_text() for path in slurm.iterdir()] == ["CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("closed", [True, False])
def test_a_job_in_the_queue_is_found_by_the_same_command(slurm, tmp_path, closed):
    code = f"open({str(tmp_path / 'executed')!r}, 'a').write('x'); time.sleep(2); {FINISH}"
    if closed:
        (slurm / "closed").touch()
    grid_run(tmp_path, "a", code).start(launcher(), {})  # and whoever did this has died
    wait_until(lambda: closed or (tmp_path / "executed").exists())
    again = grid_run(tmp_path, "a", code)
    again.prepare()
    assert again.state == "queued"
    (slurm / "closed").unlink(missing_ok=True)
    assert run_in_queue([again]) == []
    assert again.state == "done"
    assert (tmp_path / "executed").read_text() == "x"


def test_jobs_that_are_found_in_the_queue_count_among_the_workers(slurm, tmp_path, monkeypatch):
    code = f"import time; time.sleep(1); {FINISH}"
    for name in "ab":
        grid_run(tmp_path, name, code).start(launcher(), {})
    runs, most = [grid_run(tmp_path, name, code) for name in "abcd"], []

    def watched(rows):
        most.append(sum(run.active for run in runs))
        return Table()

    monkeypatch.setattr(grid, "table_of", watched)
    assert run_grid(runs, launcher(), [{}] * 2, Console(quiet=True)) == []
    assert max(most) == 2
    assert [run.state for run in runs] == ["done"] * 4


def test_a_job_that_the_queue_refuses_ends_no_other(slurm, tmp_path):
    runs = [grid_run(tmp_path, name, FINISH) for name in "ab"]
    (slurm / "refused").write_text("job-name=b-seed0")
    assert run_in_queue(runs) == [runs[1]]
    assert [run.state for run in runs] == ["done", "failed"]


def test_a_run_whose_job_has_ended_without_it_starts_anew(slurm, tmp_path):
    first = grid_run(tmp_path, "a", FINISH)
    (slurm / "closed").touch()
    first.start(launcher(), {})
    first.job.cancel()
    (slurm / "closed").unlink()
    again = grid_run(tmp_path, "a", FINISH)
    assert run_in_queue([again]) == []
    assert again.state == "done"


def test_a_job_out_of_time_returns_to_the_queue_and_its_run_continues(slurm, tmp_path):
    code = (
        "assert 'resume=auto' in sys.argv; open('began', 'a').write('x'); resumed = os.path.exists('checkpoint'); "
        "save = lambda *_: (time.sleep(1), open('checkpoint', 'w'), sys.exit(0)); signal.signal(signal.SIGTERM, save); "
        "resumed or (open('ready', 'w'), time.sleep(600)); " + FINISH
    )
    run = grid_run(tmp_path, "a", code)
    run.start(launcher("launcher.timeout_min=1440"), {})
    wait_until((run.directory / "ready").exists)
    os.killpg(int((job_of(slurm) / "group").read_text()), signal.SIGUSR2)
    wait_until(lambda: run.poll() or not run.active)
    assert run.state == "done"
    assert (run.directory / "began").read_text() == "xx"
