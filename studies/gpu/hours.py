"""GPU hours of `compare=gpu`: arithmetic from its settings and stated assumptions, not a measurement.

    python -m studies.gpu.hours            # prints the table
    python -m studies.gpu.hours --write    # writes it into docs/study_gpu.md too

Seconds of updates are useful FLOP (6 per parameter and distinct token of the layers, 6 per element of the head and
response token; a third of that for each forward without gradient) over GPUs × peak × share, where recomputation and
attention count as nothing. Communication is added: FSDP2 gathers bfloat16 weights once per forward and once per
backward of every micro-batch, and reduces float32 gradients once per optimizer step. Sampling takes 2 FLOP per
parameter and token; its share is far below that of an update, because decoding reads weights and cache for few tokens
at a time. Loading, verification, weight sync and checkpoints are the overhead.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module

from tagrpo.cli.compare import methods_of
from tagrpo.datamodules.sources.catalogue import CATALOGUE
from tagrpo.runs.files import write_text

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "study_gpu.md"
PRESETS = f"hydra.searchpath=[file://{ROOT}/studies/gpu/configs]"
"""Where Hydra finds `compare=gpu`."""
MARKS = "<!-- begin hours -->", "<!-- end hours -->"
MEANS = (1000, 2000, 3072)
"""Tokens of a response: of short answers, of long ones, and all at the limit."""
PROMPT = 200
"""Tokens of a question of MATH with its instruction."""
LAYERS, HEAD = 1.41e9, 151936 * 2048
"""Parameters of Qwen3-1.7B; the head is tied with the embedding."""
PEAK, UPDATE_SHARE = 989e12, 0.35
"""FLOP/s of an H100 SXM in bfloat16, dense, and how much of it is useful in an update."""
BANDWIDTH = 300e9
"""Bytes per second that a GPU receives from the others of its node."""
SAMPLING_SHARE = 0.05
"""Of the peak; 14,400 tokens a second on an H100 with 1.7 billion parameters."""
OVERHEAD = 1.15
UNIFORM = 0.822
"""Share of questions whose eight rewards are equal: the mean of 77.0 and 87.4 % (TA-GRPO, 5.2, Qwen3-1.7B)."""


def configurations() -> tuple[dict[str, Any], int, int]:
    """Method → configuration of its runs; number of seeds; GPUs of a run."""
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        study = compose("compare", [PRESETS, "compare=gpu", "rephrasings=rephrased.jsonl"])
    methods = methods_of(study.methods, "paper")
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        found = {method: compose("train", [*study.overrides, *own.overrides]) for method, own in methods.items()}
    return found, len(study.seeds), study.gpus_per_run


def update_seconds(
    questions: int, responses: int, mean: int, updates: int, reference: bool, budget: int, gpus: int
) -> float:
    """Seconds of the updates of one iteration.

    >>> found = update_seconds(8, 32, 1000, updates=1, reference=False, budget=10**9, gpus=1)
    >>> tokens = 8 * 32 * 1000
    >>> flop = 6 * 1.41e9 * (tokens + 8 * 200) + 6 * 151936 * 2048 * tokens
    >>> abs(found / (flop / 989e12 / 0.35) - 1) < 1e-12
    True
    """
    tokens = questions * responses * mean
    encoded = tokens + questions * PROMPT
    forwards = (updates - 1) / updates + reference  # old log-probs of later mini-batches; reference
    compute = 6 * (LAYERS * encoded + HEAD * tokens) * (1 + forwards / 3) / (gpus * PEAK * UPDATE_SHARE)
    micro_batches = updates * math.ceil(encoded / gpus / updates / budget)
    gathered, reduced = 2 * (LAYERS + HEAD) * micro_batches * (2 + forwards), 4 * (LAYERS + HEAD) * updates
    return compute + (gathered + reduced) * (gpus - 1) / gpus / BANDWIDTH


def hours(cfg: Any, gpus: int, mean: int) -> float:
    """GPU hours of one run whose responses have `mean` tokens.

    TA-GRPO as in the paper: 58 iterations of 256 questions with 32 responses, then 1,288 test questions with 128.
    Dynamic sampling draws as often as `UNIFORM` says.
    """
    questions, responses = cfg.data.batch_size, cfg.data.samples_per_prompt * (1 + cfg.data.num_rephrasings)
    iterations = cfg.trainer.max_epochs * (CATALOGUE["math_train"].questions // questions)
    iterations = 0 if cfg.trainer.max_steps == 0 else iterations
    draws = 1 if cfg.rollout.get("dynamic_sampling") is None else 1 / (1 - UNIFORM)
    benchmarks = [CATALOGUE[split.dataset] for split in cfg.data.evaluation.values()]
    tested = sum(known.questions or known.rows for known in benchmarks) * cfg.data.evaluation_samples
    per_second = gpus * SAMPLING_SHARE * PEAK / (2 * (LAYERS + HEAD))
    sampling = (iterations * draws * questions * responses + tested) * mean / per_second
    policy, reference = cfg.policy, bool(cfg.loss.kl_coef)
    updates = update_seconds(questions, responses, mean, policy.mini_batches, reference, policy.token_budget, gpus)
    return OVERHEAD * gpus * (sampling + iterations * updates) / 3600


def table() -> str:
    """Markdown, for docs/study_gpu.md."""
    runs, seeds, gpus = configurations()
    lines = [
        "| GPU hours of a run | " + " | ".join(f"{mean:,} tokens a response" for mean in MEANS) + " |",
        "| --- |" + " ---: |" * len(MEANS),
    ]
    found = {method: [hours(cfg, gpus, mean) for mean in MEANS] for method, cfg in runs.items()}
    lines += [f"| {method} | " + " | ".join(f"{x:.1f}" for x in values) + " |" for method, values in found.items()]
    totals = [seeds * sum(values) for values in zip(*found.values(), strict=True)]
    lines.append(f"| **all, {seeds} seeds** | " + " | ".join(f"**{total:,.0f}**" for total in totals) + " |")
    days = " | ".join(f"{total / gpus / 24:.1f}" for total in totals)
    return "\n".join([*lines, f"| days of one node of {gpus} | {days} |"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/study_gpu.md")
    made = table()
    if parser.parse_args().write:
        body = f"{MARKS[0]}\n{made}\n{MARKS[1]}"
        text = DOCUMENT.read_text(encoding="utf-8")
        write_text(DOCUMENT, re.sub(f"{MARKS[0]}.*?{MARKS[1]}", body, text, flags=re.DOTALL))
    print(made)


if __name__ == "__main__":
    main()
