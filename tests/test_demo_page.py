"""What the quickstart prints of the demo is what the report says of the runs in docs/demo, which have today's settings."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.runs import by_method, find_runs
from tagrpo.analysis.sections import markdown
from tests.loading import SCRIPTS, script

pytestmark = pytest.mark.pages

ROOT = SCRIPTS.parent
README = ROOT / "README.md"


@pytest.fixture(scope="module")
def demo_page():
    return script("demo_page")


@pytest.fixture(scope="module")
def report(demo_page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    demo_page.write_report(folder)
    return folder


def test_what_the_quickstart_prints_of_the_demo_is_what_the_report_says(demo_page, tmp_path):
    text = demo_page.PAGE.read_text()
    (tmp_path / "page.md").write_text(text)
    demo_page.write_parts(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == text, "run python scripts/demo_page.py"


def test_the_digest_is_of_todays_demo(demo_page):
    preset = yaml.safe_load((ROOT / "configs" / "comparisons" / "compare" / "demo.yaml").read_text())
    content = demo_page.read_digest()
    for name, overrides in preset["methods"].items():
        hydra = yaml.safe_load(content[f"{name}/seed0/.hydra/hydra.yaml"])["hydra"]
        ran = {key for key in hydra["overrides"]["task"] if not re.match("(seed|name|resume)=", key)}
        assert ran == {*preset["overrides"], *overrides}
    assert {name.split("/")[0] for name in content} == set(preset["methods"])
    changed = {run: found for run, found in demo_page.differences().items() if found}
    assert changed == {}, "run make demo, then python scripts/demo_page.py runs/demo"


def test_a_changed_setting_makes_the_digest_stale(demo_page, monkeypatch):
    content = demo_page.read_digest()
    name = "ta_grpo/seed0/config.yaml"
    changed = yaml.safe_load(content[name])
    changed["loss"]["clip_high"] = 0.3
    changed["data"]["batch_size"] = 4
    monkeypatch.setattr(demo_page, "read_digest", lambda: content | {name: yaml.safe_dump(changed)})
    found = demo_page.differences()
    assert found.pop("ta_grpo") == {"loss.clip_high": (0.3, 0.2), "data.batch_size": (4, 8)}
    assert set(found) == {"base", "grpo", "grpo_matched"}
    assert not any(found.values())


def test_a_page_is_written_between_its_marks_alone(demo_page, tmp_path):
    page = tmp_path / "page.md"
    marks = {name: f"<!-- begin {name} -->\nold\n<!-- end {name} -->\n" for name in ("headline", "tasks")}
    page.write_text("# é\n" + marks["headline"] + "kept\n" + marks["tasks"])
    demo_page.write_parts(page)
    first, table = page.read_text().split("\nkept\n")
    assert first.startswith("# é\n<!-- begin headline -->\n- ta_grpo against grpo_matched")
    assert table.startswith("<!-- begin tasks -->\n| on | measure |")
    assert "\nold\n" not in first + table
    page.write_text(marks["headline"])
    with pytest.raises(ValueError, match="begin tasks"):
        demo_page.write_parts(page)


def test_the_whole_report_has_its_figures(report):
    figures = re.findall(r"\]\((\w+\.png)\)", (report / "report.md").read_text())
    assert len(figures) >= 8
    assert all((report / name).stat().st_size > 10_000 for name in figures)


def test_the_readme_has_the_numbers_of_the_report(report):
    shares = re.findall(r"([\d.]+) % of questions without gradient", (report / "report.md").read_text())
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
