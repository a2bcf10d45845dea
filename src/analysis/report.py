"""A comparison as results.json, report.md, report.html and plots. `python -m tagrpo.analysis.report DIR…`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from markdown import markdown as render_markdown

from ..files import write_json, write_text
from ..metrics.functional import CAUSES
from . import exact_plots, plots
from .comparison import ZERO_GRADIENT, Methods
from .run_plots import diversity_densities, why_no_gradient
from .runs import by_method, find_runs
from .sections import markdown

SERIES = {
    ZERO_GRADIENT: "no gradient (all advantages zero)",
    "uniform_reward/original": "equal rewards: original (G)",
    "uniform_reward/rephrasings": "equal rewards: rephrasings (N·G)",
    "uniform_reward/rephrasings_matched": "equal rewards: G of the rephrasings",
}
LEARNING = {
    "rollout/correct_original": "correct responses to originals",
    "rollout/entropy": "policy entropy (nats per token)",
    "train/grad_norm": "gradient norm",
    "answer_diversity/distinct_wrong_share": "different answers among wrong ones",
}


def write_report(*roots: Path, order: Sequence[str] = ()) -> Path:
    """Analyse the runs below `roots` and write the report into the first of them.

    Args:
        roots: Folders with run directories anywhere below them, whoever started the runs.
        order: Methods in the order of tables and legends; each is compared with those before it.

    Returns:
        Path of report.html.
    """
    methods = Methods(by_method(find_runs(*roots), order))
    write_json(roots[0] / "results.json", methods.results())
    figures = draw(methods, roots[0])
    body = markdown(methods, figures)
    write_text(roots[0] / "report.md", body)
    page = roots[0] / "report.html"
    write_text(page, as_html(body, roots[0], figures))
    return page


def draw(methods: Methods, folder: Path) -> dict[str, str]:
    """Write the plots; returns file name → caption."""
    styles, trained, k = plots.looks(methods.runs), methods.trained, methods.largest_k
    made = {
        "pass_at_k.png": (
            plots.pass_at_k_curves(methods.curves, styles),
            "Pass@k over k. Bars: 95 % intervals over questions and seeds.",
        )
    }
    if len(methods.runs) > 1 and trained:
        first = next(iter(trained))
        made["gains.png"] = (
            plots.pass_at_k_gains(methods.gains(first), first, styles),
            f"Pass@k minus that of {first} on the same questions, with 95 % intervals for each k on its own.",
        )
    if trained:
        means = "Running means over an eighth of training; thick: mean over seeds"
        made |= {
            "zero_gradient.png": (
                plots.series_over_training(trained, SERIES, "% of questions", styles, together=True),
                f"Questions without gradient. {means}.",
            ),
            "learning.png": (plots.series_over_training(trained, LEARNING, "", styles), f"Training. {means}."),
            "budget.png": (
                plots.against_budget(methods.at(k), methods.runs, k, styles),
                f"Pass@{k} against the response tokens that were sampled in training.",
            ),
        }
    first_seeds = {method: seeds[0] for method, seeds in trained.items()}
    if any(f"zero_gradient/{CAUSES[0]}" in run.metrics for run in first_seeds.values()):
        made["causes.png"] = (
            why_no_gradient(first_seeds),
            "Why questions gave no gradient: the first seed of each method, running means over an eighth of training.",
        )
    if any(len(run.diversity) for seeds in methods.runs.values() for run in seeds):
        made["diversity.png"] = (
            diversity_densities(trained),
            "Mean pairwise embedding distance of the responses to a question: density over questions.",
        )
    if exact := exact_plots.with_exact(methods.runs):
        split = next(iter(methods.curves))
        made["exact.png"] = (
            exact_plots.exact_curves(exact, methods.curves, styles),
            "Pass@k from the probabilities of all correct responses (lines: means over questions and seeds), beside "
            "the sampled estimates (markers, with 95 % intervals).",
        )
        made["exact_training.png"] = (
            exact_plots.exact_over_training(exact, split, styles),
            f"Exact pass@k of {split} at each evaluation; thick: mean over seeds.",
        )
    for name, (figure, _) in made.items():
        plots.save(figure, folder / name)
    return {name: caption for name, (_, caption) in made.items()}


def as_html(body: str, folder: Path, figures: Iterable[str]) -> str:
    """One page with its pictures inside, readable without any other file."""
    page = render_markdown(body, extensions=["tables", "sane_lists"])
    for name in figures:
        data = base64.b64encode((folder / name).read_bytes()).decode()
        page = page.replace(f'src="{name}"', f'src="data:image/png;base64,{data}"')
    return PAGE.format(title=body.splitlines()[0].removeprefix("# "), body=page)


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #111; }}
h1 {{ font-size: 1.6rem; }}
h2 {{ font-size: 1.2rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; font-size: .8rem; display: block; overflow-x: auto; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #ccc; text-align: right; }}
td {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
th {{ vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; }}
pre {{ background: #f4f4f4; padding: .4rem .6rem; overflow-x: auto; font-size: .8rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


if __name__ == "__main__":
    print(write_report(*map(Path, sys.argv[1:])))
