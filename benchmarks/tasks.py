"""How much of each task the starter policies solve, exactly: pass@1 of every regime, split and prompt.

    PYTHONPATH=. python benchmarks/tasks.py

The starters are those of `python -m examples.starters.warmstart --task TASK --output runs/starters/TASK`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from exact import Policy

from examples.starters.warmstart import TASKS
from tagrpo.metrics.functional import exact_pass_at_k
from tagrpo.types import SamplingConfig

SPLITS = ("train", "test_id", "test_phrasing", "test_size")
KS = (1, 32, 1000, 10**6)
QUESTIONS, OUTPUT = 192, Path("benchmarks/results/tasks.json")
SAMPLING = SamplingConfig(max_new_tokens=40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starters", type=Path, default=Path("runs/starters"))
    starters = parser.parse_args().starters
    torch.set_num_threads(1)
    found = {}
    for task in (name for name, task in TASKS.items() if task.verifier):
        policy = Policy(str(starters / task), task)
        source = TASKS[task].source
        for regime in source.rephrasings:
            for split in SPLITS:
                groups = source(split, regime, QUESTIONS, 1).load()
                p = policy.exact(groups, SAMPLING)
                row = {f"pass@{k}": x for k, x in zip(KS, exact_pass_at_k(p, KS).mean(0).tolist(), strict=True)}
                rephrased = [group._replace(question=group.rephrasings[0]) for group in groups]
                row["rephrasings pass@1"] = float(policy.exact(rephrased, SAMPLING).mean())
                found[f"{task}/{regime}/{split}"] = row
                print(f"{task}/{regime}/{split}", {name: round(x, 4) for name, x in row.items()}, flush=True)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
