r"""What each diagnostic adds to an iteration, all of them side by side in one training run.

    python benchmarks/diagnostics.py                                     # the embedded task
    python benchmarks/diagnostics.py experiment=grpo iterations=33       # any overrides of tagrpo-train

Times the hooks of every callback in CPU seconds of this process, which hold on a machine that others use as well (wall
seconds where there is a GPU), and divides them by those of the iterations without any diagnostic. The first iteration
warms up and is left out; what loading the sentence encoder costs once is shown by itself.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Callback

from tagrpo.callbacks import EmbeddingDiversityMonitor, RolloutCallback
from tagrpo.cli.train import train
from tagrpo.settings.config import build

OVERRIDES = [
    "iterations=33", "logger=csv", "trainer.limit_val_batches=0", "~callbacks.checkpoint", "~callbacks.progress",
    "+trainer.enable_progress_bar=false", "export=false",
]  # fmt: skip
HOOKS = ("on_train_batch_start", "on_train_batch_end")
clock = time.perf_counter if torch.cuda.is_available() else time.process_time


class Stopwatch(Callback):
    """Seconds in the hooks of other callbacks. The first among them, so that it sees where an iteration begins."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.loading = self.before = self.start = self.total = 0.0
        self.iterations = 0

    def watch(self, callback: Callback) -> None:
        name = type(callback).__name__
        for hook in HOOKS:
            setattr(callback, hook, self.timed(name, getattr(callback, hook)))
        if isinstance(callback, EmbeddingDiversityMonitor):
            callback.make_encoder = self.loaded(callback.make_encoder)

    def timed(self, name: str, function: Callable[..., None]) -> Callable[..., None]:
        def hook(*arguments: Any) -> None:
            before, loading = clock(), self.loading
            function(*arguments)
            self.seconds[name] += clock() - before - (self.loading - loading)

        return hook

    def loaded(self, make_encoder: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            before = clock()
            encoder = make_encoder()
            encoder(["warm up"])
            self.loading += clock() - before
            return encoder

        return made

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.seconds.clear()
            self.start, self.before = clock(), self.loading
        self.iterations = batch_idx

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.total = clock() - self.start - (self.loading - self.before)


def main(overrides: list[str]) -> None:
    directory = Path(tempfile.mkdtemp())
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [f"hydra.run.dir={directory}", *OVERRIDES, *overrides], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    run = build(cfg)
    watch = Stopwatch()
    for callback in run.trainer.callbacks:
        if not isinstance(callback, RolloutCallback):
            watch.watch(callback)
    run.trainer.callbacks = [watch, *run.trainer.callbacks]
    try:
        train(run.module, run.datamodule, run.trainer, test=False)
    finally:
        run.close()
    report(watch, directory)


def report(watch: Stopwatch, directory: Path) -> None:
    plain = watch.total - sum(watch.seconds.values())
    per = watch.iterations
    print(f"{per} iterations, {1000 * plain / per:.0f} ms each without diagnostics ({clock.__name__})")
    for name, seconds in watch.seconds.most_common():
        print(f"{name:28} {1000 * seconds / per:8.2f} ms an iteration {100 * seconds / plain:6.2f} %")
    embedding = watch.seconds.pop("EmbeddingDiversityMonitor", 0.0)
    print(
        f"embedding diversity {100 * embedding / plain:.1f} %, all others {100 * watch.seconds.total() / plain:.1f} %"
    )
    rollouts = sum(file.stat().st_size for file in directory.glob("rollouts/*.parquet"))
    print(f"loading the encoder once: {watch.loading:.1f} s; recorded rollouts: {rollouts / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
