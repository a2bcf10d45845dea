"""Run the cells of a grid of the study: `python -m studies.second.run factors`, or with `task=countdown regime=easy`.

Without a task all settings of the grid are run, seed by seed. The same grid as
`tagrpo-compare --config-dir studies/second/configs compare=factors task=… regime=…`, in the same folders, with the same
commands and the same bits, but without a report. Finished runs are kept, so that the same command goes on where it was
interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from rich.console import Console

from tagrpo.cli.compare import methods_of, runs_of, shared_overrides
from tagrpo.runs.grid import GridRun, run_grid

CONFIGS = Path(__file__).parent / "configs"
EASY = ("countdown/easy", "shortest_path/easy", "arithmetic/mixed")
HARDER = ("countdown/medium", "shortest_path/medium", "arithmetic/hard")
SETTINGS: Mapping[str, Sequence[str]] = {
    "pilot": (*EASY, *HARDER),
    "factors": (*EASY, *HARDER),
    "pass_at_k": (*EASY, *HARDER[:2]),
    "benchmark": EASY,
    "benchmark_templates": EASY[2:],  # the policies of the other tasks know no words of the templates
    "k_and_lr": EASY[:2],
    "rephrasings": (EASY[0], EASY[2]),
    "prompt_augmentation": (EASY[2], HARDER[2]),
}
"""Grid → the settings that it is run in, as `<task>/<regime>`."""
LEFT = (
    "experiment=grpo_lead_stage_2",
    "experiment=outcome_exploration_batch",
    "experiment=overtraining_gate",
    "experiment=reinforce",
    "experiment=seed_grpo",
)
"""Methods of the frozen grids that have left the package since: the digests keep their results."""


def grid(name: str, overrides: Sequence[str]) -> list[GridRun]:
    """The runs of a grid, in the order of `tagrpo-compare`: seed by seed."""
    search_path = f"hydra.searchpath=[file://{CONFIGS.resolve()}]"
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg: DictConfig = compose("compare", [search_path, f"compare={name}", *overrides])
    return runs_of(Path(cfg.root), methods_of(cfg.methods, cfg.scale), list(cfg.seeds), shared_overrides(cfg))


def all_settings(name: str, overrides: Sequence[str]) -> list[GridRun]:
    """The runs of a grid in all of its settings, seed by seed."""
    runs: list[GridRun] = []
    for setting in SETTINGS[name]:
        task, _, regime = setting.partition("/")
        runs += grid(name, [f"task={task}", f"regime={regime}", *overrides])
    return sorted(runs, key=lambda run: run.seed)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", choices=SETTINGS)
    parser.add_argument("overrides", nargs="*", help="of tagrpo-compare, such as task=countdown seeds=[0]")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    one = any(override.startswith("task=") for override in arguments.overrides)
    runs = (grid if one else all_settings)(arguments.grid, arguments.overrides)
    for experiment in sorted({part for run in runs for part in run.command if part in LEFT}):
        print(f"{experiment} has left the package; its results are in the digest, and commit 1906136 can run it.")
    runs = [run for run in runs if not set(LEFT) & set(run.command)]
    if failed := run_grid(runs, {"cluster": "local", "timeout_min": 525600}, [{}] * arguments.workers, Console()):
        sys.exit("Failed, see log.txt in each: " + ", ".join(str(run.directory) for run in failed))


if __name__ == "__main__":
    main()
