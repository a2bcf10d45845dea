"""From the runs of a grid to its digest: every number that the page is made of, one line per run.

    python -m studies.second.digest factors        # runs/second/factors → studies/second/digest/factors.jsonl.gz

The digest is small enough to be kept with the code, so that the page can be written again without the runs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from tagrpo.analysis.runs import RunFiles
from tagrpo.metrics.functional import exact_pass_at_k, pass_at_k
from tagrpo.runs.directory import name_of
from tagrpo.runs.files import written_whole

FOLDER = Path(__file__).parent / "digest"
ROOT = Path("runs/second")
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""The k whose means are kept over the course of training; questions are kept for any k."""
SERIES = (
    "zero_gradient/without_gradient",
    "uniform_reward/original",
    "uniform_reward/rephrasings",
    "uniform_reward/rephrasings_matched",
    "uniform_reward/pool",
    "uniform_reward/original_expected",
    "uniform_reward/pool_expected",
    "rephrasing/difficulty_variance",
    "rollout/entropy",
    "rollout/reward",
    "rollout/correct_original",
    "rollout/correct_rephrasings",
    "rollout/length",
    "answer_diversity/distinct_wrong_share",
    "answer_diversity/entropy",
    "embedding_distance/pool",
    "train/grad_norm",
    "train/kl",
    "train/clipped",
)
"""Scalars whose means over each part of training are kept."""
PROVENANCE = ("git_commit", "git_changed", "version/torch", "version/transformers", "version/lightning")
"""The part of a run's `provenance.json` that is kept."""
PHASES = ("seconds/sync", "seconds/generate", "seconds/score", "seconds/update")
"""Phases of an iteration that count as training; validation and diagnostics differ between methods, and do not."""
PARTS = 8
"""Parts of training, of equally many iterations."""
DIGITS = 4


def entry_of(run: RunFiles) -> dict[str, Any]:
    """The entry of one finished run in the digest.

    Returns:
        `command`; `starts`: how often it was started; `ledger`: responses, tokens and updates of the training;
        `seconds` of wall time of its `PHASES`, `took` those of the whole run, from start to test; `n`: responses to
        a test question, 0 where success is exact; `success`: split → per question, in the order of the source, the
        probability of a correct response, or their number; `course`: at every evaluation its iteration, the responses
        and seconds until then, and split → means of pass@k at `KS`; `series`: scalar → means over `PARTS` parts of
        training; `support`: split → shares of questions brought within reach of k samples and out of it;
        `weights`: fingerprint of the trained parameters; `provenance`: commit and versions.
    """
    noted, provenance = (json.loads((run.path / name).read_text()) for name in ("run.json", "provenance.json"))
    exact = run.exact[-1]["splits"] if run.exact else None
    counts = {split: run.counts(split) for split in run.test}
    return {
        "command": run.command,
        "starts": noted["starts"],
        "ledger": run.ledger,
        "seconds": seconds_of(run.metrics),
        "took": round(noted.get("seconds", 0.0), 1),
        "n": 0 if exact else int(next(iter(counts.values()))["n"].iloc[0]),
        "success": {split: [_short(q["success"]) for q in content["questions"]] for split, content in exact.items()}
        if exact
        else {split: [int(c) for c in table["correct"]] for split, table in counts.items()},
        "course": list(course(run)),
        "series": dict(series(run)),
        "support": {
            split: {
                change: {k: _short(x) for k, x in content[change].items()} for change in CHANGES if change in content
            }
            for split, content in (exact or {}).items()
        },
        "weights": weights_fingerprint(run),
        "provenance": {name: provenance[name] for name in PROVENANCE if name in provenance},
    }


CHANGES = ("support_gained", "support_lost")


def seconds_of(iterations: pd.DataFrame) -> float:
    """Wall seconds of the `PHASES` of some iterations, the rows of `RunFiles.metrics`."""
    return round(float(iterations.reindex(columns=list(PHASES)).sum().sum()), 1)


def course(run: RunFiles) -> Iterator[dict[str, Any]]:
    """The evaluations of a run, the last one its test."""
    if run.exact:
        found = {each["iteration"]: {s: _exact_curve(c) for s, c in each["splits"].items()} for each in run.exact}
    else:
        files = sorted((run.path / "evaluations").glob("validation-*.json"))
        read = [json.loads(file.read_text()) for file in files]
        found = {each["iteration"]: {s: _curve(c) for s, c in each["splits"].items()} for each in read}
        found[run.ledger["iterations"]] = {s: _curve(c) for s, c in run.test.items()}
    metrics = run.metrics
    for iteration, splits in sorted(found.items()):
        before = metrics[metrics.index < iteration]
        yield {
            "iteration": iteration,
            "responses": int(before["budget/rollouts"].max()) if len(before) else 0,
            "seconds": seconds_of(before),
            "pass": splits,
        }


def _exact_curve(split: Mapping[str, Any]) -> list[float]:
    p = torch.tensor([question["success"] for question in split["questions"]], dtype=torch.float64)
    return [_short(x) for x in exact_pass_at_k(p, KS).mean(0).tolist()]


def _curve(split: Mapping[str, Any]) -> list[float]:
    n = torch.tensor([question["n"] for question in split["questions"]])
    correct = torch.tensor([question["correct"] for question in split["questions"]])
    return [_short(float(pass_at_k(n, correct, k).mean())) for k in KS if k <= int(n.min())]


def series(run: RunFiles) -> Iterator[tuple[str, list[float | None]]]:
    """Means over the parts of training of every scalar that was logged; None for a part without any."""
    iterations = max(run.ledger["iterations"], 1)
    for name in SERIES:
        values = run.scalar(name)
        if values is not None and len(values):
            parts = [values[values.index * PARTS // iterations == part] for part in range(PARTS)]
            yield name, [_short(float(part.mean())) if len(part) else None for part in parts]


def weights_fingerprint(run: RunFiles) -> str | None:
    """SHA-256 of the trained parameters, to the bit; None for a run without a checkpoint of its last iteration."""
    path = run.path / "checkpoints" / name_of(run.ledger["iterations"])
    if not path.is_file():
        return None
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _short(number: float) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def digest(root: Path) -> Iterator[dict[str, Any]]:
    """Entries of the finished runs below `<root>/<task>/<regime>/<method>/seed<k>`, with these four names."""
    for file in sorted(root.glob("*/*/*/seed*/run.json")):
        if json.loads(file.read_text())["finished"]:
            task, regime, method, seed = file.parent.relative_to(root).parts
            number = int(seed.removeprefix("seed"))
            run = RunFiles(method, number, file.parent)
            yield {"task": task, "regime": regime, "method": method, "seed": number, **entry_of(run)}


def write(entries: Iterator[dict[str, Any]], path: Path) -> int:
    """Write a digest, the same bytes for the same entries; returns their number."""
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    with written_whole(path) as draft:
        draft.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    return len(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a digest."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid")
    name = parser.parse_args().grid
    count = write(digest(ROOT / name), FOLDER / f"{name}.jsonl.gz")
    print(f"{count} runs in {FOLDER / name}.jsonl.gz")


if __name__ == "__main__":
    main()
