"""Proof that a change of the code changes no number: runs of many kinds, before and after, compared to the bit.

    python scripts/same_bits.py record before            # with the old code: six iterations of each run
    python scripts/same_bits.py record after             # with the new code
    python scripts/same_bits.py compare before after     # exit code 1 at the first number that differs

Compared are `metrics.csv` but for its wall times and for metrics that only the new code has, `test.json`, the recorded
rollouts and the trained weights. Names may be given to `record` to make only some of the runs.
"""

import argparse
import csv
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import load_file

SMALL = [
    "iterations=6", "threads=1", "logger=csv", "seed=5", "data.train.size=24", "data.batch_size=4",
    "data.samples_per_prompt=4", "data.evaluation_samples=4", "data.evaluation.test_id.size=4",
    "data.evaluation.test_phrasing.size=4", "data.evaluation.test_size.size=4", "trainer.val_check_interval=3",
    "callbacks=[throughput,zero_gradient,rephrasing_success,answer_diversity,pass_at_k,recorder,checkpoint]",
    "callbacks.checkpoint.every=2",
]  # fmt: skip
RUNS = {
    "grpo": ["experiment=grpo", "callbacks=default"],
    "ta_grpo": ["experiment=ta_grpo"],
    "ta_grpo_star": ["experiment=ta_grpo_star", "loss.entropy_coef=0.01"],
    "corrected": ["experiment=ta_grpo_corrected"],
    "adaptive": ["experiment=ta_grpo_adaptive"],
    "dynamic": ["experiment=grpo_ds"],
    "dynamic_rephrased": [
        "experiment=ta_grpo_ds",
        "rollout.sampling.max_new_tokens=16",
        "policy.mask_truncated=true",
    ],
    "replay": ["experiment=exgrpo", "rollout.replay.start=0.0"],
    "ahead": ["experiment=ta_grpo", "rollout.ahead=1"],
    "lora": ["experiment=ta_grpo", "lora=default"],
    "bootstrap": ["experiment=pass_at_k_bootstrap", "advantage.k=2"],
    "entropy": ["experiment=entropy_adaptive", "advantage.k=2"],
    "sequence": ["experiment=gspo", "policy.token_budget=400"],
    "lead": ["experiment=grpo_lead"],
    "noise": ["experiment=noisy_rewards"],
    "templates": ["experiment=prompt_augmentation"],
    "dapo": ["experiment=dapo"],
    "two_ranks": ["experiment=ta_grpo", "strategy=fsdp2", "trainer.devices=2"],
    "two_ranks_ahead": ["experiment=grpo_ds", "strategy=ddp", "trainer.devices=2"],
}
TIMES = ("seconds/", "throughput/")


def record(folder: Path, names: list[str]) -> None:
    """Run the experiments `names` in `folder`, one directory each."""

    def run(name: str) -> None:
        directory = folder / name
        log = folder / f"{name}.log"
        folder.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            command = [
                sys.executable,
                "-m",
                "tagrpo.cli.train",
                *SMALL,
                *RUNS[name],
                f"hydra.run.dir={directory}",
            ]
            quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            code = subprocess.run(
                command, stdout=output, stderr=output, env=os.environ | quiet, check=False
            ).returncode
        if code:
            sys.exit(f"{name} ended with {code}:\n{log.read_text()[-3000:]}")
        print(name, flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, names))


def numbers_of(directory: Path) -> dict[str, Any]:
    """Place → number or text, of everything that a run must reproduce."""
    found: dict[str, Any] = {}
    with (directory / "metrics.csv").open() as file:
        for row, line in enumerate(csv.DictReader(file)):
            found |= {
                f"metrics/{name}/{row}": v for name, v in line.items() if not name.startswith(TIMES) and v
            }
    found["test"] = (directory / "test.json").read_text()
    for file in sorted((directory / "rollouts").glob("*.parquet")):
        for name, column in pd.read_parquet(file).items():
            found[f"rollouts/{name}/{file.stem}"] = repr(
                [getattr(v, "tolist", lambda v=v: v)() for v in column]
            )
    for file in sorted((directory / "model").glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            found[f"weights/{name}"] = tensor.numpy().tobytes()
    return found


def is_new_metric(place: str, known: set[str]) -> bool:
    """Return whether a place is a metric that is none of the `known` ones: it was added, and no number changed."""
    return place.startswith("metrics/") and place.split("/", 1)[1].rpartition("/")[0] not in known


def compare(before: Path, after: Path) -> list[str]:
    """Lines that say what differs, at most one for each run."""
    lines = []
    for directory in sorted(path for path in before.iterdir() if path.is_dir()):
        old, new = numbers_of(directory), numbers_of(after / directory.name)
        known = {place.split("/", 1)[1].rpartition("/")[0] for place in old if place.startswith("metrics/")}
        places = [*old, *(p for p in new if p not in old and not is_new_metric(p, known))]
        different = [p for p in places if old.get(p) != new.get(p)]
        if different:
            shown = f"{str(old.get(different[0]))[:200]} → {str(new.get(different[0]))[:200]}"
            lines.append(
                f"{directory.name}: {len(different)} of {len(places)} differ, first {different[0]}: {shown}"
            )
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("names", nargs="*", default=list(RUNS))
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.folder, arguments.names)
        return
    lines = compare(arguments.before, arguments.after)
    print("\n".join(lines) or "The same to the bit.")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
