"""A run that is killed again and again ends as an undisturbed one does, bit for bit.

`python -m tests.test_crash <folder> <kills> <seed>` is the driver: it imports everything once and forks a child per
attempt, as starting Python would take most of the time. Phases of the child are visible to it in shared memory.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch import Callback, seed_everything
from omegaconf import DictConfig, OmegaConf
from transformers import AutoModelForCausalLM

from tagrpo.callbacks import Checkpointer, EmbeddingDiversityMonitor, RolloutCallback
from tagrpo.cli.export import export
from tagrpo.cli.train import train
from tagrpo.modules.lightning.policy_module import PolicyModule
from tagrpo.rollouts import TransformersEngine
from tagrpo.rollouts.scoring import Scoring
from tagrpo.runs.loggers import MetricsCSV
from tagrpo.runs.secrets import save_resolved
from tagrpo.settings.config import Run, build
from tagrpo.starter import starter_path
from tests.helpers import in_fork

pytestmark = pytest.mark.runs

PHASES = ("other", "sampling", "verification", "update", "checkpoint", "validation", "log")
EARLY = ("sampling", "verification", "update")
TARGETS = ("sampling", "verification", "update", "checkpoint", "validation", "log", None)
"""Phases to kill in, by turns; None is any moment, also before training begins."""
LENGTH = {
    "sampling": 0.1,
    "verification": 0.002,
    "update": 0.1,
    "checkpoint": 0.01,
    "validation": 0.1,
    "log": 0.001,
}
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


def composed(directory: Path, *overrides: str) -> DictConfig:
    """The configuration of the run in `directory`, which is made."""
    directory.mkdir()
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose(
            "train", [f"hydra.run.dir={directory}", *OVERRIDES, *overrides], return_hydra_config=True
        )
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    save_resolved(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]), directory)
    return cfg


class Dice(Callback):
    """Uses the random states that no part of the package uses."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.log("dice/torch", float(torch.rand(())), rank_zero_only=True)
        pl_module.log("dice/numpy", float(np.random.rand()), rank_zero_only=True)  # noqa: NPY002
        pl_module.log("dice/python", random.random(), rank_zero_only=True)


def embed(texts: list[str]) -> torch.Tensor:
    """A sentence encoder that costs nothing."""
    return torch.tensor([[float(len(text)), float(text.count("1")), 1.0] for text in texts])


def built(cfg: DictConfig) -> Run:
    """The run of `cfg`, with some callbacks that keep or draw something."""
    HydraConfig.instance().set_config(cfg)
    run = build(cfg)
    run.trainer.callbacks[1:1] = [Dice(), EmbeddingDiversityMonitor(lambda: embed, every=3)]
    return run


def mark(memories: list[mmap.mmap]) -> None:
    """Have the phases of training show in shared memory of each rank; a phase within another does not."""

    def marked(owner: type, method: str, phase: str, when=lambda *arguments: True) -> None:
        original = getattr(owner, method)

        def run(*arguments, **options):
            shared = memories[int(os.environ.get("RANK", "0"))]
            if shared[0] or not when(*arguments):
                return original(*arguments, **options)
            shared[0] = PHASES.index(phase)
            try:
                return original(*arguments, **options)
            finally:
                shared[0] = 0

        setattr(owner, method, run)

    marked(TransformersEngine, "generate", "sampling")
    marked(Scoring, "scored", "verification")
    marked(RolloutCallback, "on_validation_batch_start", "validation")
    marked(PolicyModule, "training_step", "update")
    marked(
        Checkpointer, "save", "checkpoint", lambda self, *_: self._progress and self._saved_at != self._done
    )
    marked(MetricsCSV, "log_metrics", "log")


def attempt(
    directory: Path,
    make: Callable[[], Run],
    shared: mmap.mmap,
    resume: str = "auto",
    environment: Mapping[str, str] | None = None,
) -> int:
    """Fork a child that trains, exports and tests; returns its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        shared[0] = 0
        log = os.open(directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(environment or {})
        run = make()
        seed_everything(3, verbose=False)  # a fork seeds Python's generator anew
        train(run.module, run.datamodule, run.trainer, resume=resume, export=run.directory / "model")
        run.close()
        status = 0
    except SystemExit as leave:
        status = int(leave.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def log_of(directory: Path) -> str:
    """The last of what a run printed."""
    return (directory / "log.txt").read_text()[-3000:]


def wait_for(phase: str, child: int, shared: mmap.mmap) -> None:
    """Wait until the child enters `phase` anew."""
    while shared[0] == PHASES.index(phase):
        time.sleep(0.0005)
    while shared[0] != PHASES.index(phase):
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        assert not ended, f"the run ended before it was in {phase}"
        time.sleep(0.0002)


def kill_at(child: int, shared: mmap.mmap, target: str | None, at_once: bool, rng: random.Random) -> str:
    """Kill the child at a random moment, in the phase `target` where there is one; returns the phase it was in."""
    if target is None:
        time.sleep(rng.uniform(0.0, 0.5))
    else:
        wait_for(target, child, shared)
        time.sleep(0.0 if at_once else rng.uniform(0.0, LENGTH[target]))
    os.kill(child, signal.SIGKILL)
    return PHASES[shared[0]]


def drive_killed(folder: Path, kills: int, rng: random.Random, shared: mmap.mmap) -> dict[str, Any]:
    """An undisturbed run, then one that is killed; says in which phases it was killed."""
    whole, killed = folder / "undisturbed", folder / "killed"
    # Built once here, as that takes longer than an iteration.
    whole_run, killed_run = built(composed(whole)), built(composed(killed))
    assert os.waitpid(attempt(whole, lambda: whole_run, shared), 0)[1] == 0, log_of(whole)
    phases: list[str] = []
    while True:
        child = attempt(killed, lambda: killed_run, shared)
        if len(phases) < kills:
            # Late in the run only kills that come before the next checkpoint, so that it does not end too early.
            done = [path.name for path in (killed / "checkpoints").glob("iteration-*.ckpt")]
            late = max(done, default="") >= f"iteration-{ITERATIONS - 6:06d}.ckpt"
            targets = EARLY if late else TARGETS
            target = targets[len(phases) % len(targets)]
            # A phase may be over sooner than `LENGTH` says: at once until it has been met.
            phases.append(kill_at(child, shared, target, target not in phases, rng))
        status = os.waitpid(child, 0)[1]
        if status == 0:
            return {"phases": phases}
        assert os.WIFSIGNALED(status), log_of(killed)


def attempt_pair(cfg: DictConfig, shared: list[mmap.mmap], resume: str) -> list[int]:
    """Two ranks with the environment that torchrun gives them."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    common |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
    return [
        attempt(
            Path(cfg.hydra.runtime.output_dir),
            lambda: built(cfg),
            shared[rank],
            resume,
            {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]


def drive_sharded(folder: Path, shared: list[mmap.mmap]) -> dict[str, Any]:
    """Two ranks under FSDP2: undisturbed; then told to stop, killed while they write shards, and resumed."""
    overrides = ["strategy=fsdp2", "trainer.devices=2", "iterations=3", "callbacks.checkpoint.every=2"]
    whole, stopped = composed(folder / "sharded", *overrides), composed(folder / "stopped", *overrides)
    for child in attempt_pair(whole, shared, "auto"):
        assert os.waitpid(child, 0)[1] == 0, log_of(folder / "sharded")
    # One rank alone is told to stop, in the middle of its first update.
    children = attempt_pair(stopped, shared, "auto")
    wait_for("update", children[1], shared[1])
    os.kill(children[1], signal.SIGTERM)
    codes = [os.waitpid(child, 0)[1] for child in children]
    left = sorted(path.name for path in (folder / "stopped" / "checkpoints").iterdir())
    # Both die while they write the checkpoint after the second iteration.
    children = attempt_pair(stopped, shared, "auto")
    while not (folder / "stopped" / "checkpoints" / ".partial-iteration-000002.ckpt").exists():
        assert not os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOHANG | os.WNOWAIT), log_of(
            folder / "stopped"
        )
    for (
        child
    ) in children:  # both before either is waited for: a rank that notices the other's death tidies up
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    torn = sorted(path.name for path in (folder / "stopped" / "checkpoints").iterdir())
    for child in attempt_pair(stopped, shared, "auto"):
        assert os.waitpid(child, 0)[1] == 0, log_of(folder / "stopped")
    return {"codes": codes, "left": left, "torn": torn}


def drive(folder: Path, kills: int, seed: int) -> None:
    """All runs; prints what happened."""
    shared = [mmap.mmap(-1, 1), mmap.mmap(-1, 1)]
    mark(shared)
    AutoModelForCausalLM.from_pretrained(starter_path())  # fills caches, which children inherit
    gc.freeze()  # else collections in the children copy the parent's memory
    report = drive_killed(folder, kills, random.Random(seed), shared[0]) | drive_sharded(folder, shared)
    print(json.dumps(report))


def logged(directory: Path) -> pd.DataFrame:
    """Everything in `metrics.csv` but what a clock says."""
    frame = pd.read_csv(directory / "metrics.csv", dtype=str)
    frame = frame[[name for name in frame if not name.startswith(("seconds/", "throughput/"))]]
    return frame.dropna(how="all", subset=[name for name in frame if name not in ("step", "epoch")])


@pytest.fixture(scope="module", params=[4, pytest.param(12, marks=pytest.mark.slow)])
def report(request, tmp_path_factory) -> dict[str, Any]:
    """What the driver did, and where; `kills` is how often it was to kill."""
    folder = tmp_path_factory.mktemp("crash")
    code, output = in_fork(lambda: drive(folder, request.param, 0))
    assert code == 0, output[-3000:]
    (line,) = [line for line in output.splitlines() if line.startswith('{"phases"')]
    return {"folder": folder, "kills": request.param, **json.loads(line)}


def assert_same(other: Path, whole: Path, iterations: int, ranks: int = 1) -> pd.DataFrame:
    """Check that two runs ended alike, bit for bit; returns what was logged."""
    expected = logged(whole).reset_index(drop=True)
    assert len(expected.dropna(subset=["train/loss"])) == iterations
    pd.testing.assert_frame_equal(logged(other).reset_index(drop=True), expected, check_exact=True)
    files = [
        "model/model.safetensors",
        "ledger.json",
        "test.json",
        "validation.json",
        "embedding_diversity.csv",
    ]
    recorded = [f"rollouts/{path.name}" for path in (whole / "rollouts").iterdir()]
    assert len(recorded) == iterations * ranks
    for name in [name for name in files if (whole / name).exists()] + recorded:
        assert (other / name).read_bytes() == (whole / name).read_bytes(), name
    return expected


@pytest.mark.distributed
def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one_bit_for_bit(report):
    assert len(report["phases"]) == report["kills"]
    assert {"sampling", "verification", "update", "checkpoint"} <= set(report["phases"])
    killed = report["folder"] / "killed"
    expected = assert_same(killed, report["folder"] / "undisturbed", ITERATIONS)
    assert expected["replay/questions"].astype(float).max() > 1, "replay must have something to keep"
    assert expected["epoch"].nunique() > 1
    left = sorted(path.name for path in (killed / "checkpoints").iterdir())
    assert left == [f"iteration-{ITERATIONS - 2:06d}.ckpt", f"iteration-{ITERATIONS:06d}.ckpt"]


@pytest.mark.distributed
def test_both_ranks_stop_when_one_is_told_to_and_go_on_from_whole_shards(report):
    assert report["codes"] == [0, 0]
    assert report["left"] == ["iteration-000001.ckpt"]
    assert report["torn"] == [".partial-iteration-000002.ckpt", "iteration-000001.ckpt"]
    assert_same(report["folder"] / "stopped", report["folder"] / "sharded", iterations=3, ranks=2)


@pytest.mark.distributed
def test_shards_of_two_ranks_are_exported_by_one_process(report, tmp_path):
    export(report["folder"] / "sharded", tmp_path / "model")
    of_the_run = report["folder"] / "sharded" / "model" / "model.safetensors"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == of_the_run.read_bytes()


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
