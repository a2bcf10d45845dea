"""The report: numbers that stand in the files, and verdicts that follow from them."""

from __future__ import annotations

import json
import re

import pytest

from tagrpo.analysis.report import write_report


@pytest.fixture
def root(tmp_path, write_run):
    base = [i % 3 for i in range(60)]
    for seed in (0, 1, 2):
        write_run(tmp_path, "grpo", seed, base)
        write_run(tmp_path, "grpo_matched", seed, base, zero=25.0)
        write_run(tmp_path, "ta_grpo", seed, [c + 3 + (i + seed) % 2 for i, c in enumerate(base)], zero=5.0)
    return tmp_path


def test_results_hold_what_the_runs_hold(root):
    write_report(root, order=["grpo", "grpo_matched", "ta_grpo"])
    results = json.loads((root / "results.json").read_text())
    assert [(cell["method"], cell["seed"]) for cell in results["cells"]][:2] == [("grpo", 0), ("grpo", 1)]
    cell = results["cells"][-1]
    assert cell["budget"] == {"prompts": 8, "rollouts": 64, "tokens": 1000, "updates": 4, "iterations": 2}
    assert cell["series"]["zero_gradient/percentage"] == [5.0, 5.0]
    assert cell["splits"]["test_id"]["samples_per_question"] == [8]
    assert set(cell["splits"]["test_id"]["pass_at_k"]) == {"1", "2", "4", "8"}
    grpo = results["pass_at_k"]["test_id"]["grpo"]["1"]
    assert grpo["value"] == pytest.approx(1 / 8)
    assert grpo["low"] < 1 / 8 < grpo["high"]


def test_a_clear_gain_is_called_one_and_equality_undecided(root):
    write_report(root, order=["grpo", "grpo_matched", "ta_grpo"])
    comparisons = json.loads((root / "results.json").read_text())["comparisons"]
    verdicts = {(c["method"], c["baseline"], c["k"]): c["verdict"] for c in comparisons}
    assert verdicts["ta_grpo", "grpo", 1] == "higher"
    assert verdicts["ta_grpo", "grpo_matched", 1] == "higher"
    assert verdicts["grpo_matched", "grpo", 1] == "undecided"
    report = (root / "report.md").read_text()
    assert "test_id, pass@1: **ta_grpo** is higher than grpo by 43.8" in report
    assert re.search(r"\| grpo_matched \| 3 \| 25\.0 \| 64 \| 1,000 \| 4 \|", report)


def test_one_seed_is_said_to_be_one(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2, 3])
    write_report(tmp_path)
    assert "noise between seeds is not measured" in (tmp_path / "report.md").read_text()


def test_the_page_needs_no_other_file(root):
    page = write_report(root).read_text()
    sources = re.findall(r'<img[^>]* src="([^"]{0,30})', page)
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert page.count("<table>") == 2
    assert "http" not in page.replace("http-equiv", "")
