"""Runs as one HTML page; a comparison of finished ones as results.json, report.md and plots besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..analysis import plots
from ..analysis.comparison import Methods
from ..analysis.run_plots import diversity_densities, why_no_gradient
from ..analysis.runs import RunFiles, by_method, find_directories, find_runs
from ..analysis.sections import Section, made_with, markdown, sections, title
from ..lab import exact_plots
from ..metrics.functional import CAUSES
from ..runs.files import write_json, write_text
from .figures import LEARNING, SERIES, Shown, comparison_figures, training_figures
from .write import MEGABYTES, write_page


def write_report(*roots: Path, order: Sequence[str] = ()) -> Path:
    """Compare the finished runs below `roots` and write results.json, report.md, plots and the page into the first.

    Methods come in the given order, and each is compared with those before it. Returns the path of report.html.
    """
    methods = Methods(by_method(find_runs(*roots), order))
    write_json(roots[0] / "results.json", methods.results())
    write_text(roots[0] / "report.md", markdown(methods, draw(methods, roots[0])))
    return explore(*roots, output=roots[0] / "report.html", order=order)


def explore(*roots: Path, output: Path, order: Sequence[str] = (), megabytes: float = MEGABYTES) -> Path:
    """Write the page on everything below `roots`: runs, finished or not, sweeps, evaluations.

    Args:
        roots: Run directories, or folders with run directories anywhere below them.
        output: The HTML file, which is returned.
        order: Methods in the order of tables and legends.
        megabytes: See `write_page`.

    Raises:
        FileNotFoundError: there is nothing to show.
    """
    methods = by_method(find_directories(*roots), order)
    runs = [run for seeds in methods.values() for run in seeds]
    return write_page(output, runs, page_content(methods), megabytes=megabytes)


def page_content(methods: dict[str, list[RunFiles]]) -> dict[str, Any]:
    """Notes of a page beside its runs, which are those of `methods` in their order."""
    runs = [run for seeds in methods.values() for run in seeds]
    names = [run.method if len(methods[run.method]) == 1 else f"{run.method} seed {run.seed}" for run in runs]
    group = {method: number for number, method in enumerate(methods)}
    shown = Shown(runs, names, group)
    figures = list(training_figures(shown))
    tables, heading = [], f"Results of {', '.join(methods)}"
    finished = by_method(run for run in runs if (run.path / "test.json").exists())
    try:
        if finished:
            compared = Methods(finished)
            tables, heading = sections(compared), title(compared)
            figures = [*comparison_figures(compared, shown), *figures]
    except ValueError as error:  # of runs that have nothing in common, each can be looked at
        tables = [Section("These runs can't be compared", [], [], [str(error)])]
    return {
        "title": heading,
        "tables": [asdict(table) for table in (*tables, made_with(runs)) if table.rows or table.notes],
        "figures": figures,
        "names": names,
        "groups": [group[run.method] for run in runs],
    }


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
                plots.against(methods.at(k), methods.tokens, "response tokens sampled in training", k, styles),
                f"Pass@{k} against the response tokens that were sampled in training.",
            ),
        }
    series = methods.data_series
    if any(len(joined) > 1 for joined in series):
        of_series = plots.looks(m for m in methods.runs if not any(m in joined[1:] for joined in series))
        made["data.png"] = (
            plots.against(methods.at(k), methods.training_questions, "training questions", k, of_series, series),
            f"Pass@{k} against the questions that were trained on. Lines join methods that differ in nothing else.",
        )
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
