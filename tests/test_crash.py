"""A run that is killed again and again ends as an undisturbed one does, bit for bit.

`python tests/test_crash.py <folder> <kills> <seed>` is the driver: it imports everything once and forks a child per
attempt, as starting Python would take most of the time. Phases of the child are visible to it in shared memory.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Callback, seed_everything

from tagrpo.callbacks import Checkpointer, EmbeddingDiversityMonitor, RolloutCallback
from tagrpo.config import Run, build
from tagrpo.loggers import MetricsCSV
from tagrpo.modules.policy import PolicyModule
from tagrpo.rollouts import TransformersEngine
from tagrpo.train import train

PHASES = ("other", "sampling", "verification", "update", "checkpoint", "validation", "log")
EARLY = ("sampling", "verification", "update", None)
TARGETS = ("sampling", "verification", "update", "checkpoint", "validation", "log", None)
"""Phases to kill in, by turns; None is any moment, also before training begins."""
LENGTH = {"sampling": 0.1, "verification": 0.002, "update": 0.1, "checkpoint": 0.01, "validation": 0.1, "log": 0.001}
"""Seconds that a phase may last: kills are spread over them."""
ITERATIONS = 10
OVERRIDES = [
    # Everything that has a state: replay, dynamic sampling, adaptive rephrasings, several templates, a schedule.
    "experiment=exgrpo", "rollout.replay.start=0.0", "seed=3", f"iterations={ITERATIONS}", "threads=1", "logger=csv",
    "+rollout.dynamic_sampling={_target_: tagrpo.rollouts.dynamic_sampling.DynamicSampling, max_draws: 1}",
    "callbacks=[zero_gradient,pass_at_k,recorder,checkpoint]", "callbacks.checkpoint.every=2", "data.train.size=20",
    "data.batch_size=4", "data.samples_per_prompt=4", "data.num_rephrasings=1", "data.evaluation_samples=2",
    "rollout.sampling.max_new_tokens=12", "data.evaluation.test_id.size=2", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "trainer.val_check_interval=4", "+trainer.enable_progress_bar=false",
]  # fmt: skip


def built(directory: Path) -> Run:
    """The run in `directory`, with some callbacks that keep or draw something."""
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [f"hydra.run.dir={directory}", *OVERRIDES], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    run = build(cfg)

    class Dice(Callback):
        """Uses the random states that no part of the package uses."""

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            pl_module.log("dice/torch", float(torch.rand(())))
            pl_module.log("dice/numpy", float(np.random.rand()))  # noqa: NPY002
            pl_module.log("dice/python", random.random())

    def embed(texts):
        return torch.tensor([[float(len(text)), float(text.count("1")), 1.0] for text in texts])

    run.trainer.callbacks[1:1] = [Dice(), EmbeddingDiversityMonitor(lambda: embed, every=3)]
    return run


def mark(shared: mmap.mmap) -> None:
    """Have the phases of training show in shared memory; a phase within another does not."""

    def marked(owner: type, method: str, phase: str, when=lambda *arguments: True) -> None:
        original = getattr(owner, method)

        def run(*arguments, **options):
            if shared[0] or not when(*arguments):
                return original(*arguments, **options)
            shared[0] = PHASES.index(phase)
            try:
                return original(*arguments, **options)
            finally:
                shared[0] = 0

        setattr(owner, method, run)

    marked(TransformersEngine, "generate", "sampling")
    marked(RolloutCallback, "_judged", "verification")
    marked(RolloutCallback, "on_validation_batch_start", "validation")
    marked(PolicyModule, "training_step", "update")
    marked(Checkpointer, "save", "checkpoint", lambda self, *_: self._progress and self._saved_at != self._done)
    marked(MetricsCSV, "save", "log")


def attempt(run: Run, shared: mmap.mmap) -> int:
    """Fork a child that goes on from the last checkpoint, trains, exports and tests; returns its process id."""
    shared[0] = 0
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        log = os.open(run.directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        seed_everything(3, verbose=False)  # a fork seeds Python's generator anew
        train(run.module, run.datamodule, run.trainer, resume="auto", export=run.directory / "model")
        run.close()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def kill_at(child: int, shared: mmap.mmap, target: str | None, rng: random.Random, visits: int) -> str:
    """Kill the child at a random moment, in the phase `target` where there is one; returns the phase it was in."""
    if target is None:
        time.sleep(rng.uniform(0.0, 1.0))
    else:
        for _ in range(rng.randint(1, visits)):
            while shared[0] == PHASES.index(target):
                time.sleep(0.0005)
            while shared[0] != PHASES.index(target):
                ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                assert not ended, f"the run ended before it was killed in {target}"
                time.sleep(0.0002)
        time.sleep(rng.uniform(0.0, LENGTH[target]))
    os.kill(child, signal.SIGKILL)
    return PHASES[shared[0]]


def drive(folder: Path, kills: int, seed: int) -> None:
    """The undisturbed run, then the killed one; prints in which phases it was killed."""
    shared = mmap.mmap(-1, 1)
    rng = random.Random(seed)
    (folder / "undisturbed").mkdir()
    (folder / "killed").mkdir()
    whole, killed = built(folder / "undisturbed"), built(folder / "killed")
    mark(shared)
    killed.module.load_model()  # fills caches of transformers, which children inherit
    status = os.waitpid(attempt(whole, shared), 0)[1]
    assert status == 0, (whole.directory / "log.txt").read_text()[-3000:]
    phases: list[str] = []
    while True:
        child = attempt(killed, shared)
        if len(phases) < kills:
            # Late in the run only kills that come before the next checkpoint, so that it does not end too early.
            late = (killed.directory / "checkpoints" / f"iteration-{ITERATIONS - 4:06d}.ckpt").exists()
            targets = EARLY if late else TARGETS
            phases.append(kill_at(child, shared, targets[len(phases) % len(targets)], rng, visits=1 if late else 2))
        status = os.waitpid(child, 0)[1]
        if status == 0:
            break
        assert os.WIFSIGNALED(status), (killed.directory / "log.txt").read_text()[-3000:]
    print(json.dumps(phases))


def logged(directory: Path) -> pd.DataFrame:
    """Everything in `metrics.csv` but what a clock says."""
    frame = pd.read_csv(directory / "metrics.csv", dtype=str)
    frame = frame[[name for name in frame if not name.startswith(("seconds/", "throughput/"))]]
    return frame.dropna(how="all", subset=[name for name in frame if name not in ("step", "epoch")])


@pytest.mark.distributed
def test_a_run_that_is_killed_twenty_times_ends_as_an_undisturbed_one_bit_for_bit(tmp_path):
    result = subprocess.run(
        [sys.executable, __file__, str(tmp_path), "20", "0"], capture_output=True, text=True, timeout=400, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    phases = json.loads(result.stdout.splitlines()[-1])
    assert len(phases) == 20
    assert {"sampling", "verification", "update", "checkpoint"} <= set(phases)
    whole, killed = tmp_path / "undisturbed", tmp_path / "killed"
    expected = logged(whole).reset_index(drop=True)
    assert len(expected.dropna(subset=["train/loss"])) == ITERATIONS
    assert expected["replay/questions"].astype(float).max() > 1, "replay must have something to keep"
    assert expected["epoch"].nunique() > 1
    pd.testing.assert_frame_equal(logged(killed).reset_index(drop=True), expected, check_exact=True)
    files = ["model/model.safetensors", "ledger.json", "test.json", "validation.json", "embedding_diversity.csv"]
    recorded = [f"rollouts/{path.name}" for path in (whole / "rollouts").iterdir()]
    assert len(recorded) == ITERATIONS
    for name in files + recorded:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    left = sorted(path.name for path in (killed / "checkpoints").iterdir())
    assert left == [f"iteration-{ITERATIONS - 2:06d}.ckpt", f"iteration-{ITERATIONS:06d}.ckpt"]
    assert not list((killed / "rollout_store").iterdir()), "the last checkpoint covers all of them"


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
