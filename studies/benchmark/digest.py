"""From runs to their digest, every number that the page is made of, one line per run; from the digest to tables.

    python -m studies.benchmark.digest runs/benchmark studies/benchmark/digest/benchmark.jsonl.gz

The digest is small enough to be kept with the code, so that the page can be written again without the runs.
"""

import argparse
import gzip
import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from tagrpo.analysis.runs import RunFiles
from tagrpo.files import written_whole
from tagrpo.metrics.functional import exact_pass_at_k, pass_at_k
from tagrpo.runs.directory import checkpoint_name

SETTINGS = ("arithmetic/mixed", "shortest_path/easy", "countdown/easy")
"""Those of the benchmark, as `<task>/<regime>`."""
BASE = "base"
"""The method that does not train: its runs hold the policy that those of the same seed begin with."""
SPLIT = "test_id"
"""The test questions that tables are over."""
FOLDER = Path(__file__).parent / "digest"
PROVENANCE = ("git_commit", "git_changed", "version/torch", "version/transformers", "version/lightning")
"""The part of a run's `provenance.json` that is kept."""
PHASES = ("seconds/sync", "seconds/generate", "seconds/score", "seconds/update")
"""Phases of an iteration that count as training; validation and diagnostics differ between methods, and do not."""

Runs = Sequence[Mapping[str, Any]]
"""Entries of a digest."""


def entry_of(run: RunFiles) -> dict[str, Any]:
    """The entry of one finished run in the digest.

    Returns:
        `command`; `ledger`: responses, tokens and updates of the training; `seconds` of wall time of its `PHASES`,
        `took` those of the whole run, from start to test; `n`: responses to a test question, 0 where success is exact;
        `success`: split → per question, in the order of the source, the probability of a correct response, or their
        number; `weights`: fingerprint of the trained parameters; `provenance`: commit and versions.
    """
    noted, provenance = (
        json.loads((run.path / name).read_text()) for name in ("run.json", "provenance.json")
    )
    exact = run.exact[-1]["splits"] if run.exact else None
    counts = {split: run.counts(split) for split in run.test}
    return {
        "command": run.command,
        "ledger": run.ledger,
        "seconds": round(float(run.metrics.reindex(columns=list(PHASES)).sum().sum()), 1),
        "took": round(noted.get("seconds", 0.0), 1),
        "n": 0 if exact else int(next(iter(counts.values()))["n"].iloc[0]),
        "success": {
            s: [float(f"{q['success']:.4g}") for q in content["questions"]] for s, content in exact.items()
        }
        if exact
        else {split: [int(c) for c in table["correct"]] for split, table in counts.items()},
        "weights": weights_fingerprint(run),
        "provenance": {name: provenance[name] for name in PROVENANCE if name in provenance},
    }


def weights_fingerprint(run: RunFiles) -> str | None:
    """SHA-256 of the trained parameters, to the bit; None for a run without a checkpoint of its last iteration."""
    path = run.path / "checkpoints" / checkpoint_name(run.ledger["iterations"])
    if not path.is_file():
        return None
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def digest(root: Path, methods: Container[str] | None = None) -> Iterator[dict[str, Any]]:
    """Entries of the finished runs below `<root>/<task>/<regime>/<method>/seed<k>`; with `methods` of those alone."""
    for file in sorted(root.glob("*/*/*/seed*/run.json")):
        task, regime, method, seed = file.parent.relative_to(root).parts
        if (methods is None or method in methods) and json.loads(file.read_text())["finished"]:
            number = int(seed.removeprefix("seed"))
            entry = entry_of(RunFiles(method, number, file.parent))
            yield {"task": task, "regime": regime, "method": method, "seed": number, **entry}


def write(entries: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write a digest, the same bytes for the same entries; returns their number."""
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    with written_whole(path) as draft:
        draft.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    return len(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a digest."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def setting_of(run: Mapping[str, Any]) -> str:
    """The task in its regime."""
    return f"{run['task']}/{run['regime']}"


def settings_of(runs: Runs) -> dict[str, Runs]:
    """`<task>/<regime>` → its runs."""
    return {
        name: [run for run in runs if setting_of(run) == name]
        for name in dict.fromkeys(map(setting_of, runs))
    }


def table_of(runs: Runs, method: str, k: int) -> pd.DataFrame:
    """[seeds, questions] pass@k of a method in one setting, exact or without bias."""
    found = {
        run["seed"]: _pass_at_k(run["success"][SPLIT], run["n"], k) for run in runs if run["method"] == method
    }
    if not found:
        names = ", ".join(dict.fromkeys(run["method"] for run in runs))
        raise KeyError(f"Expected runs of {method}, but there are only {names}.")
    return pd.DataFrame(list(found.values()), list(found))


def _pass_at_k(values: Sequence[float], n: int, k: int) -> list[float]:
    if not n:
        return exact_pass_at_k(torch.tensor(values, dtype=torch.float64), (k,))[:, 0].tolist()
    correct = torch.tensor(values)
    return pass_at_k(torch.full_like(correct, n), correct, k).tolist()


def gains(settings: Mapping[str, Runs], method: str, k: int) -> dict[str, pd.DataFrame]:
    """Setting → [seeds, questions] pass@k of a method − that of the untrained policy that its runs began with."""
    having = {name: runs for name, runs in settings.items() if any(run["method"] == method for run in runs)}
    return {name: paired(table_of(runs, method, k), table_of(runs, BASE, k)) for name, runs in having.items()}


def paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Ours − theirs at the seeds that both have."""
    seeds = ours.index.intersection(theirs.index)
    return ours.loc[seeds] - theirs.loc[seeds]


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="of the runs: <root>/<task>/<regime>/<method>/seed<k>")
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    print(f"{write(digest(chosen.root), chosen.file)} runs in {chosen.file}")


if __name__ == "__main__":
    main()
