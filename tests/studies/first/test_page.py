"""docs/study.md is what the digest says and nothing else: every number in it comes from the runs."""

from __future__ import annotations

import pytest

from studies.first.figures import CAPTIONS
from studies.first.page import DIGEST, ORDER, PAGE, main, page
from studies.first.regimes import load


@pytest.fixture(scope="module")
def content():
    return load(DIGEST)


def test_the_page_is_generated_from_the_digest(content):
    assert PAGE.read_text(encoding="utf-8") == page(content)


def test_every_run_says_how_it_was_run(content):
    for regime, runs in content["regimes"].items():
        assert {run["method"] for run in runs} == set(ORDER), regime
        for run in runs:
            assert f"name={run['method']} seed={run['seed']} " in run["command"]
            assert f"data.train.regime={regime} " in run["command"]
            assert (run["weights"] is None) == (run["method"] == "base")


def test_every_figure_is_there():
    assert {path.stem for path in PAGE.with_suffix("").glob("*.png")} == set(CAPTIONS)


def test_the_command_writes_page_and_figures_from_the_digest(tmp_path):
    assert main(["--page", str(tmp_path / "study.md")]) == 0
    assert (tmp_path / "study.md").read_bytes() == PAGE.read_bytes()
    assert {path.stem for path in (tmp_path / "study").iterdir()} == set(CAPTIONS)
