"""`tagrpo-compare`: methods × seeds as runs of their own, side by side, then one report.

A cell is a run of `tagrpo-train` in `<root>/<method>/seed<k>/`. Finished cells are kept: an interrupted comparison
goes on where it was, and further seeds or methods only add cells.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig
from rich.console import Console

from .cells import Cell, run_cells
from .redaction import refuse_secrets


def methods_of(methods: DictConfig | ListConfig | None) -> dict[str, list[str]]:
    """Method → its overrides of tagrpo-train; a mere list names experiments."""
    if methods is None:
        return {}
    if isinstance(methods, ListConfig):
        return {str(name): [f"experiment={name}"] for name in methods}
    return {str(name): list(overrides) for name, overrides in methods.items()}


def cells_of(
    root: Path, methods: Mapping[str, Sequence[str]], seeds: Sequence[int], overrides: Sequence[str]
) -> list[Cell]:
    """Every method with every seed, seed by seed, so that an interrupted comparison has whole seeds.

    Args:
        root: Where run directories go.
        methods: Method → its overrides, which win over `overrides`.
        seeds: Seeds.
        overrides: Given to every cell.
    """
    cells = []
    for seed in seeds:
        for method, own in methods.items():
            directory = root / method / f"seed{seed}"
            arguments = [f"name={method}", f"seed={seed}", f"hydra.run.dir={directory}", *overrides, *own]
            cells.append(Cell(method, seed, directory, [sys.executable, "-m", "tagrpo.train", *arguments]))
    return cells


def places(workers: int | None, gpus_per_cell: int) -> tuple[int, list[str]]:
    """How many cells run at a time, and the GPUs that they share out: all that a CUDA process would see.

    Without `gpus_per_cell`, cells see all GPUs, and as many run at a time as there are cores.

    Raises:
        ValueError: there are too few GPUs.
    """
    if not gpus_per_cell:
        return workers or os.cpu_count() or 1, []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        import torch

        gpus = [str(index) for index in range(torch.cuda.device_count())]
    else:
        gpus = [name for name in visible.split(",") if name]
    workers = workers or max(len(gpus) // gpus_per_cell, 1)
    if len(gpus) < workers * gpus_per_cell:
        raise ValueError(
            f"Expected {workers * gpus_per_cell} GPUs for {workers} workers with gpus_per_cell={gpus_per_cell}, but "
            f"found {len(gpus)}. Lower one of them, or set gpus_per_cell=0 to train on the CPU."
        )
    return workers, gpus[: workers * gpus_per_cell]


def compare(cells: Sequence[Cell], root: Path, workers: int, gpus: Sequence[str], console: Console) -> list[Cell]:
    """Run all cells and write the report on those that ended well.

    Returns:
        The cells that failed.
    """
    failed = run_cells(cells, workers, console, gpus)
    from .analysis.report import write_report  # takes seconds to import, in which cells can run

    for cell in failed:
        console.print(f"\n{cell.log_tail()}", markup=False, soft_wrap=True)
    if len(failed) < len(cells):
        page = write_report(root, order=list(dict.fromkeys(cell.method for cell in cells)))
        files = [page, root / "report.md", root / "results.json"]
        console.print("\nReport: " + "\n        ".join(map(str, files)), soft_wrap=True)
    if failed:
        names = ", ".join(f"{cell.method} seed {cell.seed}" for cell in failed)
        console.print(f"\n{len(failed)} of {len(cells)} cells failed: {names}. The same command runs them again.")
    return failed


@hydra.main(config_path="pkg://tagrpo.configs", config_name="compare", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    refuse_secrets(cfg, HydraConfig.get().runtime.output_dir)
    methods, root, console = methods_of(cfg.methods), Path(cfg.root), Console()
    if cfg.report_only:
        from .analysis.report import write_report

        console.print(write_report(root, order=list(methods)), soft_wrap=True)
        return
    if not methods:
        raise ValueError("Expected methods, but got none. Choose a preset (compare=demo) or name them (methods=[…]).")
    # Being ended from outside is an interrupt too: no run may go on without us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cells = cells_of(root, methods, list(cfg.seeds), list(cfg.overrides))
    try:
        failed = compare(cells, root, *places(cfg.workers, cfg.gpus_per_cell), console)
    except KeyboardInterrupt:
        console.print("\nInterrupted. Finished cells are kept: the same command goes on with the others.")
        sys.exit(128 + signal.SIGINT)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
