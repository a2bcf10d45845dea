"""The page: template, style, scripts, and the data blocks of runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ..analysis.comparison import finite
from ..analysis.runs import RunFiles
from ..runs.files import write_text
from .blocks import block
from .evaluations import evaluation_blocks
from .recorded import CELL_CAUSES, Recorded
from .tokens import Responses
from .vocabulary import tokenizer_of

ASSETS = Path(__file__).with_name("assets")
MEGABYTES = 25.0
"""How large a page may become; responses beyond that are shown without their text."""


def write_page(
    path: Path, runs: Sequence[RunFiles], content: Mapping[str, Any], *, megabytes: float = MEGABYTES
) -> Path:
    """Write the report on `runs` as one HTML file that needs no other file, no server and no network.

    Args:
        path: The file.
        runs: What the explorer shows.
        content: `title`, `tables` and `figures`; and of each run `names` and `groups`, the numbers of its colour.
        megabytes: 10⁶ bytes that the file may have. The numbers of all responses are always in it, their tokens as
            far as there is room; the page says how many are left out.
    """
    without_runs = assembled("", [block("index", finite(dict(content)))])
    blocks, about = run_blocks(runs, megabytes * 1e6 - len(without_runs.encode()))
    for found, name, group in zip(about, content["names"], content["groups"], strict=True):
        found |= {"name": name, "group": group}
    shown = {name: content[name] for name in ("title", "tables", "figures")}
    index = finite({**shown, "runs": about, "causes": list(CELL_CAUSES)})
    write_text(path, assembled(str(content["title"]), [block("index", {"index": index}), *blocks]))
    return path


def run_blocks(runs: Sequence[RunFiles], room: float) -> tuple[list[str], list[dict[str, Any]]]:
    """The blocks of all runs, whose tokens fill what is left of `room` bytes, and the entries of the index."""
    blocks: list[str] = []
    about: list[dict[str, Any]] = []
    responses: dict[int, Responses] = {}
    for number, run in enumerate(runs):
        prefix = f"run{number}"
        recorded = Recorded.read(run.path)
        found, splits = evaluation_blocks(run, prefix)
        blocks += [block(f"{prefix}/iterations", iterations_of(run, recorded)), *found]
        about.append(about_run(run, splits, len(recorded) if recorded else 0))
        if recorded is not None:
            responses[number] = Responses(recorded, tokenizer_of(run.path, run.config), prefix)
            vocabulary = responses[number].vocabulary.columns()
            parts = {"cells": recorded.cells, "names": recorded.names, "vocabulary": vocabulary, "rows": recorded.rows}
            blocks += [block(f"{prefix}/{name}", columns) for name, columns in parts.items()]
    room -= sum(map(len, blocks)) + len(block("about", {"about": about}))
    wanted = {number: float(own.sizes.sum()) * own.bytes_per_token * 1.02 for number, own in responses.items()}
    room -= 32 * sum(size // 1e5 for size in wanted.values())  # for the numbers of their blocks
    share = min(1.0, max(room, 0) / max(sum(wanted.values()), 1))
    for number, own in responses.items():
        kept, tokens = own.blocks(share * wanted[number] if share < 1 else np.inf)
        about[number] |= {"kept": kept, "blocks": [first for first, _ in tokens]}
        blocks += [text for _, text in tokens]
    return blocks, about


def about_run(run: RunFiles, splits: Sequence[str], responses: int) -> dict[str, Any]:
    """The entry of a run in the index."""
    return {
        "method": run.method,
        "seed": run.seed,
        "path": str(run.path),
        "command": run.command,
        "ledger": run.ledger,
        "seconds": run.wall_seconds,
        "scalars": [str(name) for name in run.metrics],
        "splits": list(splits),
        "settings": run.config,
        "responses": responses,
        "kept": 0,
        "blocks": [],
    }


def iterations_of(run: RunFiles, recorded: Recorded | None) -> dict[str, np.ndarray]:
    """`iteration` and every logged scalar, NaN where it was not logged; without a log, the recorded iterations."""
    if len(run.metrics):
        scalars = {str(name): run.metrics[name].to_numpy("f8") for name in run.metrics}
        return {"iteration": run.metrics.index.to_numpy("i4"), **scalars}
    return {"iteration": np.unique(recorded.rows["iteration"]) if recorded is not None else np.zeros(0, "i4")}


def assembled(title: str, blocks: Sequence[str]) -> str:
    """The HTML file. Its policy lets nothing run but its own scripts, and nothing be loaded from anywhere."""
    sources = {
        f"report/{path.stem}": "data:text/javascript;base64," + base64.b64encode(path.read_bytes()).decode()
        for path in sorted(ASSETS.glob("*.js"))
    }
    return Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=escaped(title),
        nonce=hashlib.sha256("".join([title, *blocks]).encode("utf-8", "replace")).hexdigest()[:32],
        style=(ASSETS / "vendor" / "uPlot.min.css").read_text() + (ASSETS / "style.css").read_text(encoding="utf-8"),
        plots=(ASSETS / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8"),
        imports=json.dumps({"imports": sources}),
        blocks="".join(blocks),
    )


def escaped(text: str) -> str:
    """`text` for an HTML file in UTF-8."""
    safe = text.encode("utf-8", "replace").decode()
    return re.sub(r"[&<>\"\0]", lambda found: f"&#{ord(found[0])};" if found[0] != "\0" else "\ufffd", safe)
