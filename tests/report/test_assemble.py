"""The report: numbers that stand in the files, and verdicts that follow from them."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.figures import Figures
from tagrpo.analysis.plots import COLOURS, LINES, MARKERS, draw, looks
from tagrpo.analysis.runs import by_method, find_directories, find_runs
from tagrpo.report.assemble import explore, page_content, write_report
from tests.helpers import read_blocks

METHODS = ["grpo", "grpo_matched", "ta_grpo"]


@pytest.fixture(scope="module")
def root(tmp_path_factory, write_run):
    root = tmp_path_factory.mktemp("comparison")
    base = [i % 3 for i in range(60)]
    for seed in (0, 1, 2):
        write_run(root, "grpo", seed, base)
        write_run(root, "grpo_matched", seed, base, zero=25.0)
        write_run(root, "ta_grpo", seed, [c + 3 + (i + seed) % 2 for i, c in enumerate(base)], zero=5.0)
        for method in METHODS:
            config = {
                "name": method,
                "seed": seed,
                "policy": {"anchor": "original" if method == "ta_grpo" else "own"},
            }
            (root / method / f"seed{seed}" / "config.yaml").write_text(yaml.safe_dump(config))
            made_with = {"git_commit": "0123456789abcdef", "git_changed": "", "version/torch": "2.13"}
            made_with |= (
                {"git_commit": "fedcba9876543210", "git_changed": "src/a.py"} if method == "grpo" else {}
            )
            (root / method / f"seed{seed}" / "provenance.json").write_text(json.dumps(made_with))
    write_report(root, order=METHODS)
    return root


@pytest.fixture(scope="module")
def results(root):
    return json.loads((root / "results.json").read_text())


def test_results_hold_what_the_runs_hold(results):
    assert [(run["method"], run["seed"]) for run in results["runs"]][:2] == [("grpo", 0), ("grpo", 1)]
    run = results["runs"][-1]
    assert run["budget"] == {"prompts": 8, "rollouts": 64, "tokens": 1000, "updates": 4, "iterations": 2}
    assert run["splits"]["test_id"]["pass_at_k"]["8"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert set(run["splits"]["test_id"]) == {"num_questions", "pass_at_k", "majority", "wrong_answers"}
    assert run["seconds"] == 1.5
    grpo = results["pass_at_k"]["test_id"]["grpo"]["1"]
    assert grpo["value"] == pytest.approx(1 / 8)
    assert grpo["low"] < 1 / 8 < grpo["high"]


def test_a_clear_gain_is_called_one_and_equality_undecided(root, results):
    verdicts = {(c["method"], c["baseline"], c["quantity"]): c["verdict"] for c in results["comparisons"]}
    assert verdicts["ta_grpo", "grpo", "pass@k/test_id/1"] == "higher"
    assert verdicts["ta_grpo", "grpo_matched", "pass@k/test_id/1"] == "higher"
    assert verdicts["grpo_matched", "grpo", "pass@k/test_id/1"] == "undecided"
    assert verdicts["ta_grpo", "grpo_matched", "zero_gradient/percentage"] == "lower"
    report = (root / "report.md").read_text()
    # (3 + ½) of 8 responses more.
    assert re.search(r"\| ta_grpo \| grpo \| 1× \| test_id \| ▲ \+43\.8 \[", report)
    assert re.search(r"\| ta_grpo \| grpo_matched \| 1× \| .* \| ▼ −20.0 \[−20.0, −20.0\] \|", report)
    assert re.search(r"\| grpo_matched \| grpo \| 1× \| test_id \| \+0\.0 \[", report)


def test_page_and_markdown_begin_with_the_answer(root):
    answer = read_blocks(root / "report.html")["index"]["index"]["answer"]
    first, best, *others = answer["sentences"]
    begins = "ta_grpo against grpo, with as many samples, on test_id: pass@1 better (+43.8 ["
    assert first.startswith(begins)
    assert "questions without gradient better (−45.0 [" in first
    assert re.match(
        r"ta_grpo \(64 samples\): pass@1 56\.\d %, .* 5\.0 % of questions without gradient; against grpo",
        best,
    )
    assert "grpo_matched (64 samples)" in others[0]
    assert "against grpo pass@1 cannot be told (+0.0 [" in others[0]
    assert others[1].startswith("grpo (64 samples)")
    assert answer["note"].startswith("On 60 questions and 3 seeds. Differences in points")
    (panel,) = answer["figure"]["panels"]
    assert panel["title"] == "test_id"
    gain = next(series for series in panel["series"] if series["label"] == "ta_grpo")
    assert (gain["x"][0], gain["y"][0]) == (1, pytest.approx(43.75))
    lines = (root / "report.md").read_text().splitlines()
    assert lines[:4] == ["# Comparison of grpo, grpo_matched, ta_grpo", "", f"- {first}", f"- {best}"]


def test_the_report_says_what_was_matched_and_what_differs(root):
    report = (root / "report.md").read_text()
    assert re.search(r"\| grpo_matched \| 3 \| 2 \| 4 \| 8 \| 64 \| 1,000 \| 2 \| 25\.0 \|", report)
    assert (
        "Equal in all trained runs: iterations, optimizer steps, prompts, sampled responses, response tokens."
        in report
    )
    assert "| `policy.anchor` | own | grpo, grpo_matched |" in report
    assert "| `policy.anchor` | original | ta_grpo |" in report
    assert "noise between seeds is not measured" not in report


def test_every_report_says_which_code_the_runs_were_made_with(root, results, write_run, tmp_path):
    first = results["runs"][0]["provenance"]
    assert first == {"git_commit": "fedcba9876543210", "git_changed": "src/a.py", "version/torch": "2.13"}
    report = (root / "report.md").read_text()
    grpo, others = (
        ", ".join(f"{m} seed {s}" for m in methods for s in range(3)) for methods in (["grpo"], METHODS[1:])
    )
    assert f"| {grpo} | fedcba987654 | src/a.py | torch 2.13 |" in report
    assert f"| {others} | 0123456789ab | none | torch 2.13 |" in report
    (table,) = [
        t
        for t in read_blocks(root / "report.html")["index"]["index"]["tables"]
        if t["title"] == "Code and versions"
    ]
    assert table["rows"] == [
        [grpo, "fedcba987654", "src/a.py", "torch 2.13"],
        [others, "0123456789ab", "none", "torch 2.13"],
    ]
    unfinished = write_run(tmp_path, "alone", 0, [1, 2])
    (unfinished / "test.json").unlink()
    (unfinished / "provenance.json").write_text(json.dumps({"version/torch": "2.13"}))
    explore(tmp_path, output=tmp_path / "report.html")
    (table,) = read_blocks(tmp_path / "report.html")["index"]["index"]["tables"]
    assert table["rows"] == [["all", "unknown", "none", "torch 2.13"]]


def test_unequal_budgets_are_named(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2, 3])
    path = write_run(tmp_path, "ta_grpo", 0, [1, 2, 3]) / "ledger.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rollouts": 256}))
    write_report(tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "Not equal: sampled responses." in report
    assert "| ta_grpo | grpo | 4× | test_id |" in report
    assert "ta_grpo against grpo, with 4 times as many samples, on test_id:" in report
    assert "noise between seeds is not measured" in report


def test_an_untrained_policy_alone_makes_a_report(tmp_path, write_run):
    path = write_run(tmp_path, "base", 0, [1, 2, 3])
    for name in ("metrics.csv", "ledger.json", "embedding_diversity.csv"):
        (path / name).unlink()
    write_report(tmp_path)
    (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert run["budget"]["rollouts"] == 0
    assert run["seconds"] == 0
    assert [p.name for p in tmp_path.glob("*.png")] == ["pass_at_k.png"]


def test_splits_that_a_run_lacks_are_left_out(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2, 3])
    path = write_run(tmp_path, "ta_grpo", 0, [1, 2, 3]) / "test.json"
    test = json.loads(path.read_text())
    test["splits"]["more"] = test["splits"]["test_id"]
    path.write_text(json.dumps(test))
    write_report(tmp_path)
    assert list(json.loads((tmp_path / "results.json").read_text())["pass_at_k"]) == ["test_id"]
    test["splits"].pop("test_id")
    path.write_text(json.dumps(test))
    with pytest.raises(
        ValueError,
        match=r"grpo/seed0.*test_id.*ta_grpo/seed0",
    ):
        write_report(tmp_path)


def test_what_is_not_finite_is_null(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1])
    write_run(tmp_path, "ta_grpo", 0, [2])
    path = tmp_path / "grpo" / "seed0" / "metrics.csv"
    path.write_text("step,rollout/reward,zero_gradient/percentage\n0,0.5,\n1,0.5,10\n")
    write_report(tmp_path)

    def refuse(constant):
        raise AssertionError(constant)

    results = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    (found,) = (c for c in results["comparisons"] if c["quantity"] == "pass@k/test_id/8")
    assert found["difference"]["low"] is None


def test_the_page_has_the_tables_and_the_numbers_of_every_figure(root):
    index = read_blocks(root / "report.html")["index"]["index"]
    figures = {
        figure["title"].partition(" against")[0].partition(" (")[0]: figure for figure in index["figures"]
    }
    assert list(figures) == [
        "Pass@k minus that of grpo", "Pass@k", "Pass@8", "Training", "Questions without gradient",
        "How different the responses to a question are",
    ]  # fmt: skip
    curve = index["figures"][1]["panels"][0]["series"][2]
    assert (curve["label"], curve["x"]) == ("ta_grpo", [1, 2, 4, 8])
    assert curve["y"][0] == pytest.approx(100 * (1 + 3.5) / 8)
    differences = next(table for table in index["tables"] if table["title"] == "What differs beyond noise")
    assert [row[:2] for row in differences["rows"]] == [
        ["ta_grpo", "grpo_matched"], ["ta_grpo", "grpo"], ["grpo_matched", "grpo"],
    ]  # fmt: skip
    assert [run["name"] for run in index["runs"]][:2] == ["grpo seed 0", "grpo seed 1"]


def test_runs_without_a_common_split_are_shown_without_a_comparison(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2, 3])
    path = write_run(tmp_path, "ta_grpo", 0, [1, 2, 3]) / "test.json"
    path.write_text(path.read_text().replace("test_id", "other"))
    (write_run(tmp_path, "unfinished", 0, [1]) / "test.json").unlink()
    index = read_blocks(explore(tmp_path, output=tmp_path / "page.html"))["index"]["index"]
    assert [run["name"] for run in index["runs"]] == ["grpo", "ta_grpo", "unfinished"]
    assert [run["splits"] for run in index["runs"]] == [["test_id"], ["other"], []]
    (table,) = index["tables"]
    assert "Expected a test split that all runs have" in table["notes"][0]
    assert index["answer"]["sentences"] == [
        "These runs share no evaluation, so that none says more than another."
    ]


def test_what_a_run_has_warned_of_stands_before_all_tables(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2])
    assert "Warnings" not in write_report(tmp_path).with_name("report.md").read_text()
    (tmp_path / "grpo" / "seed0" / "warnings.md").write_text(
        "Iteration 1: No answer was found.\n- 'well', expected '1'\n"
    )
    facts = {
        "train": {"kept": 2, "cautions": []},
        "test": {"kept": 2, "cautions": ["test: 1 of 2 is seen:\n- 'x?'"]},
    }
    (tmp_path / "grpo" / "seed0" / "data.json").write_text(json.dumps(facts))
    page = write_report(tmp_path)
    first = read_blocks(page)["index"]["index"]["tables"][0]
    assert first["title"] == "Warnings"
    seen = ["grpo, seed 0. test: 1 of 2 is seen:", "- 'x?'"]
    assert first["notes"] == [
        *seen,
        "grpo, seed 0. Iteration 1: No answer was found.",
        "- 'well', expected '1'",
    ]
    text = page.with_name("report.md").read_text()
    assert text.index("## Warnings") < text.index("- 'well', expected '1'") < text.index("## Pass@k")


def test_runs_of_a_sweep_are_called_by_the_settings_in_which_they_differ(tmp_path, write_run):
    for number, (rate, seed) in enumerate(((1e-4, 0), (1e-4, 1), (1e-3, 0))):
        path = write_run(tmp_path / str(number), "grpo", seed, [1, 2])
        (path / ".hydra").mkdir()
        overrides = {"task": [f"optimizer.lr={rate}", f"seed={seed}", "iterations=2"], "hydra": []}
        noted = {"hydra": {"job": {"name": "train"}, "overrides": overrides}}
        (path / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(noted))
    write_run(tmp_path, "ta_grpo", 0, [1])
    assert [(run.method, run.seed) for run in find_directories(tmp_path)] == [
        ("grpo (optimizer.lr=0.0001)", 0),
        ("grpo (optimizer.lr=0.0001)", 1),
        ("grpo (optimizer.lr=0.001)", 0),
        ("ta_grpo", 0),
    ]


def test_the_same_method_and_seed_twice_is_told_apart_by_path(tmp_path, write_run):
    for name in ("monday", "tuesday"):
        write_run(tmp_path / name, "grpo", 0, [1, 2, 3])
    found = find_directories(tmp_path, tmp_path / "monday")
    assert [run.method for run in found] == [
        f"grpo ({tmp_path}/{day}/grpo/seed0)" for day in ("monday", "tuesday")
    ]


def test_exact_pass_at_k_is_drawn_from_the_probabilities(root, write_run, tmp_path):
    for seed, rates in ((0, (0.5, 0.001)), (1, (0.25, 0.0))):
        path = write_run(tmp_path, "grpo", seed, [4, 0])
        (path / "evaluations").mkdir()
        for iteration, scale in ((1, 0.5), (2, 1.0)):
            questions = [{"id": f"q{i:03d}", "success": scale * p} for i, p in enumerate(rates)]
            curve = {"1": {"value": scale * sum(rates) / 2, "low": 0.0, "high": 1.0}}
            content = {
                "iteration": iteration,
                "splits": {"test_id": {"questions": questions, "pass_at_k": curve}},
            }
            (path / "evaluations" / f"exact-{iteration:06d}.json").write_text(json.dumps(content))
    figures = {figure["title"]: figure for figure in page_content(by_method(find_runs(tmp_path)))["figures"]}
    (series,) = figures["Exact pass@k"]["panels"][0]["series"]
    at = dict(zip(series["x"], series["y"], strict=True))
    assert at[1] == pytest.approx(100 * (0.5 + 0.001 + 0.25 + 0.0) / 4)
    assert at[1000] == pytest.approx(100 * (1 + (1 - 0.999**1000) + 1 + 0) / 4)
    first, _ = figures["Evaluations during training"]["panels"][0]["series"]
    assert (first["x"], first["y"]) == ([1, 2], pytest.approx([12.525, 25.05]))
    write_report(tmp_path)
    assert "](exact.png)" in (tmp_path / "report.md").read_text()
    assert "exact.png" not in (root / "report.md").read_text()


def test_distances_are_those_of_both_halves_of_training(root):
    figures = {figure["title"]: figure for figure in page_content(by_method(find_runs(root)))["figures"]}
    panels = figures["How different the responses to a question are (TA-GRPO, Fig. 4)"]["panels"]
    assert [panel["title"] for panel in panels][:2] == ["grpo, original (G)", "grpo, rephrasings (N·G)"]
    early, late = panels[0]["series"]
    assert (early["label"], early["x"]) == ("first half", pytest.approx([0.1, 0.2, 0.3]))
    assert (late["label"], late["x"]) == ("second half", pytest.approx([0.4, 0.5, 0.6]))
    assert early["y"] == late["y"] == pytest.approx([100 / 3, 200 / 3, 100])


def test_a_png_has_the_points_of_the_figure(root):
    runs = by_method(find_runs(root), METHODS)
    shown = Figures(runs, Methods(runs))
    figures = shown.all()
    curves = draw(figures["pass_at_k"]).axes[0]
    lines = [container.lines[0].get_ydata().tolist() for container in curves.containers]
    assert lines == [one["y"] for one in figures["pass_at_k"]["panels"][0]["series"]]
    zero = draw(figures["zero_gradient"], shown.runs).axes[0]
    labels, thick = zip(
        *[(x.get_label(), x.get_ydata()) for x in zero.lines if x.get_linewidth() > 1], strict=True
    )
    assert list(labels) == METHODS
    assert [values.tolist() for values in thick] == [[50, 50], [25, 25], [5, 5]]
    assert len(zero.lines) == 3 * (3 + 1), "three seeds and their mean of each method"


def test_sixty_four_methods_look_different_also_without_colour_or_markers_as_far_as_that_goes():
    found = list(looks(map(str, range(64))).values())
    assert len({tuple(look.values()) for look in found}) == 64
    assert len({(look["color"], look["linestyle"]) for look in found[:32]}) == 32
    first = [(look["color"], look["linestyle"], look["marker"]) for look in found[:8]]
    assert first == [(COLOURS[i], LINES[i % 4], MARKERS[i]) for i in range(8)], "as before"


def test_nine_methods_of_a_figure_have_nine_lines_that_differ(tmp_path, write_run):
    for number in range(9):
        write_run(tmp_path, f"m{number}", 0, [number % 8, 1, 2])
    runs = by_method(find_runs(tmp_path))
    figure = draw(Figures(runs, Methods(runs)).all()["pass_at_k"])
    drawn = [container.lines[0] for container in figure.axes[0].containers]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in drawn}) == 9
