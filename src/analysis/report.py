"""A comparison as results.json, report.md, report.html and plots. `python -m tagrpo.analysis.report DIR`."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markdown import markdown as render_markdown

from . import plots
from .runs import RunFiles, by_method, find_runs
from .statistics import Comparison, Estimate, difference, estimate, holm, paired_table

HEADLINE_KS = (1, 8, 32)
SERIES = {
    "zero_gradient/percentage": "no gradient (question)",
    "uniform_reward/original": "equal rewards: original",
    "uniform_reward/neighbours": "equal rewards: rephrasings",
}
LEARNING = {
    "rollout/correct_original": "reward on originals",
    "rollout/entropy": "policy entropy (nats per token)",
    "train/grad_norm": "gradient norm",
}


def write_report(root: Path, order: Sequence[str] = ()) -> Path:
    """Analyse the runs under `root` and write the report there.

    Args:
        root: Holds `<method>/seed<k>/` run directories.
        order: Methods in the order of tables and legends.

    Returns:
        Path of report.html.
    """
    runs = by_method(find_runs(root), order)
    curves = pass_at_k_estimates(runs)
    trained = [method for method, seeds in runs.items() if seeds[0].ledger["updates"]]
    comparisons = compare_methods(runs, trained)
    results = results_of(runs, curves, comparisons)
    (root / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    figures = draw(runs, curves, root, trained)
    body = markdown(runs, curves, comparisons, figures)
    (root / "report.md").write_text(body)
    page = root / "report.html"
    page.write_text(as_html(body, root))
    return page


def splits_and_ks(runs: Mapping[str, Sequence[RunFiles]]) -> dict[str, list[int]]:
    """Split → the k that every run has an estimate for."""
    tests = [run.test for seeds in runs.values() for run in seeds]
    return {
        split: sorted(set.intersection(*({int(k) for k in test[split]["pass_at_k"]} for test in tests)))
        for split in tests[0]
    }


def pass_at_k_table(seeds: Sequence[RunFiles], split: str, k: int) -> np.ndarray:
    """[seeds, questions] pass@k."""
    return paired_table([run.pass_at_k(split, k) for run in seeds])


def pass_at_k_estimates(
    runs: Mapping[str, Sequence[RunFiles]],
) -> dict[str, dict[str, dict[int, Estimate]]]:
    """Split → method → k → mean with its interval over questions and seeds."""
    return {
        split: {method: {k: estimate(pass_at_k_table(seeds, split, k)) for k in ks} for method, seeds in runs.items()}
        for split, ks in splits_and_ks(runs).items()
    }


def compare_methods(runs: Mapping[str, Sequence[RunFiles]], trained: Sequence[str]) -> list[Comparison]:
    """Each trained method against each one before it, on every split, at the smallest and the largest k."""
    raw = []
    for split, ks in splits_and_ks(runs).items():
        for k in sorted({ks[0], ks[-1]}):
            for later, method in enumerate(trained):
                for other in trained[:later]:
                    ours, theirs = (pass_at_k_table(runs[m], split, k) for m in (method, other))
                    raw.append((method, other, split, k, *difference(ours, theirs), min(len(ours), len(theirs))))
    corrected = holm([row[5] for row in raw])
    return [
        Comparison(method, other, split, k, gap, p, seeds)
        for (method, other, split, k, gap, _, seeds), p in zip(raw, corrected, strict=True)
    ]


def results_of(
    runs: Mapping[str, Sequence[RunFiles]],
    curves: Mapping[str, Mapping[str, Mapping[int, Estimate]]],
    comparisons: Sequence[Comparison],
) -> dict[str, Any]:
    """Everything as plain data: per method and seed, over seeds, and the comparisons."""
    cells = [cell_results(run) for seeds in runs.values() for run in seeds]
    pooled = {
        split: {m: {k: e.as_dict() for k, e in points.items()} for m, points in methods.items()}
        for split, methods in curves.items()
    }
    return {"cells": cells, "pass_at_k": pooled, "comparisons": [c.as_dict() for c in comparisons]}


def cell_results(run: RunFiles) -> dict[str, Any]:
    """One method and seed: every pass@k with its n and interval, the zero-gradient series, budgets, seconds."""
    metrics = run.metrics
    series = {c: metrics[c].tolist() for c in map(str, metrics) if c.startswith(("zero_gradient/", "uniform_reward/"))}
    return {
        "method": run.method,
        "seed": run.seed,
        "splits": {
            split: {
                "num_questions": test["num_questions"],
                "samples_per_question": sorted({question["n"] for question in test["questions"]}),
                "pass_at_k": test["pass_at_k"],
                "majority": test["majority"],
                "wrong_answers": test["wrong_answers"],
            }
            for split, test in run.test.items()
        },
        "series": series,
        "budget": run.ledger,
        "seconds": float(metrics["seconds/iteration"].sum()) if "seconds/iteration" in metrics else 0.0,
    }


def draw(
    runs: Mapping[str, Sequence[RunFiles]],
    curves: Mapping[str, Mapping[str, Mapping[int, Estimate]]],
    root: Path,
    trained: Sequence[str],
) -> dict[str, str]:
    """Write the plots; file name → caption."""
    learning = {method: runs[method] for method in trained}
    styles = plots.looks(runs)
    made = {
        "pass_at_k.png": (
            plots.pass_at_k_curves(curves, styles),
            "Pass@k with 95 % bands over questions and seeds.",
        ),
        "zero_gradient.png": (
            plots.series_over_training(learning, SERIES, "% of questions", styles),
            f"Questions without gradient, mean over seeds and {plots.SMOOTH} iterations. Left: advantages all zero.",
        ),
        "learning.png": (
            plots.series_over_training(learning, LEARNING, "", styles),
            "Training, averaged in the same way.",
        ),
        "diversity.png": (
            plots.diversity_densities(learning),
            "Mean pairwise embedding distance of responses, density over sampled questions.",
        ),
    }
    for name, (figure, _) in made.items():
        plots.save(figure, root / name)
    return {name: caption for name, (_, caption) in made.items()}


def markdown(
    runs: Mapping[str, Sequence[RunFiles]],
    curves: Mapping[str, Mapping[str, Mapping[int, Estimate]]],
    comparisons: Sequence[Comparison],
    figures: Mapping[str, str],
) -> str:
    """The report."""
    num_seeds = min(len(seeds) for seeds in runs.values())
    parts = [
        "# Comparison",
        "",
        *_pass_table(runs, curves),
        "",
        *_budget_table(runs),
        "",
        "## What differs beyond noise",
        "",
    ]
    parts += _statements(comparisons, num_seeds)
    parts += ["", "## Figures", ""]
    for name, caption in figures.items():
        parts += [f"![{caption}]({name})", "", caption, ""]
    parts += ["## To run a cell again", ""]
    parts += [f"    {command}" for command in _commands(runs)]
    return "\n".join(parts) + "\n"


def _pass_table(runs: Mapping[str, Sequence[RunFiles]], curves: Any) -> list[str]:
    columns = [
        (split, k) for split, methods in curves.items() for k in HEADLINE_KS if k in next(iter(methods.values()))
    ]
    lines = ["| method | " + " | ".join(f"{split} pass@{k}" for split, k in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for method in runs:
        lines.append(f"| {method} | " + " | ".join(str(curves[s][method][k]) for s, k in columns) + " |")
    return [*lines, "", "In percent, with 95 % intervals by bootstrap over questions and seeds."]


def _budget_table(runs: Mapping[str, Sequence[RunFiles]]) -> list[str]:
    lines = [
        "| method | seeds | no gradient, % of questions | rollouts | tokens | optimizer steps | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, seeds in runs.items():
        cells = [cell_results(run) for run in seeds]
        series = [cell["series"].get("zero_gradient/percentage", []) for cell in cells]
        zero = f"{np.mean([np.mean(s) for s in series]):.1f}" if all(series) else "–"
        budget = [
            f"{np.mean([cell['budget'][name] for cell in cells]):,.0f}" for name in ("rollouts", "tokens", "updates")
        ]
        seconds = np.mean([cell["seconds"] for cell in cells])
        lines.append(f"| {method} | {len(seeds)} | {zero} | {' | '.join(budget)} | {seconds:.0f} |")
    note = "Means per seed. Seconds are of training alone, on cores that other cells may have shared."
    return [
        *lines,
        "",
        f"{note} Questions per step and optimizer steps are matched; rollouts and tokens are as shown.",
    ]


def _statements(comparisons: Sequence[Comparison], num_seeds: int) -> list[str]:
    lines = [
        f"Paired differences over the same questions{' and over seeds' if num_seeds > 1 else ''}; a difference counts "
        "when its 95 % interval excludes zero and its p-value, after Holm's correction for "
        f"{len(comparisons)} comparisons, is below 5 %."
    ]
    if num_seeds == 1:
        lines.append(
            "With one seed the noise between seeds is not measured: a difference may not repeat with another seed."
        )
    decided = [c for c in comparisons if c.verdict != "undecided"]
    lines += ["", *(_statement(c) for c in decided)] if decided else ["", "- Nothing differs beyond noise."]
    if len(decided) < len(comparisons):
        lines.append(f"- Undecided: {len(comparisons) - len(decided)} of {len(comparisons)}, listed in results.json.")
    return lines


def _statement(c: Comparison) -> str:
    gap = f"{c.verdict} than {c.baseline} by {c.difference} points (p = {c.p_value:.3f})"
    return f"- {c.split}, pass@{c.k}: **{c.method}** is {gap}."


def _commands(runs: Mapping[str, Sequence[RunFiles]]) -> list[str]:
    found = [run.path / "command.txt" for seeds in runs.values() for run in seeds]
    return [path.read_text().strip() for path in found if path.exists()]


def as_html(body: str, root: Path) -> str:
    """One page with its pictures inside, readable without any other file."""
    page = render_markdown(body, extensions=["tables"])
    for picture in root.glob("*.png"):
        data = base64.b64encode(picture.read_bytes()).decode()
        page = page.replace(f'src="{picture.name}"', f'src="data:image/png;base64,{data}"')
    return PAGE.format(body=page)


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>tagrpo comparison</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #111; }}
table {{ border-collapse: collapse; font-size: .82rem; display: block; overflow-x: auto; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #ccc; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; }}
pre {{ background: #f4f4f4; padding: .4rem .6rem; overflow-x: auto; font-size: .8rem; }}
</style>
{body}
</html>
"""


if __name__ == "__main__":
    print(write_report(Path(sys.argv[1])))
