"""Write runs as one HTML page, and comparisons of finished runs also as results.json, report.md and plots."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ..analysis import plots
from ..analysis.comparison import Methods, finite
from ..analysis.figures import Figures
from ..analysis.runs import RunFiles, by_method, find_directories, find_runs
from ..analysis.sections import (
    Answer,
    Section,
    about,
    answer,
    markdown,
    sections,
    title,
    warned,
    without_evaluation,
)
from ..files import write_json, write_text
from .blocks import Responses, block
from .telling import repeated, starts_of, telling

ASSETS = Path(__file__).with_name("assets")
MARGIN = 200
"""Bytes reserved per run: a run's entry in the index gets longer with the number of kept responses."""


def write_report(*roots: Path, order: Sequence[str] = ()) -> Path:
    """Compare the finished runs below `roots`, and write the report into the first of the roots.

    The report is results.json, report.md, plots and the page report.html, whose path is returned. Methods
    come in the given order, and each method is compared with the methods before it.
    """
    methods = Methods(by_method(find_runs(*roots), order))
    write_json(roots[0] / "results.json", methods.results())
    write_text(roots[0] / "report.md", markdown(methods, draw(methods, roots[0])))
    return explore(*roots, output=roots[0] / "report.html", order=order)


def draw(methods: Methods, folder: Path) -> dict[str, str]:
    """Write the figures as PNGs; return file name → caption."""
    shown, captions = Figures(methods.runs, methods), {}
    for name, figure in shown.all().items():
        plots.save(plots.draw(figure, shown.runs), folder / f"{name}.png")
        captions[f"{name}.png"] = f"{figure['title']}. {figure['caption']}"
    return captions


def explore(*roots: Path, output: Path, order: Sequence[str] = (), megabytes: float = 25) -> Path:
    """Write everything below `roots` as one HTML file that needs no other file, server or network.

    Args:
        roots: Run directories, or folders that contain runs, sweeps or evaluations at any depth, finished or
            not.
        output: Path of the HTML file, which is returned.
        order: Methods in the order of tables and legends.
        megabytes: Maximum size of the file, in 10⁶ bytes. The file always has the numbers of all responses,
            and their tokens if there is room. The page says for how many responses the tokens are left out.

    Raises:
        FileNotFoundError: if there is nothing to show.
    """
    methods = by_method(find_directories(*roots), order)
    runs = [run for seeds in methods.values() for run in seeds]
    starts = starts_of(runs)
    content, blocks, responses = page_content(methods), list[str](), dict[int, Responses]()
    for number, run in enumerate(runs):
        parts: dict[str, Mapping[str, Any]] = {}
        about = content["runs"][number]
        if any((run.path / "rollouts").glob("*.parquet")):
            own = responses[number] = Responses(run, f"run{number}")
            about |= dict.fromkeys(("responses", "kept"), len(own.frame))
            about["repeated"] = repeated(own)
            parts = {"cells": own.cells, "names": own.names, "rows": own.rows}
        if run.ledger["updates"] or number in responses:
            about["telling"] = telling(run, responses.get(number), starts.get(run.seed))
        # NaN if it was not logged
        scalars = {str(name): run.metrics[name].to_numpy("f8") for name in run.metrics}
        recorded = np.unique(parts.get("cells", {}).get("column", []))
        parts["iterations"] = {"iteration": run.metrics.index.to_numpy() if scalars else recorded, **scalars}
        blocks += [block(f"run{number}/{name}", columns) for name, columns in parts.items()]

    def page(tokens: Sequence[str] = ()) -> str:
        return assembled(content["title"], [block("index", {"index": finite(content)}), *blocks, *tokens])

    room = megabytes * 1e6 - len(page().encode()) - MARGIN * len(content["runs"])
    tokens: list[str] = []
    waiting = sum(own.sizes.sum() for own in responses.values())
    for number, own in responses.items():
        content["runs"][number]["kept"], found = own.blocks(room * own.sizes.sum() / waiting)
        tokens += found
    write_text(output, page(tokens))
    return output


def page_content(methods: Mapping[str, Sequence[RunFiles]]) -> dict[str, Any]:
    """Return the index of a page: `title`, `answer`, `tables`, `figures`, and `runs` with one entry each."""
    shown = Figures(methods)
    said, pictured, tables = without_evaluation(shown.runs), "", list[Section]()
    heading = f"Results of {', '.join(methods)}"
    finished = by_method(run for run in shown.runs if (run.path / "test.json").exists())
    try:
        if finished:
            compared = Methods(finished)
            said, tables, heading = answer(compared), sections(compared), title(compared)
            shown, pictured = Figures(methods, compared), compared.headline[0]
    except ValueError as error:  # runs with nothing in common can still be looked at one by one
        said = Answer(["These runs share no evaluation, so that none says more than another."], "")
        tables = [Section("These runs can't be compared", [], [], [str(error)])]
    figures = [{"name": name, **drawn} for name, drawn in shown.all().items()]
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
                "name": shown.name(run), "group": shown.group[run.method], "path": str(run.path),
                "iterations": run.ledger["iterations"], "scalars": [str(name) for name in run.metrics],
                "splits": list(dict.fromkeys(name for found in run.evaluations for name in found["splits"])),
                "settings": run.config, "responses": 0, "kept": 0, "repeated": False, "telling": [],
            }
            for run in shown.runs
        ],
    }  # fmt: skip


def assembled(title: str, blocks: Sequence[str]) -> str:
    """Return the HTML file. Its content security policy allows only its own scripts, and loads nothing."""
    sources = {
        f"report/{path.stem}": "data:text/javascript;base64," + base64.b64encode(path.read_bytes()).decode()
        for path in sorted(ASSETS.glob("*.js"))
    }
    return Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title.encode("utf-8", "replace").decode().replace("\0", "\ufffd")),
        nonce=hashlib.sha256("".join([title, *blocks]).encode("utf-8", "replace")).hexdigest()[:32],
        style=(ASSETS / "style.css").read_text(encoding="utf-8"),
        imports=json.dumps({"imports": sources}),
        blocks="".join(blocks),
    )
