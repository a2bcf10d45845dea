"""docs/study.md is what its digest says, and nothing else: no figure without the numbers of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tagrpo.analysis.study import load
from tagrpo.analysis.study_figures import CAPTIONS
from tagrpo.analysis.study_page import ORDER, page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def content():
    return load(DOCS / "study" / "digest.json")


def test_the_page_is_generated_from_the_digest(content):
    assert (DOCS / "study.md").read_text(encoding="utf-8") == page(content)


def test_every_cell_says_how_it_was_run(content):
    for regime, cells in content["regimes"].items():
        assert {cell["method"] for cell in cells} == set(ORDER), regime
        for cell in cells:
            assert f"name={cell['method']} seed={cell['seed']} " in cell["command"]
            assert f"data.train.regime={regime} " in cell["command"]
            assert (cell["weights"] is None) == (cell["method"] == "base")


def test_every_figure_is_there():
    assert {path.stem for path in (DOCS / "study").glob("*.png")} == set(CAPTIONS)
