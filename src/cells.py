"""Runs as processes, side by side: start, watch, stop, and leave alone what has run already."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0
PACKAGES = ("tagrpo", "torch", "lightning", "transformers")


@dataclass
class Cell:
    """One method and seed, in a directory of its own.

    `cell.json` beside the run's files says what it was run with, how often it was started, and whether it ended well.
    Changes of code or of YAML files are not noticed, only those of the command.
    """

    method: str
    seed: int
    directory: Path
    command: list[str]
    state: str = field(default="waiting", init=False)
    """waiting → running → done, failed or stopped; `kept` when it had run before."""
    seconds: float = field(default=0.0, init=False)
    slot: int = field(default=0, init=False)
    starts: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _iterations: int | None = field(default=None, init=False)

    @property
    def settings(self) -> list[str]:
        """The command without what depends on the machine."""
        return [part for part in self.command[1:] if not part.startswith("hydra.run.dir=")]

    def prepare(self) -> None:
        """Decide whether the cell has run already. One that was interrupted starts anew.

        Raises:
            ValueError: its directory holds a run with other settings, or no cell at all.
        """
        if not self.directory.exists() or not any(self.directory.iterdir()):
            return
        record = self._record()
        if record is None:
            raise ValueError(
                f"Expected {self.directory} to be free or to hold a cell, but it holds other files. "
                "Choose another `root`, or move them away."
            )
        if record["settings"] != self.settings:
            then = " ".join(part for part in record["settings"] if part not in self.settings)
            now = " ".join(part for part in self.settings if part not in record["settings"])
            raise ValueError(
                f"Expected {self.directory} to have been run with `{now or 'the same settings in this order'}`, but it "
                f"was run with `{then or 'another order of them'}`. Choose another `root`, or delete that directory."
            )
        self.starts = record.get("starts", 1)
        if record["finished"]:
            self.state, self.seconds = "kept", record["seconds"]

    def start(self, environment: dict[str, str]) -> None:
        """Start the run in an empty directory; its output goes to `log.txt`."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.starts += 1
        self._note(finished=False)
        with (self.directory / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=True,  # a process group of its own, so that its children can be ended with it
            )
        self._began, self.state = time.monotonic(), "running"

    def poll(self) -> None:
        """Note how long the run has taken, and whether it has ended."""
        if self._process is None or self.state != "running":
            return
        self.seconds = time.monotonic() - self._began
        if self._process.poll() is not None:
            done = self._process.returncode == 0 and (self.directory / "test.json").exists()
            self.state = "done" if done else "failed"
            self._note(finished=done)

    def terminate(self) -> None:
        """Ask the run and its children to end."""
        if self.state == "running":
            self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Wait for the run to end, and end it if it takes more than `GRACE_SECONDS`."""
        if self._process is None or self.state != "running":
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._signal(signal.SIGKILL)  # children that outlive their parent, too
        self._process.wait()
        self.state = "stopped"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, number)

    def _record(self) -> dict[str, Any] | None:
        path = self.directory / "cell.json"
        return json.loads(path.read_text()) if path.exists() else None

    def _note(self, *, finished: bool) -> None:
        versions = {name: version(name) for name in PACKAGES}
        record = {
            "settings": self.settings,
            "finished": finished,
            "starts": self.starts,
            "seconds": self.seconds,
            "versions": versions,
        }
        path = self.directory / "cell.json"
        path.with_suffix(".tmp").write_text(json.dumps(record, indent=1) + "\n")
        path.with_suffix(".tmp").replace(path)

    def progress(self) -> tuple[str, str]:
        """Iteration of how many, and the last mean reward, as far as the run has written them."""
        if self.state in ("waiting", "kept"):
            return "", ""
        row = last_row(self.directory / "metrics.csv", "rollout/reward")
        if row is None:
            return "", ""
        if self._iterations is None:  # read once: YAML is slow, and this is asked for twice a second
            self._iterations = yaml.safe_load((self.directory / "config.yaml").read_text())["iterations"]
        return f"{int(row['step']) + 1}/{self._iterations}", f"{float(row['rollout/reward']):.2f}"

    def log_tail(self, lines: int = 15) -> str:
        """The last lines that the run wrote."""
        path = self.directory / "log.txt"
        tail = path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
        return "\n".join([f"{path}:", *tail])


def last_row(path: Path, column: str, reach: int = 1 << 16) -> dict[str, str] | None:
    """The last row of a CSV file that has a value in `column`, among its last `reach` bytes.

    None where there is none, also while the file is being rewritten.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        header = file.readline().decode().strip().split(",")
        file.seek(max(path.stat().st_size - reach, file.tell()))
        lines = file.read().decode(errors="replace").splitlines()
    for cells in csv.reader(reversed(lines)):
        row = dict(zip(header, cells, strict=False))
        if len(cells) == len(header) and row.get(column):
            return row
    return None


def run_cells(cells: Sequence[Cell], workers: int, console: Console, gpus: Sequence[str] = ()) -> list[Cell]:
    """Run what has not run, `workers` at a time; on an interrupt end all of them.

    Args:
        cells: What to run, in this order.
        workers: Processes at a time.
        console: Shows a table of all cells, and a line for each that ends.
        gpus: Devices to deal out to the workers in equal shares; when empty, all see what this process sees.

    Returns:
        The cells that failed.
    """
    for cell in cells:
        cell.prepare()
    try:
        with Live(table_of(cells), console=console, auto_refresh=False) as live:
            while any(cell.state in ("waiting", "running") for cell in cells):
                _advance(cells, workers, gpus, console)
                live.update(table_of(cells), refresh=True)
                time.sleep(POLL_SECONDS)
    finally:
        for cell in cells:
            cell.terminate()
        for cell in cells:
            cell.stop()
    return [cell for cell in cells if cell.state == "failed"]


def _advance(cells: Sequence[Cell], workers: int, gpus: Sequence[str], console: Console) -> None:
    running = [cell for cell in cells if cell.state == "running"]
    for cell in running:
        cell.poll()
        if cell.state != "running":
            console.print(f"{cell.method} seed {cell.seed}: {cell.state} after {cell.seconds:.0f} s")
    free = sorted(set(range(workers)) - {cell.slot for cell in cells if cell.state == "running"})
    for slot, cell in zip(free, [cell for cell in cells if cell.state == "waiting"], strict=False):
        cell.slot = slot
        cell.start(environment_of(slot, workers, gpus))


def environment_of(slot: int, workers: int, gpus: Sequence[str]) -> dict[str, str]:
    """What a worker's process gets beside the environment of this one.

    One thread unless the user said otherwise: processes side by side, each with all cores, slow each other down.

    >>> environment_of(1, 2, ["0", "1", "2", "3"])["CUDA_VISIBLE_DEVICES"]
    '2,3'
    """
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if gpus:
        share = len(gpus) // workers
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot * share : (slot + 1) * share])
    return environment


def table_of(cells: Sequence[Cell]) -> Table:
    """The state of all cells."""
    table = Table("method", "seed", "state", "iteration", "reward", "seconds")
    for cell in cells:
        iteration, reward = cell.progress()
        seconds = f"{cell.seconds:.0f}" if cell.seconds else ""
        table.add_row(cell.method, str(cell.seed), cell.state, iteration, reward, seconds)
    return table
