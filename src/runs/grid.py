"""Grids of runs as submitit jobs, on this machine or in a SLURM queue. Finished runs are not repeated."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from rich.console import Console
from rich.live import Live
from rich.table import Table
from submitit.core.utils import FailedJobError
from submitit.helpers import Checkpointable, DelayedSubmission, clean_env

from ..files import folder_written_whole, write_json, write_text
from ..foreign import Message, read_json
from ..redaction import for_terminal, redacted

OWN = (
    "job",
    "run.json",
    "log.txt",
    "finished",
    "test.json",
    "model",
    "rollouts",
    "rollout_cache",
    "wandb*",
    ".lock",
)
POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0
MOST_ROWS = 40  # of the table of runs
Environment = Mapping[str, str | None]  # variables that a run gets besides those of its job; None removes one
# `cluster`, `local` or `slurm`, and parameters of submitit's executor but null and 0
Launcher = Mapping[str, Any]


class Note(Message):
    """Content of the file `run.json` of a run."""

    settings: list[str]
    finished: bool = False
    seconds: float = 0.0


def read_note(directory: Path) -> Note:
    """Read the `run.json` of a run.

    Raises:
        ForeignDataError: if the file is damaged.
    """
    path = directory / "run.json"
    remedy = f"Put a copy in its place, or move {directory} away to run it anew."
    return read_json(Note, path.read_bytes(), source=str(path), remedy=remedy)


def write_note(directory: Path, note: Note) -> None:
    """Write the `run.json` of a run."""
    write_json(directory / "run.json", note.model_dump())


@dataclass
class Training(Checkpointable):
    """Job of a run.

    Before SLURM ends a job, submitit calls `checkpoint` and requeues the job; then the run resumes.
    """

    command: list[str]
    directory: Path
    environment: Environment

    def __call__(self) -> None:
        """Execute the command with its output in `log.txt`; write to `run.json` whether the run finished."""
        began = time.monotonic()
        if submitit.JobEnvironment().cluster == "local":  # a separate process group, to be ended as a whole
            os.setsid()
        write_text(self.directory / "job" / "group", str(os.getpid()))
        # The signal that SLURM sends before the end is for submitit, but it reaches all processes of the job.
        command = ["sh", "-c", 'trap "" USR2; exec "$@"', "sh", *self.command, "resume=auto"]
        # One thread: several processes with threads on all cores slow each other down. No SLURM_NTASKS: it
        # makes
        # Lightning wait for SLURM to start the ranks of the run.
        merged = {"OMP_NUM_THREADS": "1", **os.environ, "SLURM_NTASKS": None, **self.environment}
        environment = {name: value for name, value in merged.items() if value is not None}
        with (self.directory / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        code = self._process.wait()
        noted = read_note(self.directory)
        # A run that was told to stop ends with 0 too.
        finished = code == 0 and (self.directory / "test.json").exists()
        write_note(
            self.directory, Note(settings=noted.settings, finished=finished, seconds=time.monotonic() - began)
        )
        if code:
            raise RuntimeError(
                f"Expected the run to end without an error, but it ended with {code}: see log.txt."
            )

    def checkpoint(self) -> DelayedSubmission:
        """Let the run finish its iteration, write a checkpoint and end; return the job to requeue."""
        self._process.terminate()
        with suppress(ChildProcessError):  # the process had ended when the signal came
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Training(self.command, self.directory, self.environment))


@dataclass
class GridRun:
    """Run of one method and seed in a separate directory, with its state in `run.json` and files in `job/`.

    With `after`, the run starts from the policy of the run `after`, and waits for that run. With `longer`,
    the run starts as a copy of the run `after`.
    """

    method: str
    seed: int
    directory: Path
    command: list[str]
    after: GridRun | None = None
    longer: bool = False
    size: int = 0
    """Number of responses that training samples. Of a seed's waiting runs, the largest starts first."""
    state: str = field(default="waiting", init=False)
    """waiting → queued → running → done, failed or stopped; `kept` if an earlier call finished the run."""
    seconds: float = field(default=0.0, init=False)
    place: int = field(default=0, init=False)
    job: submitit.Job[None] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)

    @property
    def settings(self) -> list[str]:
        """Command without its directories, which depend on the machine, and without secrets."""
        return [redacted(part) for part in self.command[1:] if not part.startswith("hydra.")]

    @property
    def active(self) -> bool:
        """Whether the run has a job that had not ended at the last `poll`."""
        return self.state in ("queued", "running")

    def prepare(self) -> None:
        """Check whether the run has finished already, or has a job in SLURM's queue from an earlier call."""
        if not self.directory.exists() or not any(self.directory.iterdir()):
            return
        if not (self.directory / "run.json").exists():
            raise ValueError(
                f"Expected {self.directory} to be empty or to hold a run of this grid, but it holds other "
                "files. Choose another `root`, or move them away."
            )
        noted = read_note(self.directory)
        then, now = noted.settings, self.settings
        if then != now:
            wanted = " ".join(part for part in now if part not in then) or "fewer settings"
            found = " ".join(part for part in then if part not in now) or "fewer"
            if set(then) == set(now):
                wanted = "this order of settings"
                found = "another"
            raise ValueError(
                f"Expected {self.directory} to have been run with {wanted}, but it was run with "
                f"{found}. Choose another `root`, or delete that directory."
            )
        if noted.finished:
            self.state, self.seconds = "kept", noted.seconds
            return
        for script in (self.directory / "job").glob("*_submission.sh"):  # only jobs of SLURM have one
            job: submitit.Job[None] = submitit.SlurmJob(
                script.parent, script.name.removesuffix("_submission.sh")
            )
            if not job.done(force_check=True):
                self.state, self.job = "queued", job

    def start(self, launcher: Launcher, environment: Environment) -> None:
        """Submit the run, which resumes if a checkpoint exists."""
        directory = self.directory.absolute()
        if self.longer and self.after is not None and not directory.exists():
            copy_run(self.after.directory, directory)
        shutil.rmtree(directory / "job", ignore_errors=True)
        write_note(directory, Note(settings=self.settings))
        options = {"name": f"{self.method}-seed{self.seed}", **launcher}
        cluster = options.pop("cluster")
        executor = submitit.AutoExecutor(directory / "job", cluster=cluster)
        executor.update_parameters(**{f"{cluster}_{name}": value for name, value in options.items() if value})
        # A terminal sends Ctrl-C to all its processes. Jobs ignore the signal; this process then ends them.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with clean_env():
                self.job = executor.submit(Training(self.command, directory, environment))
        finally:
            signal.signal(signal.SIGINT, handler)
        self.state = "queued"

    def poll(self) -> None:
        """Update whether the run has begun, its duration so far, and whether its job has ended."""
        assert self.job is not None
        if self.state == "queued" and (self.directory / "job" / "group").exists():
            self.state, self._began = "running", time.monotonic()
        if self.state == "running":
            self.seconds = time.monotonic() - self._began
        if self.job.done():
            self.state = "done" if read_note(self.directory).finished else "failed"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to a local job and all its child processes. Cancel a SLURM job instead."""
        group = self.directory / "job" / "group"
        with suppress(ProcessLookupError):  # all of them have ended
            if isinstance(self.job, submitit.SlurmJob):
                self.job.cancel(check=False)
            elif group.exists():
                os.killpg(int(group.read_text()), number)
            elif self.job is not None:  # only submitit's process is there, whose id is that of the job
                os.kill(int(self.job.job_id), number)

    def progress(self) -> str:
        """Return the last progress line of `IterationProgress` in the run's log."""
        lines = tail_of(self.directory / "log.txt", 50) if self.active else []
        found = next((line for line in reversed(lines) if line.startswith(("iteration ", "test batch "))), "")
        return for_terminal(found)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the run's log, or of submitit's log if the run has written none."""
        if self.after and self.after.state == "failed":
            return f"{self.directory}: not started, since {self.after.directory}, whose policy it starts from, failed."
        path = self.directory / "log.txt"
        if self.job is not None and not (path.exists() and path.stat().st_size):
            path = self.job.paths.stderr
        return for_terminal("\n".join([f"{path}:", *tail_of(path, lines)]))


def tail_of(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file, from its last 64 kB; empty if the file is missing."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 2**16, 0))
        return file.read().decode(errors="replace").splitlines()[-lines:]


def copy_run(directory: Path, to: Path) -> None:
    """Copy a run's checkpoints, settings and logs.

    The entries in `OWN`, which are the run's responses, results and job notes, are not copied.
    """
    with folder_written_whole(to) as partial:
        shutil.copytree(directory, partial, ignore=shutil.ignore_patterns(*OWN), dirs_exist_ok=True)


def run_grid(
    runs: list[GridRun], launcher: Launcher, places: list[Environment], console: Console
) -> list[GridRun]:
    """Execute all runs that have not finished, one per place at a time; return the failed runs.

    The console shows a table of all runs, and a line for each run that ends. On an interrupt all jobs are
    stopped. Among the runs that can start, those of the first seed in `runs` start first.
    """
    seeds = list(dict.fromkeys(run.seed for run in runs))
    for run in runs:
        run.prepare()
    # SLURM's queue has them from an earlier call
    for place, run in enumerate([run for run in runs if run.active]):
        run.place = place
    try:
        with Live(table_of(runs), console=console, auto_refresh=False) as live:
            while any(run.state == "waiting" or run.active for run in runs):
                for run in [run for run in runs if run.active]:
                    run.poll()
                    if not run.active:
                        console.print(f"{run.method} seed {run.seed}: {run.state} after {run.seconds:.0f} s")
                for run in runs:
                    if run.state == "waiting" and run.after and run.after.state == "failed":
                        run.state = "failed"
                free = sorted(set(range(len(places))) - {run.place for run in runs if run.active})
                waiting = [run for run in runs if run.state == "waiting"]
                ready = [run for run in waiting if run.after is None or run.after.state in ("done", "kept")]
                ready.sort(key=lambda run: (seeds.index(run.seed), -run.size))
                for place, run in zip(free, ready, strict=False):
                    run.place = place
                    try:
                        run.start(launcher, places[place])
                    except FailedJobError as error:  # jobs in the queue continue
                        run.state = "failed"
                        console.print(f"{run.method} seed {run.seed}: not queued. {error}", markup=False)
                live.update(table_of(runs), refresh=True)
                time.sleep(POLL_SECONDS)
    finally:
        stop([run for run in runs if run.active])
    return [run for run in runs if run.state == "failed"]


def stop(runs: list[GridRun]) -> None:
    """Cancel jobs of SLURM; end local jobs by SIGTERM, and by SIGKILL after `GRACE_SECONDS`."""
    for run in runs:
        run.send(signal.SIGTERM)
        run.state = "stopped"
    local = [run for run in runs if isinstance(run.job, submitit.LocalJob)]
    end = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < end and not all(run.job and run.job.done() for run in local):
        time.sleep(0.05)
    for run in local:
        run.send(signal.SIGKILL)  # also to children that outlive the run


def table_of(runs: list[GridRun]) -> Table:
    """Return a table of states, with counts.

    If there are more than `MOST_ROWS` runs, the table shows only active and failed runs.
    """
    many = len(runs) > MOST_ROWS
    told = ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())
    table = Table("method", "seed", "state", "seconds", "progress", caption=told if many else None)
    for run in [run for run in runs if not many or run.active or run.state == "failed"][:MOST_ROWS]:
        seconds = f"{run.seconds:.0f}" if run.seconds else ""
        table.add_row(run.method, str(run.seed), run.state, seconds, run.progress())
    return table
