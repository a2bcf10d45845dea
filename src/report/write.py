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
from .pieces import Pieces, tokenizer_of
from .recorded import CELL_CAUSES, Recorded
from .tokens import Responses

ASSETS = Path(__file__).with_name("assets")
MEGABYTES = 25.0
"""How large a page may become; responses beyond that are shown without their text."""
MARGIN = 200
"""Bytes of a run's entry in the index that the number of its kept responses may change."""


def write_page(
    path: Path, runs: Sequence[RunFiles], content: Mapping[str, Any], *, megabytes: float = MEGABYTES
) -> Path:
    """Write the report on `runs` as one HTML file that needs no other file, no server and no network.

    Args:
        path: The file.
        runs: What the explorer shows.
        content: `title`, `answer`, `tables` and `figures`; and of each run `names` and `groups`, the numbers of its
            colour.
        megabytes: 10⁶ bytes that the file may have. The numbers of all responses are always in it, their tokens as
            far as there is room; the page says how many are left out.
    """
    blocks, responses = _numbers_of(runs)
    about = [about_run(run, len(responses[i].recorded) if i in responses else 0) for i, run in enumerate(runs)]
    for entry, name, group in zip(about, content["names"], content["groups"], strict=True):
        entry |= {"name": name, "group": group}

    def page(tokens: Sequence[str] = ()) -> str:
        shown = {name: content[name] for name in ("title", "answer", "tables", "figures")}
        index = block("index", {"index": finite({**shown, "runs": about, "causes": list(CELL_CAUSES)})})
        return assembled(str(content["title"]), [index, *blocks, *tokens])

    room = megabytes * 1e6 - len(page().encode()) - MARGIN * len(runs)
    tokens: list[str] = []
    waiting = {number: int(own.sizes.sum()) for number, own in responses.items()}
    for number, own in responses.items():
        share = waiting[number] / sum(waiting.values())
        about[number]["kept"], found = own.blocks(share * room)
        room -= sum(map(len, found))
        tokens += found
        del waiting[number]
    write_text(path, page(tokens))
    return path


def _numbers_of(runs: Sequence[RunFiles]) -> tuple[list[str], dict[int, Responses]]:
    """The blocks of all runs but for tokens, and the responses of those that recorded some."""
    blocks: list[str] = []
    responses: dict[int, Responses] = {}
    for number, run in enumerate(runs):
        recorded = Recorded.read(run.path)
        parts: dict[str, Mapping[str, Any]] = {"iterations": iterations_of(run, recorded)}
        if recorded is not None:
            responses[number] = Responses(recorded, Pieces(tokenizer_of(run.path, run.config)), f"run{number}")
            parts |= {"cells": recorded.cells, "names": recorded.names, "rows": recorded.rows}
        blocks += [block(f"run{number}/{name}", columns) for name, columns in parts.items()]
    return blocks, responses


def about_run(run: RunFiles, responses: int) -> dict[str, Any]:
    """The entry of a run in the index."""
    return {
        "path": str(run.path),
        "iterations": run.ledger["iterations"],
        "scalars": [str(name) for name in run.metrics],
        "splits": list(dict.fromkeys(name for evaluation in run.evaluations for name in evaluation["splits"])),
        "settings": run.config,
        "responses": responses,
        "kept": responses,
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
        style=(ASSETS / "style.css").read_text(encoding="utf-8"),
        imports=json.dumps({"imports": sources}),
        blocks="".join(blocks),
    )


def escaped(text: str) -> str:
    """`text` for an HTML file in UTF-8."""
    safe = text.encode("utf-8", "replace").decode()
    return re.sub(r"[&<>\"\0]", lambda found: f"&#{ord(found[0])};" if found[0] != "\0" else "\ufffd", safe)
