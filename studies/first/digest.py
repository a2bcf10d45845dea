"""From the runs of the study to its digest: every number that its page is made of, run by run.

The study compares the same methods in several regimes; its runs are in `<root>/<regime>/<method>/seed<k>/`. The
digest is small enough to be kept with the code, so that the page can be written again, and checked, without the runs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from studies.runs import weights_fingerprint
from tagrpo.analysis.replay import read_rollouts
from tagrpo.analysis.runs import RunFiles, find_runs

from .gradients import GradientSets, gradients_at_the_end, gradients_at_the_start
from .regimes import in_part

SERIES = ("zero_gradient/percentage", "rephrasing/difficulty_variance", "rollout/entropy")
"""Scalars that are kept iteration by iteration."""
QUARTERS = ("rollout/correct_original", "rollout/correct_rephrasings", "train/grad_norm")
"""Scalars of which the means over the first and the last quarter of training are kept."""
BY_PROMPT = ("effective_samples", "ratio", "clipped", "kl")
"""Scalars `rephrasing/<n>/…`, of which the same is kept for the originals and for the mean over the rephrasings."""
REFERENCE = "grpo_matched"
"""GRPO on originals; gradients of rephrasings are compared with its gradients."""
DIGITS = 6


def digest(root: Path, *, gradients: bool = True) -> dict[str, Any]:
    """Read the runs of the study.

    Args:
        root: Folder of the regimes.
        gradients: Whether to compute gradients of the policies (`gradients.py`) for the runs whose
            rollouts were recorded. That needs the policies that the runs started from; for tiny ones it takes seconds
            per run.

    Returns:
        `regimes`: regime → entries of the finished runs, ordered by method and seed; `unfinished`: runs that were
        started but did not finish; `questions`: regime → split → ids; `versions`: package → version. An entry has
        `method`, `seed`, `command`, `ledger`, `seconds`;
        `starts`: how often it was started, null where that was not recorded;
        `n`: responses per test question, and `correct`: split → correct responses, in the order of `questions`;
        `series`: scalar → iteration → number; `quarters`: scalar → means over the first and the last quarter of
        training; `diversity`: pool → iteration → mean distance over questions; `hard_share` and `gradients`: see the
        functions of these names; `weights`: a fingerprint of the trained parameters.

    Raises:
        FileNotFoundError: there are no finished runs.
    """
    regimes: dict[str, list[dict[str, Any]]] = {}
    questions: dict[str, dict[str, list[str]]] = {}
    versions: dict[str, str] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and any(path.rglob("test.json"))):
        runs = [run for run in find_runs(folder) if _record(run.path).get("finished", True)]
        if not runs:
            continue
        questions[folder.name] = {split: list(runs[0].counts(split).index) for split in runs[0].test}
        references: dict[int, GradientSets] = {}
        if gradients:
            chosen = (run for run in runs if run.method == REFERENCE and (run.path / "rollouts").is_dir())
            references = {run.seed: gradients_at_the_start(run) for run in chosen}
        regimes[folder.name] = [
            entry_of(run, questions[folder.name]) | {"gradients": _gradients(run, references) if gradients else {}}
            for run in runs
        ]
        versions |= runs[0].versions
    if not regimes:
        raise FileNotFoundError(f"Expected <regime>/<method>/seed<k>/test.json under {root}, but found none.")
    unfinished = list(_unfinished(root))
    return {"regimes": regimes, "unfinished": unfinished, "questions": questions, "versions": versions}


def entry_of(run: RunFiles, questions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What the digest says of one finished run, except for its gradients.

    Args:
        run: The run.
        questions: Split → ids of its questions, in the order of `correct`.
    """
    counts = {split: run.counts(split).loc[list(ids)] for split, ids in questions.items()}
    series = {name: run.scalar(name) for name in SERIES}
    distances = run.diversity.groupby(["pool", "iteration"])["distance"].mean()
    return {
        "method": run.method,
        "seed": run.seed,
        "command": run.command,
        "starts": _record(run.path).get("starts"),
        "ledger": run.ledger,
        "seconds": round(run.wall_seconds, 1),
        "n": int(next(iter(counts.values()))["n"].iloc[0]),
        "correct": {split: [int(c) for c in table["correct"]] for split, table in counts.items()},
        "series": {
            name: {str(i): _short(x) for i, x in values.items()}
            for name, values in series.items()
            if values is not None
        },
        "quarters": dict(_quarters(run)),
        "diversity": {
            str(pool): {str(i): _short(x) for i, x in distances[pool].items()}
            for pool in distances.index.unique("pool")
        },
        "hard_share": {str(i): _short(x) for i, x in hard_share(run).items()},
        "weights": weights_fingerprint(run),
    }


def _short(number: float) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def _record(path: Path) -> dict[str, Any]:
    """What `tagrpo-compare` recorded of a run; empty for a run that it did not start."""
    file = path / "run.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _unfinished(root: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(root.rglob("run.json")):
        record = _record(file.parent)
        if not record["finished"]:
            yield {
                "place": file.parent.relative_to(root).as_posix(),
                "command": shlex.join(["python", *record["settings"]]),
                "starts": record.get("starts"),
            }


def _quarters(run: RunFiles) -> Iterator[tuple[str, list[float]]]:
    frame = run.metrics
    columns = {name: frame[name] for name in QUARTERS if name in frame}
    for name in BY_PROMPT:
        rephrased = [c for c in frame if str(c).startswith("rephrasing/") and str(c).endswith(f"/{name}")]
        rephrased = [c for c in rephrased if c != f"rephrasing/0/{name}"]
        if rephrased:
            columns |= {
                f"original/{name}": frame[f"rephrasing/0/{name}"],
                f"rephrasings/{name}": frame[rephrased].mean(axis=1),
            }
    for name, values in columns.items():
        parts = [values[[in_part(int(i), run.ledger, part) for i in values.index]] for part in ("first", "last")]
        if all(part.notna().any() for part in parts):
            yield name, [_short(part.mean()) for part in parts]


def hard_share(run: RunFiles) -> pd.Series:
    """Per iteration, the share of Σ|A| that falls on questions of which fewer than half of the responses are correct.

    This is where the effort of an update goes: η of Pass@k training (arXiv 2508.10751, Eq. 16), measured on the
    responses of the method's own run. Empty for a run whose rollouts were not recorded.
    """
    if not (run.path / "rollouts").is_dir():
        return pd.Series(dtype=float)
    rows = read_rollouts(run.path)
    rows["effort"] = rows["advantage"].abs()
    by_question = rows.groupby(["iteration", "question"]).agg(effort=("effort", "sum"), rate=("correct", "mean"))
    hard = by_question["effort"].where(by_question["rate"] < 0.5, 0.0).groupby(level="iteration").sum()
    total = by_question["effort"].groupby(level="iteration").sum()
    return (hard / total).dropna()


def _gradients(run: RunFiles, references: Mapping[int, GradientSets]) -> dict[str, dict[str, dict[str, float]]]:
    """Stage (`start`, `end`) → `norm`, `cosine` and `grpo` (cosine with GRPO's gradients at the same policy) → numbers.

    Computed for runs with rephrasings and for GRPO with as many samples; empty for others.
    """
    if not (run.path / "rollouts").is_dir():
        return {}
    if run.method != REFERENCE and not read_rollouts(run.path)["rephrasing"].any():
        return {}
    start, end = gradients_at_the_start(run), gradients_at_the_end(run)
    found = {stage: {"norm": s.norms(), "cosine": s.cosines()} for stage, s in (("start", start), ("end", end)) if s}
    if run.method != REFERENCE and run.seed in references:
        found["start"]["grpo"] = start.cosines_with(references[run.seed])
    return {
        stage: {kind: {name: _short(x) for name, x in values.items()} for kind, values in kinds.items()}
        for stage, kinds in found.items()
    }
