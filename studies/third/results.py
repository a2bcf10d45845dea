"""From the files of runs to one table, `runs.csv.gz`, which the claims and the page are computed from.

    python -m studies.third.results runs/third studies/third/runs.csv.gz
    pandas.read_csv("studies/third/runs.csv.gz")

A row is a run, tested at one of its points on one wording: means over questions of `pass@k` and `cover@τ`, and
`gained@k` and `lost@k`, the shares of the questions that training has brought within reach of k samples, and out of it.
`gap` is that of the policy that the run began with: its success on the reformulations of the run's kind − that on the
originals. Runs that the table has already, and the folder has not, stay in it, so that seeds may be run at different
times and places. Points are `start` (the untrained policy), `best1`, `best32` (where validation was best) and `end`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from tagrpo.metrics.functional import cover_at_tau, exact_pass_at_k, support_change

from .design import KS, RECIPES, TAUS, UNTRAINED

RUN = ("task", "branch", "seed", "arm", "kind", "path", "rate")
"""What a run is told by."""
KEPT = ("listed", "without_gradient", "correct_original", "correct_reformulated")
"""Series of training whose means are kept."""


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of all finished runs below a folder of the study."""
    for file in sorted(folder.glob(f"*/*/seed*/{UNTRAINED}-*.json")):
        start = json.loads(file.read_text())
        mean = {name: sum(p) / len(p) for name, p in start["prompts"].items()}
        for kind, tests in start["tests"].items():
            told = {name: start[name] for name in RUN} | {"kind": kind, "gap": mean[kind] - mean["original"]}
            yield from _rows(told, "start", tests, tests)
        for other in sorted(file.parent.glob("*.json")):
            run = json.loads(other.read_text())
            if run["recipe"] != asdict(RECIPES[run["task"]]):
                raise ValueError(f"Expected the plan's recipe in {other} but got {run['recipe']}.")
            if run["arm"] != UNTRAINED:
                before = start["tests"][run["kind"]]
                told = {name: run[name] for name in RUN} | {"gap": mean[run["kind"]] - mean["original"]}
                told |= {
                    f"training/{name}": sum(of) / len(of)
                    for name, of in run["training"].items()
                    if name in KEPT
                }
                told |= {f"seconds/{phase}": spent for phase, spent in run["seconds"].items()}
                for point, iteration in run["points"].items():
                    yield from _rows(
                        told | {"iteration": iteration}, point, run["tests"][str(iteration)], before
                    )


def _rows(
    told: Mapping[str, Any], point: str, tests: Mapping[str, list[float]], before: Mapping[str, list[float]]
) -> Iterator[dict[str, Any]]:
    for wording, success in tests.items():
        p = torch.tensor(success, dtype=torch.float64)
        after = exact_pass_at_k(p, KS)
        gained, lost = support_change(
            exact_pass_at_k(torch.tensor(before[wording], dtype=torch.float64), KS), after
        )
        columns: dict[str, tuple[Sequence[float], Tensor]] = {
            "pass": (KS, after.mean(0)),
            "cover": (TAUS, cover_at_tau(p, TAUS).mean(0)),
            "gained": (KS, gained),
            "lost": (KS, lost),
        }
        values = {
            f"{name}@{k}": float(x) for name, (ks, of) in columns.items() for k, x in zip(ks, of, strict=True)
        }
        yield {**told, "point": point, "wording": wording, **values}


def added(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rows, and those that a table has of other runs."""
    if path.exists():
        rows = pd.concat([pd.read_csv(path), rows]).drop_duplicates([*RUN, "point", "wording"], keep="last")
    return rows.sort_values([*RUN, "point", "wording"], ignore_index=True)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the runs")
    parser.add_argument("table", type=Path, help="to write")
    chosen = parser.parse_args()
    table = added(pd.DataFrame(rows_of(chosen.folder)), chosen.table)
    table.to_csv(chosen.table, index=False, float_format="%.6g", compression={"method": "gzip", "mtime": 0})
    print(f"{len(table)} rows of {len(table.drop_duplicates(list(RUN)))} runs in {chosen.table}")


if __name__ == "__main__":
    main()
