"""docs/demo.md is what the report says of the runs whose digest lies beside it."""

from __future__ import annotations

import json
import re

import pytest

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.runs import by_method, find_runs
from tagrpo.analysis.sections import markdown
from tests.loading import SCRIPTS, script

pytestmark = pytest.mark.pages

README = SCRIPTS.parent / "README.md"


@pytest.fixture(scope="module")
def demo_page():
    return script("demo_page")


def test_the_page_is_written_from_the_digest(demo_page):
    assert demo_page.written() == demo_page.PAGE.read_text(), "run scripts/demo_page.py"


def test_its_figures_exist(demo_page):
    figures = re.findall(r"\]\((\w+\.png)\)", demo_page.PAGE.read_text())
    assert len(figures) >= 8
    assert all((demo_page.PAGE.parent / name).stat().st_size > 10_000 for name in figures)


def test_the_readme_has_the_numbers_of_the_page(demo_page):
    page = demo_page.PAGE.read_text()
    shares = re.findall(r"([\d.]+) % of questions without gradient", page)
    assert len(shares) == 3
    readme = README.read_text()
    assert all(re.search(rf"\b{re.escape(share)} %", readme) for share in shares), shares


def test_a_digest_loses_nothing_that_the_report_says(demo_page, write_run, tmp_path):
    for name, correct in (("grpo", [1, 2, 3]), ("ta_grpo", [3, 2, 8])):
        run = write_run(tmp_path / "runs", name, 0, correct)
        config = {"name": name, "seed": 0, "data": {"tokenizer": "/home/someone/tagrpo/src/starter"}}
        (run / "config.yaml").write_text(json.dumps(config))
        (run / "provenance.json").write_text(json.dumps({"version/torch": "2.13"}))
    made = by_method(find_runs(tmp_path / "runs"))
    content = demo_page.digest(tmp_path / "runs")
    assert not [name for name, text in content.items() if "/home/" in text], "no folders of a machine"
    unpacked = demo_page.unpack(content, tmp_path / "digest")
    assert markdown(Methods(unpacked)) == markdown(Methods(made))
