"""Writes runs as one HTML page, and a comparison of finished runs also as results.json, report.md and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..analysis import plots
from ..analysis.answer import Answer, answer, headline, without_evaluation
from ..analysis.comparison import Methods
from ..analysis.figures import Figures
from ..analysis.runs import RunFiles, by_method, find_directories, find_runs
from ..analysis.sections import Section, about, markdown, sections, title, warned
from ..runs.files import write_json, write_text
from .write import write_page


def write_report(*roots: Path, order: Sequence[str] = ()) -> Path:
    """Compare the finished runs below `roots` and write results.json, report.md, plots and the page into the first.

    Methods come in the given order, and each is compared with those before it. Returns the path of report.html.
    """
    methods = Methods(by_method(find_runs(*roots), order))
    write_json(roots[0] / "results.json", methods.results())
    write_text(roots[0] / "report.md", markdown(methods, draw(methods, roots[0])))
    return explore(*roots, output=roots[0] / "report.html", order=order)


def draw(methods: Methods, folder: Path) -> dict[str, str]:
    """Write the figures as PNGs; returns file name → caption."""
    shown, captions = Figures(methods.runs, methods), {}
    for name, figure in shown.all().items():
        plots.save(plots.draw(figure, shown.runs), folder / f"{name}.png")
        captions[f"{name}.png"] = f"{figure['title']}. {figure['caption']}"
    return captions


def explore(*roots: Path, output: Path, order: Sequence[str] = (), megabytes: float = 25) -> Path:
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
    return write_page(output, runs, page_content(methods), megabytes)


def page_content(methods: Mapping[str, Sequence[RunFiles]]) -> dict[str, Any]:
    """The index of a page: `title`, `answer`, `tables`, `figures`, and an entry for each of the `runs`."""
    shown = Figures(methods)
    said, pictured, tables = without_evaluation(shown.runs), "", list[Section]()
    heading = f"Results of {', '.join(methods)}"
    finished = by_method(run for run in shown.runs if (run.path / "test.json").exists())
    try:
        if finished:
            compared = Methods(finished)
            said, tables, heading = answer(compared), sections(compared), title(compared)
            shown, pictured = Figures(methods, compared), headline(compared)[0]
    except ValueError as error:  # runs with nothing in common can still be looked at one by one
        said = Answer(["These runs share no evaluation, so that none says more than another."], "")
        tables = [Section("These runs can't be compared", [], [], [str(error)])]
    figures = list(shown.all().values())
    first = figures[0] if figures else None
    if first and pictured:  # only the panel that the answer is about
        first = {**first, "panels": [panel for panel in first["panels"] if panel["title"] == pictured]}
    return {
        "title": heading,
        "answer": {**asdict(said), "figure": first},
        "tables": [asdict(table) for table in [*warned(shown.runs), *tables, *about(shown.runs)]],
        "figures": figures,
        "runs": [
            {
                "name": shown.name(run),
                "group": shown.group[run.method],
                "path": str(run.path),
                "iterations": run.ledger["iterations"],
                "scalars": [str(name) for name in run.metrics],
                "splits": list(dict.fromkeys(name for found in run.evaluations for name in found["splits"])),
                "settings": run.config,
            }
            for run in shown.runs
        ],
    }
