"""Whether a training iteration has become slower than in another commit: CPU seconds of both, in turn.

    python benchmarks/paired.py da83fdc --rounds 5

Both train the embedded task with the same settings, one thread, a process each; after one run of each that warms up,
they alternate. Every iteration does the same work in every round, so that it is compared with itself: the ratio of a
round is that of the sums over its iterations; `best` takes the shortest time of each iteration over all rounds, which
leaves out what other programs on the machine cost. The first two iterations start engines and workers: left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from workload import machine, median, report

SETTINGS = [
    "threads=1", "logger=csv", "test=false", "trainer.limit_val_batches=0", "+callbacks.clock._target_=paired.Clock",
]  # fmt: skip
WARM_UP = 2


class Clock(Callback):
    """Writes the process's CPU seconds at the start of every iteration into the file `PAIRED_CLOCK`."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.times: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.times.append(time.process_time())

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        Path(os.environ["PAIRED_CLOCK"]).write_text(json.dumps(self.times))


def check_out(commit: str, folder: Path) -> Path:
    """The package of a commit in `folder`, importable as `tagrpo` from there."""
    archive = subprocess.run(["git", "archive", commit, "src", "configs"], capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    (folder / "tagrpo").symlink_to("src")
    (folder / "src" / "configs").symlink_to("../configs")
    return folder


def seconds(package: Path, overrides: list[str]) -> list[float]:
    """CPU seconds of each iteration of one run with the package in `package`."""
    with tempfile.TemporaryDirectory() as run:
        clock = Path(run) / "clock.json"
        environment = {
            **os.environ, "PYTHONPATH": f"{package}:{Path(__file__).parent}", "PAIRED_CLOCK": str(clock),
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        command = [sys.executable, "-m", "tagrpo.train", *SETTINGS, *overrides, f"hydra.run.dir={run}/run"]
        subprocess.run(command, cwd=run, env=environment, capture_output=True, check=True)
        times = json.loads(clock.read_text())
    return [end - start for start, end in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="to compare with; what is compared is HEAD")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=12, help="of each run")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("overrides", nargs="*", default=["experiment=grpo"], help="settings of both runs")
    arguments = parser.parse_args()
    overrides = [*arguments.overrides, f"iterations={arguments.iterations}"]
    with tempfile.TemporaryDirectory() as folder:
        packages = [check_out(commit, Path(folder) / commit) for commit in (arguments.commit, "HEAD")]
        for package in packages:
            seconds(package, overrides)
        rounds = [[seconds(package, overrides) for package in packages] for _ in range(arguments.rounds)]
    before, after = zip(*rounds, strict=True)
    ratios = [sum(new) / sum(old) for old, new in rounds]
    best = [sum(map(min, zip(*runs, strict=True))) for runs in (before, after)]
    figures = {
        "machine": machine("cpu"), "commit": arguments.commit, "settings": overrides, "rounds": arguments.rounds,
        "seconds": {"before": best[0] / len(before[0]), "after": best[1] / len(after[0])},
        "ratio": {"median": median(ratios), "best": best[1] / best[0], "all": [round(r, 4) for r in ratios]},
    }  # fmt: skip
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
