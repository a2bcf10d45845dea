"""`tagrpo-compare`: methods × seeds as runs of their own, side by side, then one report.

A cell is a run of `tagrpo-train` in `<root>/<method>/seed<k>/`. Finished cells are kept: an interrupted comparison
goes on where it was, and further seeds or methods only add cells.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hydra
from omegaconf import DictConfig
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .analysis.report import write_report

POLL_SECONDS = 0.5


@dataclass
class Cell:
    """One method and seed."""

    method: str
    seed: int
    directory: Path
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    state: str = field(default="waiting")

    @property
    def line(self) -> str:
        """The command as a user would type it."""
        return shlex.join(["python", *self.command[1:]])

    def prepare(self) -> None:
        """Decide whether the cell has run already.

        Raises:
            ValueError: its directory holds a run with other settings.
        """
        record = self.directory / "command.txt"
        if record.exists() and record.read_text().strip() != self.line:
            raise ValueError(
                f"Expected {self.directory} to hold the run `{self.line}`, but it holds `{record.read_text().strip()}`."
                " Choose another `root`, or delete that directory."
            )
        if (self.directory / "test.json").exists() and record.exists():
            self.state = "done"

    def start(self) -> None:
        """Start the run; its output goes to `log.txt`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "command.txt").write_text(self.line + "\n")
        with (self.directory / "log.txt").open("wb") as log:
            # In a process group of its own, so that its own children end with it.
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.started, self.state = time.monotonic(), "running"

    def poll(self) -> None:
        """Note whether the run has ended."""
        if self.process is not None and self.state == "running" and self.process.poll() is not None:
            self.state = "done" if self.process.returncode == 0 else "failed"

    def stop(self) -> None:
        """End the run and wait for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
            self.state = "stopped"

    def progress(self) -> str:
        """What the metrics say so far."""
        path = self.directory / "metrics.csv"
        lines = path.read_text().splitlines() if path.exists() and self.state != "waiting" else []
        return f"{max(len(lines) - 1, 0)} rows logged" if lines else ""


def cells_of(
    root: Path, methods: Mapping[str, Sequence[str]], seeds: Sequence[int], overrides: Sequence[str]
) -> list[Cell]:
    """Every method with every seed, seed by seed, so that an interrupted comparison has whole seeds.

    Args:
        root: Where run directories go.
        methods: Method → its overrides.
        seeds: Seeds.
        overrides: Given to every cell.
    """
    cells = []
    for seed in seeds:
        for method, own in methods.items():
            directory = root / method / f"seed{seed}"
            arguments = [f"name={method}", f"seed={seed}", f"hydra.run.dir={directory}", *overrides, *own]
            command = [sys.executable, "-m", "tagrpo.train", *arguments]
            cells.append(Cell(method, seed, directory, command))
    return cells


def run_cells(cells: Sequence[Cell], workers: int, console: Console) -> None:
    """Run what has not run, `workers` at a time; on an interrupt end all of them.

    Raises:
        RuntimeError: some cells failed; the others were finished first.
    """
    for cell in cells:
        cell.prepare()
    try:
        with Live(table_of(cells), console=console, refresh_per_second=2) as live:
            while any(cell.state in ("waiting", "running") for cell in cells):
                for cell in cells:
                    cell.poll()
                free = workers - sum(cell.state == "running" for cell in cells)
                for cell in list(_waiting(cells))[:free]:
                    cell.start()
                live.update(table_of(cells))
                time.sleep(POLL_SECONDS)
            live.update(table_of(cells))
    finally:
        for cell in cells:
            cell.stop()
    failed = [cell for cell in cells if cell.state == "failed"]
    if failed:
        tails = [f"{cell.directory / 'log.txt'}:\n{tail(cell.directory / 'log.txt')}" for cell in failed]
        raise RuntimeError(f"{len(failed)} of {len(cells)} cells failed; the others are kept.\n" + "\n".join(tails))


def _waiting(cells: Sequence[Cell]) -> Iterator[Cell]:
    return (cell for cell in cells if cell.state == "waiting")


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a text file."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def table_of(cells: Sequence[Cell]) -> Table:
    """The state of all cells."""
    table = Table("method", "seed", "state", "seconds", "progress")
    for cell in cells:
        seconds = f"{time.monotonic() - cell.started:.0f}" if cell.state == "running" else ""
        table.add_row(cell.method, str(cell.seed), cell.state, seconds, cell.progress())
    return table


def compare(
    root: Path,
    methods: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    workers: int | None = None,
) -> Path:
    """Run all cells and write the report.

    Returns:
        Path of report.html.
    """
    console = Console()
    run_cells(cells_of(root, methods, seeds, overrides), workers or os.cpu_count() or 1, console)
    page = write_report(root, order=list(methods))
    console.print(
        f"\nReport: [bold]{page}[/bold]\n        {root / 'report.md'}\n        {root / 'results.json'}",
        soft_wrap=True,
    )
    return page


@hydra.main(config_path="pkg://tagrpo.configs", config_name="compare", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    methods = {str(name): list(overrides) for name, overrides in cfg.methods.items()}
    root = Path(cfg.root)
    if cfg.report_only:
        print(write_report(root, order=list(methods)))
    else:
        compare(root, methods, list(cfg.seeds), list(cfg.overrides), cfg.workers)


if __name__ == "__main__":
    main()
