"""The runs of a grid as processes of this machine, or by `srun` as jobs of a SLURM cluster; finished runs are kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .directory import FINISHED
from .files import write_json
from .secrets import redacted

OWN = ("run.json", "log.txt", FINISHED, "test.json", "model", "rollouts", "rollout_cache", "wandb*", ".lock")
"""Files that a copy of a run, which goes on, makes itself."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0
Environment = Mapping[str, str]
"""Variables that a run gets besides those of this process."""
Launcher = Mapping[str, Any] | None
"""None starts runs on this machine; else options of `srun`, of which null and 0 leave one out."""


@dataclass
class GridRun:
    """One method and seed, in a directory of its own: what is known of it is in `run.json`.

    It waits for the run `after`, whose policy it goes on from; with `longer` it is a copy of that run that goes on.
    """

    method: str
    seed: int
    directory: Path
    command: list[str]
    after: GridRun | None = None
    longer: bool = False
    state: str = field(default="waiting", init=False)
    """waiting → running → done, failed or stopped; `kept` when it had finished before."""
    seconds: float = field(default=0.0, init=False)
    place: int = field(default=0, init=False)
    starts: int = field(default=0, init=False)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)

    @property
    def settings(self) -> list[str]:
        """The command without what depends on the machine, and without secrets."""
        return [redacted(part) for part in self.command[1:] if not part.startswith("hydra.run.dir=")]

    @property
    def active(self) -> bool:
        """Whether its process has not ended, as far as is known."""
        return self.state == "running"

    @property
    def ready(self) -> bool:
        """Whether it can be started now."""
        return self.state == "waiting" and (self.after is None or self.after.state in ("done", "kept"))

    def prepare(self) -> None:
        """Find out whether the run has finished already."""
        if not self.directory.exists() or not any(self.directory.iterdir()):
            return
        if not (self.directory / "run.json").exists():
            raise ValueError(
                f"Expected {self.directory} to be empty or to hold a run of this grid, but it holds other files. "
                "Choose another `root`, or move them away."
            )
        noted = json.loads((self.directory / "run.json").read_text())
        then, now = noted["settings"], self.settings
        if then != now:
            was, new = (" ".join(part for part in a if part not in b) for a, b in ((then, now), (now, then)))
            raise ValueError(
                f"Expected {self.directory} to have been run with `{new or 'the same settings in this order'}`, but it "
                f"was run with `{was or 'another order of them'}`. Choose another `root`, or delete that directory."
            )
        self.starts = noted["starts"]
        if (self.directory / "test.json").exists():
            self.state, self.seconds = "kept", noted["seconds"]

    def start(self, launcher: Launcher, environment: Environment) -> None:
        """Start the run; it resumes if a checkpoint exists."""
        if self.longer and self.after is not None and not self.directory.exists():
            copy_run(self.after.directory, self.directory)
        self.starts += 1
        self._note()
        options = {"job_name": f"{self.method}-seed{self.seed}", "ntasks": 1, **(launcher or {})}
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value]
        # SLURM_NTASKS makes Lightning wait for SLURM to start the ranks of the run.
        srun = ["srun", *given, "env", "-u", "SLURM_NTASKS"] if launcher is not None else []
        # One thread: several processes with threads on all cores slow each other down.
        merged = {"OMP_NUM_THREADS": "1", **os.environ, **environment}
        merged.pop("SLURM_NTASKS", None)
        with (self.directory / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*srun, *self.command, "resume=auto"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=merged,
                start_new_session=True,  # to be ended as a whole, by us alone: a terminal sends Ctrl-C to its own
            )  # fmt: skip
        self.state, self._began = "running", time.monotonic()

    def _note(self) -> None:
        noted = {"settings": self.settings, "starts": self.starts, "seconds": self.seconds}
        write_json(self.directory / "run.json", noted)

    def poll(self, launcher: Launcher = None) -> None:
        """Note how long the run has taken, and how it has ended; one that SLURM has asked to stop waits again."""
        assert self.process is not None
        self.seconds, code = time.monotonic() - self._began, self.process.poll()
        if code == 0 and (self.directory / "test.json").exists():
            self.state = "done"
            self._note()
        elif code == 0 and launcher is not None and not (self.directory / FINISHED).exists():
            self.state = "waiting"
        elif code is not None:
            self.state = "failed"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the run and all that it has started; `srun` hands it on."""
        with suppress(ProcessLookupError):  # all of them have ended
            if self.process is not None:
                os.killpg(self.process.pid, number)

    def progress(self) -> str:
        """The last line of `IterationProgress`."""
        lines = tail_of(self.directory / "log.txt", 50) if self.active else []
        return next((line for line in reversed(lines) if line.startswith(("iteration ", "test batch "))), "")

    def log_tail(self, lines: int = 15) -> str:
        """The last lines that the run wrote, and its exit code."""
        if self.after and self.after.state == "failed":
            return f"{self.directory}: not started, since {self.after.directory}, whose policy it goes on from, failed."
        path, code = self.directory / "log.txt", self.process.returncode if self.process else None
        return "\n".join([f"{path} (exit code {code}):", *tail_of(path, lines)])


def tail_of(path: Path, lines: int) -> list[str]:
    """The last lines of a file, within its last 64 kB; none where there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 2**16, 0))
        return file.read().decode(errors="replace").splitlines()[-lines:]


def copy_run(directory: Path, to: Path) -> None:
    """Copy what a run goes on from, and what it has logged; not its responses nor its end."""
    partial = to.with_name(f".{to.name}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(directory, partial, ignore=shutil.ignore_patterns(*OWN))
    partial.replace(to)


def run_grid(
    runs: list[GridRun], places: list[Environment], console: Console, launcher: Launcher = None
) -> list[GridRun]:
    """Run what has not finished, as many at a time as there are places; return the runs that failed.

    The console shows a table of all runs, and a line for each that ends. On an interrupt all are stopped.
    """
    for run in runs:
        run.prepare()
    try:
        with Live(table_of(runs), console=console, auto_refresh=False) as live:
            while any(run.state == "waiting" or run.active for run in runs):
                for run in [run for run in runs if run.active]:
                    run.poll(launcher)
                    if not run.active:
                        console.print(f"{run.method} seed {run.seed}: {run.state} after {run.seconds:.0f} s")
                for run in runs:
                    if run.state == "waiting" and run.after and run.after.state == "failed":
                        run.state = "failed"
                free = sorted(set(range(len(places))) - {run.place for run in runs if run.active})
                for place, run in zip(free, [run for run in runs if run.ready], strict=False):
                    run.place = place
                    run.start(launcher, places[place])
                live.update(table_of(runs), refresh=True)
                time.sleep(POLL_SECONDS)
    finally:
        stop([run for run in runs if run.active])
    return [run for run in runs if run.state == "failed"]


def stop(runs: list[GridRun]) -> None:
    """End runs by SIGTERM, and what is left of them after `GRACE_SECONDS` by SIGKILL."""
    for run in runs:
        run.send(signal.SIGTERM)
        run.state = "stopped"
    end = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < end and any(run.process and run.process.poll() is None for run in runs):
        time.sleep(0.05)
    for run in runs:
        run.send(signal.SIGKILL)  # also to children that outlive the run


def table_of(runs: list[GridRun]) -> Table:
    """The state of all runs."""
    table = Table("method", "seed", "state", "seconds", "progress")
    for run in runs:
        seconds = f"{run.seconds:.0f}" if run.seconds else ""
        table.add_row(run.method, str(run.seed), run.state, seconds, run.progress())
    return table
