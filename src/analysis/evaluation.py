"""An evaluation as Markdown, and two of them compared on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.files import write_json, write_text
from .comparison import Methods, finite, shared_splits
from .runs import RunFiles
from .sections import table
from .statistics import LEVEL, Comparison, Estimate, corrected


def read_evaluation(folder: str | Path, name: str | None = None) -> RunFiles:
    """The evaluation in a directory with `test.json`; None calls it by the folder's name."""
    path = Path(folder)
    return RunFiles(name or path.resolve().name, 0, path)


def evaluation_markdown(run: RunFiles, settings: Mapping[str, Any]) -> str:
    """Pass@k of every split and average with 95 % intervals, and the settings of the sampling."""
    ks = sorted(set.intersection(*map(set, shared_splits([run]).values())))
    rows = [[name, *_points(split["pass_at_k"], ks), *_sampled(split)] for name, split in run.test.items()]
    for name, group in run.groups.items():
        for key, weighed in (("pass_at_k", "average"), ("by_question", "by question")):
            size = str(group["num_questions"])
            rows.append([f"**{name} ({weighed})**", *_points(group[key], ks), "", size, "", "", ""])
    header = ["split", *(f"pass@{k}" for k in ks), "majority", "questions", "n", "tokens", "truncated"]
    lines = [
        f"# Evaluation of {settings.get('model', run.method)}",
        "",
        *table(header, rows),
        "",
        "In percent: means over questions with 95 % t-intervals over questions, unbiased for n responses "
        "(arXiv 2107.03374). An average gives each split the same weight, one by question each question. "
        "`tokens` is the mean length of a response, "
        "`truncated` the share of responses that the length limit ended.",
        "",
        *(f"- {name}: {value}" for name, value in {**settings, **run.provenance}.items()),
    ]
    return "\n".join(lines) + "\n"


def _points(curve: Mapping[str, Mapping[str, float]], ks: Sequence[int]) -> list[str]:
    return [str(Estimate(**curve[str(k)])) for k in ks]


def _sampled(split: Mapping[str, Any]) -> list[str]:
    """Accuracy of the majority, questions, responses per question, their length, and the percentage that was cut."""
    samples = sorted(row["n"] for row in split["questions"])
    n = "–".join(dict.fromkeys(map(str, (samples[0], samples[-1]))))
    majority = f"{100 * split['majority']:.1f}" if "majority" in split else "–"
    length = f"{split['length']:,.0f}" if "length" in split else "–"
    truncated = f"{100 * split['truncated']:.1f} %" if "truncated" in split else "–"
    return [majority, str(split["num_questions"]), n, length, truncated]


def _both(ours: RunFiles, theirs: RunFiles) -> Methods:
    return Methods({"ours": [ours], "theirs": [theirs]})


def compare_evaluations(ours: RunFiles, theirs: RunFiles) -> list[Comparison]:
    """Paired differences in pass@k at all k, splits and averages that both have, with Holm's correction over all.

    Raises:
        ValueError: they share no split, or were evaluated on different questions of one.
    """
    both = _both(ours, theirs)
    return corrected(
        (ours.method, theirs.method, f"pass@k/{name}/{k}", both.difference(splits, "ours", "theirs", k))
        for name, splits in both.parts.items()
        for k in both.ks(splits)
    )


def comparison_markdown(ours: RunFiles, theirs: RunFiles, comparisons: Sequence[Comparison]) -> str:
    """The verdict on two evaluations, and the numbers behind it."""
    curves = _both(ours, theirs).curves
    rows = []
    for c in comparisons:
        _, name, k = c.quantity.split("/")
        values = [str(curves[name][side][int(k)]) for side in ("ours", "theirs")]
        p_value = f"{c.p_value:.3f}" if c.p_value >= 0.001 else "< 0.001"
        rows.append([f"{name} pass@{k}", *values, c.difference.signed, p_value, c.verdict])
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
    said = []
    for verdict in ("higher", "lower"):
        if names := [" pass@".join(c.quantity.split("/")[1:]) for c in comparisons if c.verdict == verdict]:
            said.append(f"{verdict} in {', '.join(names)}")
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
