"""Run a method of yours in the benchmark, and print it beside those that are in it.

    python -m studies.benchmark.run --method mine --overrides experiment=grpo loss.clip_high=0.28
    python -m studies.benchmark.run --method mine --overrides experiment=mine --config-dir my_configs
    python -m studies.benchmark.run --method mine --overrides experiment=grpo --settings countdown/easy --seeds 0
    python -m studies.benchmark.run --all                   # every method of the grids

Overrides are those of tagrpo-train; a class of yours is named by `_target_` (docs/extending.md). Starters that are
missing are made first. Finished runs are kept, so that the same command goes on where it was interrupted.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_module
from rich.console import Console

from tagrpo.cli.console import explained
from tagrpo.runs.grid import GridRun, run_grid
from tagrpo.study.compare import Method, check_methods, methods_of, runs_of, shared_overrides

from . import page
from .digest import BASE, SETTINGS, Runs, digest, setting_of, write

CONFIGS = Path(__file__).parent / "configs"
GRIDS: Mapping[str, Sequence[str]] = {
    "benchmark": SETTINGS,
    "benchmark_templates": SETTINGS[:1],  # the policies of the other tasks know no words of the templates
}
"""Grid → the settings that it is run in."""
STARTERS = Path("runs/starters")
"""`<task>/seed<k>`: the policies that runs begin with."""
BESIDE = ("grpo", "grpo_matched", "ta_grpo", "pass_at_k")
"""Methods that one of yours is shown beside."""
FIXED = re.compile(
    r"[+~]*(name|seed|recipe|data|model(\..*)?|data\.(train\.(regime|size)|evaluation.*)|callbacks(\..*)?)(=|$)"
)
"""Settings that all methods share."""


@dataclass(frozen=True)
class Own:
    """A method of yours.

    Raises:
        ValueError: its name is no new one, or its overrides name no experiment or change what all methods share.
    """

    name: str
    overrides: Sequence[str]
    """Of tagrpo-train."""
    config_dir: Path | None = None
    """A folder with options of yours."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", self.name):
            raise ValueError(
                f"Expected --method to be a letter and then letters, digits and _, but got {self.name!r}."
            )
        if self.name in {run["method"] for runs in page.kept() for run in runs}:
            raise ValueError(
                f"Expected --method to be a new name, but the benchmark has {self.name!r}. Choose another."
            )
        if sum(override.startswith("experiment=") for override in self.overrides) != 1:
            raise ValueError(
                "Expected --overrides to name one experiment to start from, as experiment=grpo, but got "
                f"{' '.join(self.overrides) or 'none'}."
            )
        if fixed := [override for override in self.overrides if FIXED.match(override)]:
            raise ValueError(
                f"Expected --overrides to leave alone what all methods here share, but got {' '.join(fixed)}. "
                "Leave that out, or compare runs of your own by tagrpo-compare."
            )


def grid(
    preset: str, setting: str, seeds: Sequence[int], *changes: str, own: Own | None = None
) -> list[GridRun]:
    """The runs of a grid in one setting, seed by seed; with `own` of this method and the untrained policy alone.

    `changes` are of the grid, and are for all of its runs.
    """
    task, _, regime = setting.partition("/")
    places = [f"hydra.searchpath=[file://{CONFIGS.resolve()}]", f"starters={STARTERS}"]
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg = compose("compare", [*places, f"compare={preset}", f"task={task}", f"regime={regime}", *changes])
        methods, shared = methods_of(cfg.methods, cfg.scale), shared_overrides(cfg)
    if own is None:
        return runs_of(Path(cfg.root), methods, list(seeds), shared)
    folder = own.config_dir and own.config_dir.resolve()
    mine = Method([*([f"hydra.searchpath=[file://{folder}]"] if folder else []), *own.overrides])
    check_methods({own.name: mine}, shared)
    return runs_of(Path(cfg.root), {BASE: methods[BASE], own.name: mine}, list(seeds), shared)


def execute(runs: Sequence[GridRun], workers: int) -> None:
    """Make the runs that have not finished, seed by seed; exits with the log of one that failed."""
    launcher = {"cluster": "local", "timeout_min": 525600}
    if failed := run_grid(sorted(runs, key=lambda run: run.seed), launcher, [{}] * workers, Console()):
        names = ", ".join(str(run.directory) for run in failed)
        sys.exit(f"{failed[0].log_tail()}\nFailed, see log.txt in each: {names}")


def make_starters(settings: Sequence[str], seeds: Sequence[int], workers: int) -> None:
    """Make the policies to start from that are missing, as `make starters` does, some minutes of one core each."""
    places = {
        STARTERS / (task := setting.partition("/")[0]) / f"seed{n}": (task, n)
        for n in seeds
        for setting in settings
    }
    missing = [folder for folder in places if not (folder / "warmstart.json").exists()]

    def make(folder: Path) -> Path:
        task, seed = places[folder]
        command = [sys.executable, "-m", "examples.starters.warmstart", "--task", task, "--seed", str(seed)]
        subprocess.run([*command, "--output", folder], check=True, stdout=subprocess.DEVNULL)
        return folder

    with ThreadPoolExecutor(workers) as pool:
        for number, folder in enumerate(pool.map(make, missing), 1):
            print(f"{folder}: {number} of {len(missing)} starters made", flush=True)


def beside(own: Runs) -> Iterator[str]:
    """A table of methods beside the untrained policy and `BESIDE`, in the same settings and seeds, and what to know."""
    starts = {(setting_of(run), run["seed"]): run["success"] for run in own if run["method"] == BASE}
    chosen = [run for run in page.kept()[0] if run["method"] in (BASE, *BESIDE)]
    theirs = [run for run in chosen if (setting_of(run), run["seed"]) in starts]
    untrained = [run for run in theirs if run["method"] == BASE]
    others = {setting_of(run) for run in untrained if run["success"] != starts[setting_of(run), run["seed"]]}
    rows = [page.untrained(theirs), *map(page.cells, page.rows_of(page.methods_of(theirs, own)))]
    if others:
        rows.insert(1, ["untrained, yours", *page.untrained(own)[1:]])
    cells = [[cell.strip("`") for cell in row[:-1]] for row in (page.HEADER, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield from ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    settings, seeds = (
        ", ".join(map(str, dict.fromkeys(place))) for place in zip(*sorted(starts), strict=True)
    )
    yield f"\nOn {settings}, seeds {seeds}:"
    yield "gains in points of pass@k over the untrained policy that a run began with, and difference from the gain in"
    yield "pass@32 of the reference, with 95 % intervals over seeds and questions."
    if others:
        names = ", ".join(sorted(others))
        yield f"Your starters are not those of the digest ({names}): compare gains, each over its own start."


def bench(own: Own, settings: Sequence[str], seeds: Sequence[int], workers: int, *changes: str) -> str:
    """Run a method and the untrained policy, digest them, and return the table that has them beside others."""
    runs = [run for setting in settings for run in grid("benchmark", setting, seeds, *changes, own=own)]
    make_starters(settings, seeds, workers)
    execute(runs, workers)
    root = runs[0].directory.parents[3]
    found = [
        run for run in digest(root, (BASE, own.name)) if setting_of(run) in settings and run["seed"] in seeds
    ]
    write(found, root / f"{own.name}.jsonl.gz")
    return "\n".join([*beside(found), f"Digest: {root / own.name}.jsonl.gz"])


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--method", metavar="NAME", help="a new name for a method of yours")
    which.add_argument("--all", action="store_true", help="every method of the grids, instead")
    parser.add_argument("--overrides", nargs="*", default=[], help="of tagrpo-train, which define the method")
    parser.add_argument("--config-dir", type=Path, help="a folder with options of yours, as of tagrpo-train")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, choices=range(10), default=list(range(10)))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    chosen = parser.parse_args()
    with explained():
        if chosen.method is not None:
            own = Own(chosen.method, chosen.overrides, chosen.config_dir)
            print("\n" + bench(own, chosen.settings, chosen.seeds, chosen.workers))
            return
        places = [
            (preset, setting) for preset, of in GRIDS.items() for setting in of if setting in chosen.settings
        ]
        runs = [run for preset, setting in places for run in grid(preset, setting, chosen.seeds)]
        make_starters(chosen.settings, chosen.seeds, chosen.workers)
        execute(runs, chosen.workers)


if __name__ == "__main__":
    main()
