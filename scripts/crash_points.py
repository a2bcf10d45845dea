"""Everything that a run does to files, and what becomes of the run when it ends right there.

    python scripts/crash_points.py FOLDER                          # killed after every write, fsync, rename, …
    python scripts/crash_points.py FOLDER --what interrupt         # Ctrl-C there
    python scripts/crash_points.py FOLDER --what full              # the call fails: no space left on the device
    python scripts/crash_points.py FOLDER --what broken            # the call fails: input/output error
    python scripts/crash_points.py FOLDER --every 10 --ranks 2     # every tenth point, of rank 1 of two under gloo

The run has two iterations with checkpoints, validations, a test, an export, recorded and replayed rollouts, dynamic
sampling, CSV and TensorBoard. It goes on with `resume=auto` and must end as an undisturbed one: the same files, and the
same bits in them. `crash_points.c` is loaded before the process and counts its calls of libc on files below the run's
directory. Everything is imported and built once, and each attempt is a fork.

Each attempt adds a line to FOLDER/outcomes.jsonl, and those that are in it are not repeated: a command that was stopped
goes on where it was. At the end the figures of that file are printed.
"""

import argparse
import ctypes
import errno
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIBRARY = "crash_points.so"
EVENTS = {"kill": (1, 0), "interrupt": (2, 0), "full": (3, errno.ENOSPC), "broken": (3, errno.EIO)}
"""Fault at a point → the mode of `crash_points.c` and an error number."""
PR_SET_PDEATHSIG = 1
OVERRIDES = [
    # Everything that has a state: replay, dynamic sampling, several templates, a schedule; an epoch ends in between.
    "experiment=exgrpo", "rollout.replay.start=0.0", "seed=3", "iterations=2", "threads=1",
    "+rollout.dynamic_sampling={_target_: tagrpo.rollouts.dynamic_sampling.DynamicSampling, max_draws: 1}",
    "callbacks=[zero_gradient,pass_at_k,recorder,checkpoint]", "callbacks.checkpoint.every=1", "data.train.size=6",
    "data.batch_size=4", "data.samples_per_prompt=4", "data.num_rephrasings=1", "data.evaluation_samples=2",
    "rollout.sampling.max_new_tokens=10", "data.evaluation.test_id.size=2", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "trainer.val_check_interval=1", "+trainer.enable_progress_bar=false", "resume=auto",
]  # fmt: skip
TWO_RANKS = ["strategy=fsdp2", "trainer.devices=2"]
GRACE_SECONDS = 5.0
TIMES = ("seconds/", "throughput/")
OTHERWISE = ("log.txt", ".lock", "metrics.csv", "tensorboard")
"""Files that are compared by what they say, or not at all."""


class Trial:
    """One run in one directory, again and again, each attempt in a fork of this process."""

    def __init__(self, directory: Path, ranks: int) -> None:
        from tagrpo.settings.config import build, compose_run

        self.directory, self.ranks = directory, ranks
        self.shim = ctypes.CDLL(None)
        self.cfg = compose_run(directory, [*OVERRIDES, *(TWO_RANKS if ranks == 2 else [])])
        # With several ranks a run is built by each: it looks at the environment.
        self.run = build(self.cfg) if ranks == 1 else None

    def attempt(self, point: int = 0, what: str = "kill", names: Path | None = None) -> list[int]:
        """Run, with something to happen at a point of one rank, whose calls go to `names`; returns all exit codes."""
        environments: list[dict[str, str]] = [{}]
        if self.ranks == 2:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            common = {
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            common |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
            environments = [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
        happens: list[tuple[int, str, Path | None]] = [(0, what, None)] * self.ranks
        happens[point % self.ranks] = point, what, names  # both ranks get their turn
        return wait([self._fork(*fault, of) for fault, of in zip(happens, environments, strict=True)])

    def _fork(self, point: int, what: str, names: Path | None, environment: Mapping[str, str]) -> int:
        child = os.fork()
        if child:
            return child
        status = 1
        try:
            self.shim.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # an attempt does not outlive a stopped driver
            log = os.open(self.directory.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(environment)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            mode, number = EVENTS[what]
            listed = None if names is None else str(names).encode()
            self.shim.crash_points_arm(
                str(self.directory).encode(), ctypes.c_long(point), mode, number, listed
            )
            self._work(int(environment.get("RANK", "0")))
            status = 0
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else int(bool(leave.code))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _work(self, rank: int) -> None:
        """Run `tagrpo-train`."""
        from lightning.pytorch import seed_everything
        from lightning.pytorch.utilities import rank_zero_only

        from tagrpo.cli.train import train
        from tagrpo.runs.directory import admit, begin, end, held
        from tagrpo.runs.secrets import save_resolved
        from tagrpo.settings.config import build

        rank_zero_only.rank = rank
        cfg = self.cfg
        with held(self.directory):
            admit(cfg, self.directory)
            rank_zero_only(begin)(self.directory)
            run = self.run or build(cfg)
            rank_zero_only(save_resolved)(cfg, self.directory)
            seed_everything(3, verbose=False)  # a fork seeds Python's generator anew
            train(run.module, run.datamodule, run.trainer, resume="auto", export=self.directory / "model")
            run.close()
            rank_zero_only(end)(self.directory)

    def clear(self) -> None:
        """Delete the directory and the log."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.with_suffix(".log").unlink(missing_ok=True)


def wait(children: list[int]) -> list[int]:
    """The exit codes of all ranks, negative for signals. Once one has failed the others are ended, as torchrun does."""
    codes: dict[int, int] = {}
    end = float("inf")
    while len(codes) < len(children):
        for child in [child for child in children if child not in codes]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
                end = min(end, time.monotonic() + (GRACE_SECONDS if codes[child] else float("inf")))
            elif time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


def files_of(directory: Path) -> dict[str, Path]:
    """Relative name → path of all files that are compared byte for byte."""
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {name: path for name, path in files.items() if not name.startswith(OTHERWISE)}


def logged(directory: Path) -> list[dict[str, str]]:
    """Rows of `metrics.csv`, without what a clock says."""
    import csv

    with (directory / "metrics.csv").open(newline="") as file:
        rows = [
            {k: v for k, v in row.items() if v and not k.startswith(TIMES)} for row in csv.DictReader(file)
        ]
    return [row for row in rows if row.keys() - {"step", "epoch"}]


def shown(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Curves of TensorBoard: name → steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if not name.startswith(TIMES)]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def saved(path: Path) -> dict[str, Any]:
    """Content of a checkpoint, without the epochs and validation batches that Lightning has begun, which none reads."""
    import torch

    def kept(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.tolist()
        if isinstance(value, list | tuple):
            return [kept(item) for item in value]
        if not isinstance(value, dict):
            return value
        names = sorted(
            (k for k in value if k not in ("ready", "started") and "val_loop" not in str(k)), key=repr
        )
        return {name: kept(value[name]) for name in names}

    return kept(torch.load(path, weights_only=True))


def differences(whole: Path, other: Path) -> Iterator[str]:
    """Differences between two directories of runs."""
    expected, found = files_of(whole), files_of(other)
    yield from (
        f"{name} is {'missing' if name in expected else 'too much'}"
        for name in expected.keys() ^ found.keys()
    )
    for name in expected.keys() & found.keys():
        if name.endswith((".metadata", "complete.json")):
            continue  # names that torch makes up, and sums of files that are compared themselves
        if name.endswith((".ckpt", "meta.pt")):
            same = repr(saved(expected[name])) == repr(saved(found[name]))
        else:
            same = expected[name].read_bytes() == found[name].read_bytes()
        if not same:
            yield f"{name} has other content"
    if logged(whole) != logged(other):
        yield "metrics.csv has other rows"
    if shown(whole) != shown(other):
        yield "TensorBoard shows something else"


def judged(trial: Trial, whole: Path, first: list[int]) -> str:
    """Judge how it ended: `same`, or a list of the differences. A run that is only told to stop goes on, too."""
    codes = trial.attempt() if any(first) else first
    if not any(codes) and not (trial.directory / "finished").exists():
        codes = trial.attempt()
    if any(codes):
        return f"did not end but with {codes}: {trial.directory.with_suffix('.log').read_text().splitlines()[-1]}"
    return "; ".join(sorted(differences(whole, trial.directory))) or "same"


def recorded(path: Path) -> list[dict[str, Any]]:
    """Lines of a file of outcomes."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def undisturbed(trial: Trial, folder: Path) -> tuple[Path, list[str]]:
    """The directory of a run that nothing happened to, and its calls."""
    whole, listed = folder / "undisturbed", folder / "points.txt"
    trial.clear()
    codes = trial.attempt(names=listed)
    if any(codes):
        log = trial.directory.with_suffix(".log").read_text()
        raise RuntimeError(f"The undisturbed run ended with {codes}:\n{log}")
    shutil.rmtree(whole, ignore_errors=True)
    trial.directory.rename(whole)
    return whole, listed.read_text().splitlines()


@contextmanager
def written_in_place(path: Path) -> Iterator[Path]:
    """The wrong `tagrpo.files.written_whole`: the file has its name while it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path


def drive(options: argparse.Namespace, outcomes: Path) -> None:
    """An undisturbed run, then the others; a line for each that has ended goes to the file of outcomes."""
    if options.in_place:
        import tagrpo.files

        tagrpo.files.written_whole = written_in_place
    import tensorboard.summary  # noqa: F401 - forks inherit what is imported here
    from transformers import AutoModelForCausalLM

    import tagrpo.cli.train
    from tagrpo.starter import starter_path

    AutoModelForCausalLM.from_pretrained(starter_path())  # fills caches, which forks inherit
    trial = Trial(options.folder / "run", options.ranks)
    gc.freeze()  # else collections in the children copy the parent's memory
    whole, names = undisturbed(trial, options.folder)
    done = {(one["what"], one["ranks"], one["point"]) for one in recorded(outcomes)}
    listed = options.folder / "calls.txt"
    with outcomes.open("a", buffering=1) as file:
        for point in range(options.first, len(names) + 1, options.every):
            if (options.what, options.ranks, point) in done:
                continue
            trial.clear()
            codes = trial.attempt(point, options.what, listed)
            call = (listed.read_text().splitlines() + point * [""])[point - 1]
            one = {
                "what": options.what,
                "ranks": options.ranks,
                "point": point,
                "of": len(names),
                "call": call,
            }
            one |= {"codes": codes, "outcome": judged(trial, whole, codes)}
            print(json.dumps(one), file=file)
            if one["outcome"] != "same":
                print(json.dumps(one), flush=True)


def table(outcomes: Iterable[Mapping[str, Any]]) -> tuple[str, bool]:
    """The figures as a table, and whether every run ended as the undisturbed one."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for one in outcomes:
        if one["call"]:
            groups.setdefault((one["ranks"], one["what"]), []).append(
                one
            )  # the others ended before it happened
    lines = [
        "| what happens | ranks | calls of a run | tried | as undisturbed |",
        "|---|---:|---:|---:|---:|",
    ]
    for (ranks, what), tried in sorted(groups.items(), key=lambda group: group[0][0]):
        same = sum(one["outcome"] == "same" for one in tried)
        calls = max(one["of"] for one in tried)
        lines.append(f"| `{what}` | {ranks} | {calls} | {len(tried)} | {same} |")
    return "\n".join(lines), all(one["outcome"] == "same" for tried in groups.values() for one in tried)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the runs go; best in memory (/dev/shm)")
    parser.add_argument("--what", choices=EVENTS, default="kill")
    parser.add_argument("--every", type=int, default=1, help="take every so many points")
    parser.add_argument("--first", type=int, default=1, help="the first point")
    parser.add_argument("--ranks", type=int, choices=[1, 2], default=1)
    parser.add_argument(
        "--in-place", action="store_true", help="write files in place, to see that it is noticed"
    )
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    load_library(options.folder)
    outcomes = options.folder / "outcomes.jsonl"
    drive(options, outcomes)
    lines, good = table(recorded(outcomes))
    print(lines)
    sys.exit(not good)


def load_library(folder: Path) -> None:
    """Compile the library and start this command anew with it, unless it is loaded already."""
    library = str(folder / LIBRARY)
    if library in os.environ.get("LD_PRELOAD", ""):
        return
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    quiet = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": library,
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **quiet})


if __name__ == "__main__":
    main()
