"""The page: template, style, scripts, and the data blocks of runs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ..analysis.comparison import finite
from ..analysis.runs import RunFiles
from ..runs.files import write_text
from .blocks import block
from .pieces import pieces_of, tokenizer_of
from .recorded import Recorded
from .tokens import Responses

ASSETS = Path(__file__).with_name("assets")
MARGIN = 200
"""Bytes set aside per run, since the number of kept responses changes the length of the run's entry in the index."""


def write_page(path: Path, runs: Sequence[RunFiles], content: Mapping[str, Any], megabytes: float) -> Path:
    """Write the report on `runs` as one HTML file that needs no other file, no server and no network.

    Args:
        path: The file.
        runs: What the explorer shows.
        content: The result of `page_content`.
        megabytes: Size that the file may have, in 10⁶ bytes. It always holds the numbers of all responses, and their
            tokens as far as there is room; the page says how many are left out.
    """
    blocks: list[str] = []
    responses: dict[int, Responses] = {}
    about = [{**entry, "responses": 0, "kept": 0} for entry in content["runs"]]
    for number, run in enumerate(runs):
        parts: dict[str, Mapping[str, Any]] = {}
        if any((run.path / "rollouts").glob("*.parquet")):
            recorded, pieces = Recorded(run.path), pieces_of(tokenizer_of(run.path, run.config))
            responses[number] = Responses(run.path / "rollouts", recorded, pieces, f"run{number}")
            about[number]["responses"] = about[number]["kept"] = len(recorded.frame)
            parts = {"cells": recorded.cells, "names": recorded.names, "rows": recorded.rows}
        parts["iterations"] = iterations_of(run, parts.get("cells", {}))
        blocks += [block(f"run{number}/{name}", columns) for name, columns in parts.items()]

    def page(tokens: Sequence[str] = ()) -> str:
        index = block("index", {"index": finite({**content, "runs": about})})
        return assembled(str(content["title"]), [index, *blocks, *tokens])

    room = megabytes * 1e6 - len(page().encode()) - MARGIN * len(runs)
    tokens: list[str] = []
    waiting = sum(own.sizes.sum() for own in responses.values())
    for number, own in responses.items():
        about[number]["kept"], found = own.blocks(room * own.sizes.sum() / waiting)
        tokens += found
    write_text(path, page(tokens))
    return path


def iterations_of(run: RunFiles, cells: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`iteration` and every logged scalar, NaN where it was not logged; without a log, the recorded iterations."""
    scalars = {str(name): run.metrics[name].to_numpy("f8") for name in run.metrics}
    return {"iteration": run.metrics.index.to_numpy() if scalars else np.unique(cells.get("column", [])), **scalars}


def assembled(title: str, blocks: Sequence[str]) -> str:
    """The HTML file. Its content security policy runs only its own scripts and loads nothing from anywhere."""
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
