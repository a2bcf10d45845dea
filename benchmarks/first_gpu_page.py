"""Print the page of a first run on a GPU from its folder of results, in Markdown. Needs Python alone.

python benchmarks/first_gpu_page.py RESULTS
"""

import csv
import datetime
import json
import re
import sys
from pathlib import Path

WAYS = {"padded": "padded", "padding_free": "padding-free", "prefix_shared": "shared prefixes"}
COLUMNS = (
    "throughput/mfu",
    "seconds/generate",
    "seconds/update",
    "rollout/engine_mismatch_mean",
    "train/loss",
)
"""Metrics of a training that the page shows, if the run logged them."""


def read_json(path: Path) -> object:
    """Return what a step wrote; None if it wrote nothing whole."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def of_kernels(found: list[dict[str, object]]) -> str:
    """Return how many kernels are right, and those that are not."""
    wrong = [f"{row['kernel']}: {row['outcome']}" for row in found if row["outcome"] != "OK"]
    right = f"{len(found) - len(wrong)} of {len(found)} kernels agree with float32"
    return "; ".join([right, *wrong])


def of_update(found: dict[str, dict[str, float]]) -> str:
    """Return seconds, share of the matrix rate, peak memory and gradient of each way to update."""
    parts = []
    for way, seconds in found["seconds"].items():
        part = f"{WAYS.get(way, way)} {seconds:.2f} s"
        part += f", {100 * found['share_of_matrix_rate'][way]:.0f} % of the matrix rate"
        part += f", {found['peak_mib'][way] / 1024:.1f} GiB"
        if way in found["gradient_difference"]:
            part += f", gradient differs by {found['gradient_difference'][way]:.1e}"
        parts.append(part)
    return "; ".join(parts)


def of_training(path: Path) -> str:
    """Return metrics of the last iteration that a training logged."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return "no iteration"
    shown = [f"{name} {float(rows[-1][name]):.3g}" for name in COLUMNS if rows[-1].get(name)]
    return ", ".join([f"{len(rows)} iterations", *shown])


def of_tests(log: str) -> str:
    """Return pytest's last line."""
    lines = re.findall(r"^\d+ (?:passed|failed|skipped|error).*$", log, re.MULTILINE)
    return lines[-1] if lines else ""


def figures(folder: Path, step: str) -> str:
    """Return the figures of a step, in words; empty if there are none."""
    found = read_json(folder / f"gpu-{step}.json")
    table = folder / f"gpu-{step}.csv"
    log = folder / f"gpu-{step}.log"
    try:
        if step == "short" and found:
            return of_kernels(found)
        if isinstance(found, dict) and "seconds" in found:
            return of_update(found)
        if table.exists():
            return of_training(table)
        return of_tests(log.read_text(errors="replace")) if step == "tests" else ""
    except (KeyError, TypeError, ValueError, OSError) as error:  # half-written results must not cost the page
        return f"unreadable ({type(error).__name__})"


def last_words(folder: Path, step: str) -> str:
    """Return the last line of a log, for steps that failed."""
    lines = (folder / f"gpu-{step}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1][:160].replace("|", "/") if lines else "no output"


def page(folder: Path) -> str:
    """Return the page: the machine, and a table of the steps."""
    machine = read_json(folder / "gpu-machine.json")
    facts = machine if isinstance(machine, dict) else {"card": "unknown: the step `machine` has not ended"}
    lines = [
        "# First run on a GPU",
        "",
        "`bash benchmarks/first_gpu_run.sh`, " + datetime.date.today().isoformat() + ".",
    ]
    lines += ["", "| machine | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    lines += ["", "| step | outcome | seconds | figures |", "|---|---|---:|---|"]
    for line in (folder / "gpu-steps.tsv").read_text().splitlines():
        step, outcome, seconds = line.split("\t")
        told = figures(folder, step)
        if outcome != "done":
            told = "; ".join(filter(None, [told, f"last line: `{last_words(folder, step)}`"]))
        lines.append(f"| {step} | {outcome} | {seconds} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
