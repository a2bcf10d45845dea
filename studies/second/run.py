"""Run the cells of a grid of the study: `python -m studies.second.run factors`, or with `task=countdown regime=easy`.

Without a task all settings of the grid are run, seed by seed. The same grid as
`tagrpo-compare --config-dir studies/second/configs compare=factors task=… regime=…`, in the same folders, with the same
commands and the same bits. Small runs spend much of their time on importing libraries; here they are imported once, and
every run is forked from the process that has them, and keeps the memory that it frees. Finished runs are kept, so that
the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from tagrpo.cli.compare import methods_of, runs_of, shared_overrides
from tagrpo.runs.files import write_json
from tagrpo.runs.grid import GridRun, note_end

LIBRARIES = (
    "torch._dynamo",
    "lightning.pytorch",
    "transformers.models.qwen3.modeling_qwen3",
    "tagrpo.callbacks",
    "tagrpo.datamodules.questions",
    "tagrpo.modules.policy_module",
    "tagrpo.rollouts",
)
"""What every run imports."""
CONFIGS = Path(__file__).parent / "configs"
EASY = ("countdown/easy", "shortest_path/easy", "arithmetic/mixed")
HARDER = ("countdown/medium", "shortest_path/medium", "arithmetic/hard")
KEEP_MEMORY = {-8: 1, -4: 0, -1: 2**31 - 1}  # M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD
"""Settings of glibc's `mallopt`: one arena, which gives nothing back to the system."""
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


def keep_memory() -> None:
    """Have freed memory used again by this process and its forks; no other allocator than glibc's is changed.

    Tensors of more than 32 MiB would else be asked of the system each time, page by page: 10 to 14 % of a run.
    """
    with suppress(AttributeError):
        for parameter, value in KEEP_MEMORY.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def finished(run: GridRun) -> bool:
    """Whether the run is done, with the command that it has now.

    Raises:
        ValueError: its folder holds a run of another command.
    """
    file = run.directory / "run.json"
    if not file.exists():
        return False
    noted = json.loads(file.read_text())
    if noted["settings"] != run.settings:
        raise ValueError(f"Expected {run.directory} to hold {run.settings}, but it holds {noted['settings']}. Move it.")
    return bool(noted["finished"])


def start(run: GridRun) -> int:
    """Fork a process that trains; returns its id."""
    run.directory.mkdir(parents=True, exist_ok=True)
    file = run.directory / "run.json"
    starts = json.loads(file.read_text())["starts"] if file.exists() else 0
    write_json(file, {"settings": run.settings, "finished": False, "starts": starts + 1})
    if (child := os.fork()) != 0:
        return child
    code = 1
    began = time.monotonic()
    with (run.directory / "log.txt").open("a") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        try:
            sys.argv = [*run.command[2:], "resume=auto"]
            runpy.run_module(run.command[2], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            else:
                code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            ended = note_end(run.directory, code, time.monotonic() - began)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(code or int(not ended))


def run_all(runs: Sequence[GridRun], workers: int) -> list[GridRun]:
    """Train what is not finished, `workers` at a time; returns what failed."""
    waiting = [run for run in runs if not finished(run)]
    done = {run.directory for run in runs} - {run.directory for run in waiting}
    active: dict[int, GridRun] = {}
    failed: list[GridRun] = []
    total, began = len(waiting), time.monotonic()
    while waiting or active:
        ready = [run for run in waiting if run.after is None or run.after.directory in done]
        for run in ready[: workers - len(active)]:
            waiting.remove(run)
            active[start(run)] = run
        if not active:
            return [*failed, *waiting]  # what they go on from has failed
        process, status = os.wait()
        run = active.pop(process)
        if os.waitstatus_to_exitcode(status):
            failed.append(run)
        else:
            done.add(run.directory)
        minutes = (time.monotonic() - began) / 60
        left = len(waiting) + len(active)
        print(f"{total - left}/{total} after {minutes:.1f} min: {run.directory}, {len(failed)} failed", flush=True)
    return failed


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", choices=SETTINGS)
    parser.add_argument("overrides", nargs="*", help="of tagrpo-compare, such as task=countdown seeds=[0]")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    keep_memory()
    one = any(override.startswith("task=") for override in arguments.overrides)
    runs = (grid if one else all_settings)(arguments.grid, arguments.overrides)
    for name in LIBRARIES:
        import_module(name)
    if failed := run_all(runs, arguments.workers):
        sys.exit("Failed, see log.txt in each: " + ", ".join(str(run.directory) for run in failed))


if __name__ == "__main__":
    main()
