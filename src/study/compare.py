"""`tagrpo-compare`: run methods × seeds on this machine or on a SLURM cluster, then write one report.

Each run of `tagrpo-train` gets the directory `<root>/<method>/seed<k>/`. Finished runs are kept: the same
command continues an interrupted comparison, and further seeds or methods only add runs.
"""

import os
import signal
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from rich.console import Console

from ..cli.console import entry_point, explained
from ..overrides import override
from ..runs.grid import Environment, GridRun, Launcher, run_grid
from ..runs.secrets import refuse_secrets, unread
from ..settings.choices import check_choices
from ..settings.numbers import check_numbers
from ..settings.schema import Compare, check_fields

KEYS = ("overrides", "after", "longer", "demo", "paper")  # keys of a method that is given as a mapping


@dataclass
class Method:
    """Row of a comparison: overrides of `tagrpo-train`, and the row that this row continues, if any."""

    overrides: list[str]
    after: str | None = None  # row whose trained policy this row starts from, in a separate run
    longer: str | None = None  # the row whose run this one copies and continues


def methods_of(methods: DictConfig | ListConfig | None, scale: str | None) -> dict[str, Method]:
    """Return the methods of a configuration, in order.

    The configuration has a list of experiments, or a mapping from names to methods. A name maps to a list of
    overrides, or to a mapping with the keys `KEYS`: `demo` and `paper` are overrides at this scale only, and
    `after` and `longer` name a method that is listed before.

    Raises:
        ValueError: if the configuration has any other form.
    """
    if isinstance(methods, ListConfig):
        return {str(name): Method([f"experiment={name}"]) for name in methods}
    found: dict[str, Method] = {}
    for name, given in ((str(key), given) for key, given in (methods or {}).items()):
        spec = {"overrides": given} if isinstance(given, ListConfig) else given
        if unknown := set(map(str, spec)).difference(KEYS):
            raise ValueError(
                f"Expected methods.{name} to have keys of {', '.join(KEYS)}, but got {', '.join(sorted(unknown))}."
            )
        before: dict[str, Any] = {key: spec[key] for key in ("after", "longer") if spec.get(key) is not None}
        for key, other in before.items():
            if other not in found:
                raise ValueError(
                    f"Expected methods.{name}.{key} to be a method listed above it, but got {other!r}."
                )
        found[name] = Method([*spec.get("overrides", []), *spec.get(scale or "demo", [])], **before)
    return found


def check_methods(methods: dict[str, Method], shared: list[str]) -> dict[str, int]:
    """Check that the settings of all methods compose, before any run is started.

    Returns:
        Number of responses that each method samples in training, without extra responses by dynamic sampling.

    Raises:
        ValueError: if there are no methods, or if the settings of a method do not compose or lack a test.
    """
    if not methods:
        raise ValueError(
            "Expected methods, but got none. Choose a preset (compare=demo) or name them (methods=[…])."
        )
    sizes: dict[str, int] = {}
    GlobalHydra.instance().clear()  # contains the comparison's configuration, which has been read
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for name, method in methods.items():
            try:
                check_choices([*shared, *method.overrides])
                cfg = compose("train", [*shared, *method.overrides])
            except (ValueError, HydraException, OmegaConfBaseException) as error:
                raise ValueError(
                    f"Expected methods.{name} to have settings of tagrpo-train, but: {error}\nCorrect "
                    "`methods` or `overrides`."
                ) from error
            if not cfg.test:
                raise ValueError(
                    f"Expected methods.{name} to test at the end, since runs are compared by their tests, "
                    "but got test=false. Correct `methods` or `overrides`."
                )
            wordings = 1 + (cfg.data.num_rephrasings or 0)
            responses = cfg.data.batch_size * wordings * cfg.data.samples_per_prompt
            iterations = (
                1 if cfg.iterations is None else cfg.iterations
            )  # None: set by the epochs, unknown here
            sizes[name] = iterations * responses
    return sizes


def shared_overrides(cfg: DictConfig) -> list[str]:
    """Return the overrides of all runs: chosen groups, overrides of the scale, and `overrides`.

    Raises:
        ValueError: if a setting is missing that the preset needs at this scale.
    """
    chosen = [f"{group}={cfg[group]}" for group in ("scale", "recipe", "model") if cfg[group] is not None]
    try:
        return [*chosen, *cfg.overrides_at_scale.get(cfg.scale or "demo", []), *cfg.overrides]
    except InterpolationToMissingValueError as error:
        missing = "".join(
            f" {key}=…" for key in map(str, cfg) if OmegaConf.is_missing(cfg, key) and key in str(error)
        )
        preset = HydraConfig.get().runtime.choices.get("compare")
        raise ValueError(
            f"Expected{missing}, which the preset {preset} needs at scale={cfg.scale}, but it was not given."
        ) from error


def runs_of(root: Path, methods: dict[str, Method], seeds: list[int], overrides: list[str]) -> list[GridRun]:
    """Return a run for every method and seed, ordered by seed.

    Because of this order, an interrupted comparison has complete seeds. All runs get `overrides`; the
    overrides of a method have precedence. If another run starts from the policy of a run, the run exports its
    policy.
    """
    runs: dict[tuple[int, str | None], GridRun] = {}
    continued = {method.after for method in methods.values()}
    for seed, (name, method) in product(seeds, methods.items()):
        directory = root / name / f"seed{seed}"
        own = [override("name", name), f"seed={seed}", override("hydra.run.dir", directory)]
        arguments = [*own, *overrides, *method.overrides]
        before = runs.get((seed, method.after or method.longer))
        # true by default
        if name in continued and any(argument.startswith("export=") for argument in arguments):
            arguments.append("export=true")
        arguments += [override("model.path", before.directory / "model")] if before and method.after else []
        command = [sys.executable, "-m", "tagrpo.cli.train", *arguments]
        runs[seed, name] = GridRun(name, seed, directory, command, before, longer=method.longer is not None)
    return list(runs.values())


def places_of(workers: int | None, gpus_per_run: int) -> list[Environment]:
    """Return the environment of each parallel run on this machine.

    If `gpus_per_run` is 0, there are `workers` runs, or one per core, and each run sees all GPUs of this
    process.

    Raises:
        ValueError: if there are too few GPUs.
    """
    if not gpus_per_run:  # submitit would hide the GPUs
        return [{"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}] * (
            workers or os.cpu_count() or 1
        )
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
    gpus = [name for name in visible.split(",") if name]
    shares = [
        ",".join(gpus[i : i + gpus_per_run]) for i in range(0, len(gpus) - gpus_per_run + 1, gpus_per_run)
    ]
    if len(shares) < (wanted := workers or 1):
        raise ValueError(
            f"Expected {wanted * gpus_per_run} GPUs for workers={wanted} and gpus_per_run={gpus_per_run}, "
            f"but found {len(gpus)}. Lower one of them, or set gpus_per_run=0 to train on the CPU."
        )
    return [{"CUDA_VISIBLE_DEVICES": share} for share in shares[:workers]]


def compare(
    runs: list[GridRun], root: Path, launcher: Launcher, places: list[Environment], console: Console
) -> list[GridRun]:
    """Run all `runs`, write the report on the finished runs, and return the failed runs."""
    failed = run_grid(runs, launcher, places, console)
    from ..report.assemble import write_report  # imported late: it takes seconds, in which runs can begin

    for run in failed:
        console.print(f"\n{run.log_tail()}", markup=False, soft_wrap=True)
    if len(failed) < len(runs):
        page = write_report(root, order=list(dict.fromkeys(run.method for run in runs)))
        said = (root / "report.md").read_text().split("\n\n")[1]  # below the title: the answer
        console.print(f"\n{said}", markup=False, soft_wrap=True)
        console.print(f"\nReport: {page}; beside it report.md and results.json", soft_wrap=True)
    if failed:
        names = ", ".join(f"{run.method} seed {run.seed}" for run in failed)
        console.print(
            f"\n{len(failed)} of {len(runs)} runs failed: {names}. The same command runs them again."
        )
    return failed


@entry_point("comparisons/compare")
def main(cfg: DictConfig) -> None:
    """Run `tagrpo-compare`."""
    refuse_secrets(cfg, HydraConfig.get().runtime.output_dir)
    console = Console()
    with explained():
        check_fields(cfg, Compare)
        root = Path(cfg.root)
        check_numbers(cfg)
        # Each run resolves values from the environment itself: they stand neither in its command nor in its
        # files.
        written: DictConfig = OmegaConf.create(unread(OmegaConf.to_container(cfg)))
        methods = methods_of(written.methods, cfg.scale)
        launcher: Any = OmegaConf.to_container(cfg.launcher, resolve=True)
        sources = HydraConfig.get().runtime.config_sources
        given = [f"file://{source.path}" for source in sources if source.provider == "command-line"]
        folders = [*given, *HydraConfig.get().searchpath]
        shared = [f"hydra.searchpath={folders}"] * bool(folders) + shared_overrides(written)
        sizes = check_methods(methods, shared)
        runs = runs_of(root, methods, list(cfg.seeds), shared)
        for run in runs:
            run.size = sizes[run.method]
            run.prepare()
        local = launcher["cluster"] == "local"
        places = places_of(cfg.workers, cfg.gpus_per_run) if local else [{}] * (cfg.workers or len(runs))
    # Being ended from outside is an interrupt too: no local run may go on without us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        failed = compare(runs, root, launcher, places, console)
    except KeyboardInterrupt:
        console.print("\nInterrupted. Finished runs are kept: the same command continues with the others.")
        sys.exit(128 + signal.SIGINT)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
