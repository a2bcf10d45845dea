"""Where the seconds of a whole iteration go: both engines, and TRL on the same prompts.

    python benchmarks/iteration.py --json benchmarks/results/iteration.json
    python benchmarks/iteration.py --cells grpo/transformers grpo/vllm_cpu grpo/trl --iterations 3 \
        --json benchmarks/results/iteration_smollm2.json data=multiplication data.batch_size=16 \
        data.samples_per_prompt=4 rollout.sampling.max_new_tokens=16 policy.mini_batches=1 loss.kl_coef=0

Each cell is a process of its own that trains the embedded task as `make demo` does, or what the settings say. Phases
are wall seconds: sync, generate, score, update; `encoder` is the sentence encoder's, `diagnostics` all other callbacks'
but the rollout's; `overhead` is what these leave of the iteration: loading, logging, Lightning itself. `cpu` are the
iteration's CPU seconds, of all threads. The first two iterations, which start engines and workers, are left out. Shares
are those of medians, so that one pause of the machine does not count.

TRL samples the same number of responses to the same prompts with the same policy through `model.generate`, scores them
with the same verifier and makes the same optimizer steps; its `update` is what generation and scoring leave.
`trl_shared` is TRL after `share_prefixes`. Of both, `reward_of_last_ten` is the mean over the last ten iterations.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from lightning.pytorch import Callback
from lightning.pytorch.profilers import SimpleProfiler
from workload import grpo_trainer, report

from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.packing.trl import share_prefixes
from tagrpo.settings.config import build, compose_run

CELLS = [
    "grpo/transformers", "grpo_matched/transformers", "grpo_matched/vllm_cpu", "grpo_matched/trl",
    "ta_grpo/transformers", "ta_grpo/vllm_cpu",
]  # fmt: skip
WARM_UP = 2
ENCODER = "EmbeddingDiversityMonitor"
NO_DIAGNOSTICS = (ENCODER, "RolloutCallback", "ThroughputMonitor", "ScalarLog", "Phases")
PHASES = ("sync", "generate", "score", "update", "diagnostics", "encoder", "overhead")


class Phases(Callback):
    """Seconds per phase of every iteration but the last, from the rollouts, the step and Lightning's profiler."""

    def __init__(self, profiler: SimpleProfiler) -> None:
        self.profiler, self.rows = profiler, list[dict[str, float]]()
        self.start: float | None = None
        self.cpu = 0.0
        self.before: dict[str, float] = {}
        self.named: dict[str, float] = {}

    def callback_seconds(self) -> dict[str, float]:
        """Callback → seconds in its hooks around training batches so far."""
        found: dict[str, float] = {}
        for action, durations in self.profiler.recorded_durations.items():
            if action.startswith("[Callback]") and "train_batch" in action:
                name = re.split(r"[.{]", action.removeprefix("[Callback]"))[0]
                found[name] = found.get(name, 0.0) + sum(durations)
        return found

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        now, seen = time.perf_counter(), self.callback_seconds()
        if self.start is not None:
            spent = {name: value - self.before.get(name, 0.0) for name, value in seen.items()}
            diagnostics = sum(value for name, value in spent.items() if name not in NO_DIAGNOSTICS)
            row = {**self.named, "encoder": spent.get(ENCODER, 0.0), "diagnostics": diagnostics}
            total = now - self.start
            row |= {
                "overhead": total - sum(row.values()),
                "iteration": total,
                "cpu": time.process_time() - self.cpu,
            }
            self.rows.append(row)
        self.start, self.before, self.cpu = now, seen, time.process_time()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.named = {**batch.rollouts.seconds, "update": outputs["seconds_update"]}


def run_cell(method: str, iterations: int, overrides: Sequence[str], folder: str) -> list[dict[str, float]]:
    """[iterations] seconds per phase of a training run, with everything that is on by default."""
    iterations += WARM_UP + 1
    settings = [
        f"experiment={method}",
        "logger=csv",
        f"iterations={iterations}",
        "trainer.limit_val_batches=0",
    ]
    cfg = compose_run(folder, [*settings, *overrides])
    run = build(cfg)
    profiler = run.trainer.profiler = SimpleProfiler(dirpath=folder, filename="profile")
    phases = Phases(profiler)
    run.trainer.callbacks.insert(0, phases)  # type: ignore[attr-defined]
    try:
        run.trainer.fit(run.module, datamodule=run.datamodule)
    finally:
        run.close()
    return phases.rows[WARM_UP:]


def trl_cell(method: str, iterations: int, overrides: Sequence[str], shared: bool) -> list[dict[str, float]]:
    """[iterations] seconds per phase and rewards of TRL's trainer; methods that sample under the prompt they score."""
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [f"experiment={method}", *overrides])
    datamodule, verifier = instantiate(cfg.data), instantiate(cfg.reward)
    datamodule.setup("fit")
    epochs = chain.from_iterable(repeat(datamodule.train_dataloader()))
    batches = list(islice(epochs, iterations + WARM_UP))
    rendered = [(prompt.text, batch.groups[prompt.question]) for batch in batches for prompt in batch.prompts]
    samples, questions = cfg.data.samples_per_prompt, cfg.data.batch_size
    rows, updates = samples * questions, cfg.policy.mini_batches

    def reward(completions: list[str], reference: list[Any], **_: Any) -> list[float]:
        return [float(score.correct) for score in verifier.score_batch(completions, reference)]

    trainer = grpo_trainer(
        load_causal_lm(cfg.model.path),
        reward,
        [{"prompt": text, "reference": list(q.answer)} for text, q in rendered],
        datamodule.tokenizer,
        use_cpu=True, per_device_train_batch_size=rows // updates, gradient_accumulation_steps=1,
        steps_per_generation=updates, num_generations=samples,
        max_completion_length=cfg.rollout.sampling.max_new_tokens, max_steps=(iterations + WARM_UP) * updates,
        beta=cfg.loss.kl_coef, learning_rate=cfg.optimizer.lr, save_strategy="no", shuffle_dataset=False, seed=cfg.seed,
    )  # fmt: skip
    if shared:
        share_prefixes(trainer)
    spent = {"generate": 0.0, "score": 0.0}
    starts: list[tuple[float, float, dict[str, float]]] = []
    rewards: list[float] = []

    def timed(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if phase == "generate":
                starts.append((time.perf_counter(), time.process_time(), dict(spent)))
            start = time.perf_counter()
            found = function(*args, **kwargs)
            spent[phase] += time.perf_counter() - start
            if phase == "score":
                rewards.append(float(found.mean()))
            return found

        return call

    trainer._generate = timed("generate", trainer._generate)
    trainer._calculate_rewards = timed("score", trainer._calculate_rewards)
    trainer.train()
    starts.append((time.perf_counter(), time.process_time(), dict(spent)))
    rows_out = []
    for ((start, cpu, before), (end, cpu_after, after)), mean in zip(pairwise(starts), rewards, strict=True):
        row = {phase: after[phase] - before[phase] for phase in spent}
        update = end - start - sum(row.values())
        rows_out.append(
            row | {"update": update, "iteration": end - start, "cpu": cpu_after - cpu, "reward": mean}
        )
    return rows_out[WARM_UP:]


def summary(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    seconds = {
        phase: median(row[phase] for row in rows)
        for phase in (*PHASES, "iteration", "cpu")
        if phase in rows[0]
    }
    if "encoder" in seconds:  # every eighth iteration: a median would hide it
        seconds["encoder"] = sum(row["encoder"] for row in rows) / len(rows)
    shares = {
        p: seconds[p] / seconds["iteration"] for p in ("sync", "diagnostics", "overhead") if p in seconds
    }
    rewards = (
        {"reward_of_last_ten": fmean(row["reward"] for row in rows[-10:])} if "reward" in rows[0] else {}
    )
    return {"iterations": len(rows), "seconds": seconds, "share": shares, **rewards}


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of an iteration by phase: both engines, and TRL.")
    parser.add_argument("--iterations", type=int, default=15, help="measured, per cell")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--cells", nargs="+", default=CELLS, help="method/engine, or trl, trl_shared")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="of the configuration, for every cell")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.cell:
        method, engine = arguments.cell.split("/")
        if engine.startswith("trl"):
            rows = trl_cell(method, arguments.iterations, arguments.overrides, shared=engine == "trl_shared")
        else:
            with tempfile.TemporaryDirectory() as folder:
                overrides = [f"rollout={engine}", *arguments.overrides]
                rows = run_cell(method, arguments.iterations, overrides, folder)
        arguments.json.write_text(json.dumps(summary(rows)))
        return
    cells: dict[str, Any] = {}
    for cell in arguments.cells:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cell.json"
            command = [sys.executable, __file__, "--cell", cell, "--iterations", str(arguments.iterations)]
            subprocess.run([*command, "--json", str(path), *arguments.overrides], check=True)
            cells[cell] = json.loads(path.read_text())
        print(cell, json.dumps(cells[cell]), file=sys.stderr, flush=True)
    report({"cells": cells}, arguments)


if __name__ == "__main__":
    main()
