"""Whether a training iteration has become slower than in another commit: CPU seconds of both, iteration by iteration.

    python benchmarks/paired.py da83fdc --rounds 8

In each round both commits train the embedded task with the same settings, a process and one thread each, and take
turns: while one makes an iteration, the other waits, so that what else the machine does slows both down alike.
Compared are pairs of iterations, which do the same work. The ratio of a round is the median of its pairs; given is the
median over rounds, with a 95 % interval of it by drawing rounds again. Counted is the process that trains, not the
workers that score. The first iterations, which start engines and workers, are left out.
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lightning.pytorch import Callback
from workload import machine, median, report

SETTINGS = [
    "threads=1", "logger=csv", "test=false", "trainer.limit_val_batches=0", "+callbacks.clock._target_=paired.Clock",
]  # fmt: skip
WARM_UP = 3
RESAMPLES = 10_000


class Clock(Callback):
    """Before each iteration: tell the parent the CPU seconds of the last one, and wait for our turn."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.tell, self.turn = (os.fdopen(int(os.environ[f"PAIRED_{name}"]), mode) for name, mode in PIPES.items())
        self.start = time.process_time()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        print(time.process_time() - self.start, file=self.tell, flush=True)
        self.turn.readline()
        self.start = time.process_time()


PIPES = {"TELL": "w", "TURN": "r"}


def check_out(commit: str, folder: Path) -> Path:
    """The package of a commit in `folder`, importable as `tagrpo` from there."""
    archive = subprocess.run(["git", "archive", commit, "src", "configs"], capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    (folder / "tagrpo").symlink_to("src")
    (folder / "src" / "configs").symlink_to("../configs")
    return folder


@contextlib.contextmanager
def training(package: Path, overrides: list[str], run: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    """A run with the package in `package`: what it tells, and where it waits for its turn."""
    (told, tell), (turn, give) = os.pipe(), os.pipe()
    run.mkdir()
    environment = {
        **os.environ, "PYTHONPATH": f"{package}:{Path(__file__).parent}", "PAIRED_TELL": str(tell),
        "PAIRED_TURN": str(turn), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    command = [sys.executable, "-m", "tagrpo.cli.train", *SETTINGS, *overrides, f"hydra.run.dir={run}/run"]
    with (run / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=run, env=environment, stdout=log, stderr=log, pass_fds=(tell, turn), start_new_session=True
        )
    os.close(tell)
    os.close(turn)
    try:
        yield os.fdopen(told), os.fdopen(give, "w")
        if process.wait():
            raise SystemExit(f"A run of {package.name} failed:\n{(run / 'log.txt').read_text()[-3000:]}")
    finally:
        process.terminate()


def one_round(packages: list[Path], overrides: list[str], iterations: int, index: int) -> list[list[float]]:
    """[commit][iteration] CPU seconds; who goes first alternates from round to round and from turn to turn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runs = [stack.enter_context(training(p, overrides, Path(folder) / str(k))) for k, p in enumerate(packages)]
        times: list[list[float]] = [[], []]
        for told, _ in runs:
            told.readline()  # it stands before its first iteration
        for turn in range(iterations - 1):
            for which in (0, 1) if (turn + index) % 2 else (1, 0):
                told, give = runs[which]
                print(file=give, flush=True)
                line = told.readline()
                if not line:
                    break
                times[which].append(float(line))
        for _, give in runs:
            print(file=give, flush=True)  # the last iteration is followed by no other
    return [values[WARM_UP:] for values in times]


def interval(rounds: list[float]) -> tuple[float, float]:
    """95 % of the medians of the rounds' ratios, drawn again with replacement."""
    draw = random.Random(0)
    found = sorted(median(draw.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    return found[RESAMPLES // 40], found[-RESAMPLES // 40]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="to compare with")
    parser.add_argument("--new", default="HEAD", help="what is compared")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=28, help="of each run")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("overrides", nargs="*", default=["experiment=grpo"], help="settings of both runs")
    arguments = parser.parse_args()
    overrides = [*arguments.overrides, f"iterations={arguments.iterations}"]
    ratios: list[list[float]] = []
    seconds: list[list[list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        packages = [
            check_out(commit, Path(folder) / name) for name, commit in (("a", arguments.commit), ("b", arguments.new))
        ]
        for index in range(arguments.rounds):
            seconds.append(one_round(packages, overrides, arguments.iterations, index))
            ratios.append([new / old for old, new in zip(*seconds[-1], strict=True)])
            print(f"round {index}: {median(ratios[-1]):.4f}", file=sys.stderr, flush=True)
    old, new = (median(s for times in seconds for s in times[which]) for which in (0, 1))
    figures = {
        "machine": machine("cpu"), "commit": arguments.commit, "new": arguments.new, "settings": overrides,
        "rounds": arguments.rounds, "pairs": sum(map(len, ratios)), "seconds": {"before": old, "after": new},
        "ratio": {
            "median": median(map(median, ratios)), "interval": interval(list(map(median, ratios))),
            "of_sums": median(sum(new) / sum(old) for old, new in seconds),
            "rounds": [round(median(r), 4) for r in ratios],
        },
    }  # fmt: skip
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
