"""An evaluation as Markdown, and two of them compared on the same questions.

`python -m tagrpo.analysis.evaluation OURS THEIRS` compares two run directories that hold a `test.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..files import write_json, write_text
from .comparison import finite, shared_splits
from .runs import RunFiles, pass_at_k_table
from .sections import table
from .statistics import LEVEL, Comparison, Estimate, corrected, difference, estimate, resampled_means


def read_evaluation(folder: str | Path, name: str | None = None) -> RunFiles:
    """The evaluation in a run directory.

    Args:
        folder: The directory with `test.json`.
        name: What to call the evaluation; None for the folder's name.
    """
    path = Path(folder)
    return RunFiles(name or path.resolve().name, 0, path)


def write_evaluation(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Write `test.md` beside `test.json`; returns its path."""
    path = folder / "test.md"
    write_text(path, evaluation_markdown(read_evaluation(folder), settings))
    return path


def evaluation_markdown(run: RunFiles, settings: Mapping[str, Any]) -> str:
    """Pass@k of every split with 95 % intervals, averages of splits and of questions, the settings of the sampling."""
    ks = sorted(set.intersection(*map(set, shared_splits([run]).values())))
    rows = [
        [name, *(_interval(split["pass_at_k"][str(k)]) for k in ks), *_sampled(split, ks)]
        for name, split in run.test.items()
    ]
    if len(rows) > 1:
        rows.append(["**average of splits**", *(str(average_over_splits(run, k)) for k in ks), "", "", "", "", ""])
        counted = str(sum(split["num_questions"] for split in run.test.values()))
        over_all = [str(average_over_questions(run, k)) for k in ks]
        rows.append(["**average of questions**", *over_all, "", counted, "", "", ""])
    header = ["split", *(f"pass@{k}" for k in ks), f"maj@{ks[-1]}", "questions", "n", "tokens", "truncated"]
    lines = [
        f"# Evaluation of {settings.get('model', run.method)}",
        "",
        *table(header, rows),
        "",
        "In percent: means over questions with 95 % intervals by bootstrap over questions, unbiased for n responses "
        "(arXiv 2107.03374). One average gives each split the same weight, the other each question. "
        "`tokens` is the mean length of a response, "
        "`truncated` the share of responses that the length limit ended.",
        "",
        *(f"- {name}: {value}" for name, value in {**settings, **run.provenance}.items()),
    ]
    return "\n".join(lines) + "\n"


def _interval(point: Mapping[str, float]) -> str:
    return str(Estimate(point["value"], point["low"], point["high"]))


def _sampled(split: Mapping[str, Any], ks: Sequence[int]) -> list[str]:
    samples = sorted({row["n"] for row in split["questions"]})
    n = str(samples[0]) if len(samples) == 1 else f"{samples[0]}–{samples[-1]}"
    majority = _interval(split["majority_at_k"][str(ks[-1])]) if "majority_at_k" in split else "–"
    length, truncated = split.get("length"), split.get("truncated")
    return [
        majority,
        str(split["num_questions"]),
        n,
        "–" if length is None else f"{length:,.0f}",
        "–" if truncated is None else f"{100 * truncated:.1f} %",
    ]


def average_over_splits(run: RunFiles, k: int) -> Estimate:
    """Mean of pass@k over the splits, each of the same weight, with a 95 % interval over the questions of each."""
    tables = [pass_at_k_table([run], split, k).to_numpy() for split in run.test]
    means = np.mean([resampled_means(values, seed) for seed, values in enumerate(tables)], axis=0)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return Estimate(float(np.mean([values.mean() for values in tables])), float(low), float(high))


def average_over_questions(run: RunFiles, k: int) -> Estimate:
    """Mean of pass@k over the questions of all splits, with a 95 % interval over them."""
    return estimate(pd.concat([pass_at_k_table([run], split, k) for split in run.test], axis=1))


def compare_evaluations(ours: RunFiles, theirs: RunFiles) -> list[Comparison]:
    """Paired differences in pass@k at all k and splits that both have, with Holm's correction over all of them.

    Raises:
        ValueError: they share no split, or were evaluated on different questions of one.
    """
    return corrected(
        (
            ours.method,
            theirs.method,
            f"pass@k/{split}/{k}",
            difference(pass_at_k_table([ours], split, k), pass_at_k_table([theirs], split, k)),
        )
        for split, ks in shared_splits([ours, theirs]).items()
        for k in ks
    )


def comparison_markdown(ours: RunFiles, theirs: RunFiles, comparisons: Sequence[Comparison]) -> str:
    """The verdict on two evaluations, and the numbers behind it."""
    rows = []
    for c in comparisons:
        _, split, k = c.quantity.split("/")
        values = (estimate(pass_at_k_table([run], split, int(k))) for run in (ours, theirs))
        p_value = f"{c.p_value:.3f}" if c.p_value >= 0.001 else "< 0.001"
        rows.append([f"{split} pass@{k}", *map(str, values), c.difference.signed, p_value, c.verdict])
    lines = [
        f"# {ours.method} against {theirs.method}",
        "",
        statement(ours.method, theirs.method, comparisons),
        "",
        *table(["%", ours.method, theirs.method, "difference, points", "p (Holm)", "verdict"], rows),
        "",
        "Differences are paired: the same question under both models, with 95 % t-intervals over questions, which are "
        f"not corrected. The p-values are two-sided and corrected by Holm's method for all {len(comparisons)} rows; a "
        f"verdict needs one below {100 * LEVEL:.0f} %. It is about these two models and does not say how training "
        "would have ended under another seed.",
    ]
    return "\n".join(lines) + "\n"


def statement(ours: str, theirs: str, comparisons: Sequence[Comparison]) -> str:
    """One sentence on what differs beyond noise."""
    found = {
        verdict: [" pass@".join(c.quantity.split("/")[1:]) for c in comparisons if c.verdict == verdict]
        for verdict in ("higher", "lower")
    }
    said = [f"{verdict} in {', '.join(names)}" for verdict, names in found.items() if names]
    if not said:
        return f"**No difference between {ours} and {theirs} is beyond noise.**"
    return f"**{ours} is {' and '.join(said)} than {theirs}, beyond noise.** All other differences are undecided."


def write_comparison(ours: RunFiles, theirs: RunFiles, folder: Path) -> Path:
    """Write `comparison.json` and `comparison.md` into `folder`; returns the path of the latter."""
    comparisons = compare_evaluations(ours, theirs)
    write_json(folder / "comparison.json", finite([comparison.as_dict() for comparison in comparisons]))
    path = folder / "comparison.md"
    write_text(path, comparison_markdown(ours, theirs, comparisons))
    return path


if __name__ == "__main__":
    first, second = map(read_evaluation, sys.argv[1:3])
    print(comparison_markdown(first, second, compare_evaluations(first, second)))
