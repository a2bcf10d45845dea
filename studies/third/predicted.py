"""What the advantages of an arm predict of its gains before a run begins: `predicted.csv.gz`.

    python -m studies.third.predicted runs/third studies/third/predicted.csv.gz

Of a training question only correct and wrong responses are told apart, and questions do not help each other: the policy
is the logit z of its success p on the original, a step goes along the expected gradient of the arm in z, and pass@k
gains k (1 − p)^(k − 1) dp. With p_n the success on prompt n, and a⁺ and a⁻ the expected advantages of its correct and
wrong responses, dz = Σ a⁺ p_n (1 − p) − a⁻ (1 − p_n) p, over the prompts whose responses are scored under the original.
Units are arbitrary, the same for all arms. A row is a cell, an arm and a k of `KS`.
"""

import argparse
import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from tagrpo.lab.objectives import expected_advantages

from .design import ARMS, GAPS, UNTRAINED, Arm

KS = (1, 32)
EVERY = 8
"""Of so many training questions one is asked."""


def direction(arm: Arm, success: tuple[float, ...]) -> float:
    """Dz of a question, whose prompts have these success rates, the original first."""
    success, first = success[: 1 + arm.reformulations], success[0]
    alike = Arm(samples=arm.samples, pool=arm.pool, k=arm.k)
    pools = [success] if arm.pool == "question" else [(p,) for p in success]
    given = [pair for pool in pools for pair in advantages(alike, pool)]
    pushed = [
        up * p * (1 - first) - down * (1 - p) * first for p, (up, down) in zip(success, given, strict=True)
    ]
    return sum(pushed if arm.anchor == "original" else pushed[:1]) / len(success)


@cache
def advantages(arm: Arm, success: tuple[float, ...]) -> list[tuple[float, float]]:
    """(a⁺, a⁻) of each prompt of a pool."""
    given = expected_advantages(arm.strategy(), torch.tensor(success, dtype=torch.float64), arm.samples)
    return list(zip(given.correct.tolist(), given.wrong.tolist(), strict=True))


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """From the untrained policies of a study."""
    for file in sorted(folder.glob(f"*/*/seed*/{UNTRAINED}-*.json")):
        start = json.loads(file.read_text())
        if start["branch"] in GAPS:
            original, rest = start["prompts"]["original"], start["prompts"]["wording"]
            each = len(rest) // len(original)
            asked = [(p, *rest[each * n : each * (n + 1)]) for n, p in enumerate(original)][::EVERY]
            for (name, arm), k in product(ARMS.items(), KS):
                gains = [k * (1 - p[0]) ** (k - 1) * p[0] * (1 - p[0]) * direction(arm, p) for p in asked]
                told = {key: start[key] for key in ("task", "branch", "seed")}
                yield {**told, "arm": name, "k": k, "predicted": sum(gains) / len(gains)}


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the runs")
    parser.add_argument("table", type=Path, help="to write; what it has of other cells stays")
    chosen = parser.parse_args()
    rows, keys = pd.DataFrame(rows_of(chosen.folder)), ["task", "branch", "seed", "arm", "k"]
    if chosen.table.exists():
        rows = pd.concat([pd.read_csv(chosen.table), rows]).drop_duplicates(keys, keep="last")
    rows = rows.sort_values(keys, ignore_index=True)
    rows.to_csv(chosen.table, index=False, float_format="%.6g", compression={"method": "gzip", "mtime": 0})


if __name__ == "__main__":
    main()
