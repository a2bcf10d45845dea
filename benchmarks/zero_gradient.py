r"""The share of questions without gradient over a training run: expected, and measured.

    tagrpo-train experiment=grpo data=shortest_path data.train.regime=easy name=exact \
        callbacks=[throughput,zero_gradient,exact_pass_at_k,exact_zero_gradient,checkpoint]
    python benchmarks/zero_gradient.py runs/exact/seed0

The interval is that of the measured share around the expected one, 95 %, questions being independent given the policy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import yaml


def summary(run: Path) -> dict[str, dict[str, float]]:
    """Pool → expected and measured percentages over all iterations, and the half-width of the interval."""
    questions = yaml.safe_load((run / "config.yaml").read_text())["data"]["batch_size"]
    rows = pd.read_csv(run / "metrics.csv").dropna(subset=["uniform_reward/pool_expected"])
    found = {}
    for pool in ("original", "pool"):
        expected, measured = (rows[f"uniform_reward/{pool}{suffix}"] / 100 for suffix in ("_expected", ""))
        # Questions of one iteration are taken as equally likely to have none: the variance is at most this.
        half = 1.96 * (questions * expected * (1 - expected)).sum() ** 0.5 / (questions * len(rows))
        found[pool] = {"expected": 100 * expected.mean(), "measured": 100 * measured.mean(), "half_width": 100 * half}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        for pool, row in summary(run).items():
            inside = abs(row["measured"] - row["expected"]) <= row["half_width"]
            words = {name: f"{value:.1f}" for name, value in row.items()}
            print(run, pool, words, "inside" if inside else "outside")


if __name__ == "__main__":
    main()
