"""`tagrpo-report`: what it writes, and what it says when there is nothing to write."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tagrpo.report.command import main
from tests.helpers import read_blocks

PROGRAM = """
import sys
sys.argv = ["tagrpo-report", {argument!r}]
from tagrpo.report.command import main
try:
    main()
except SystemExit as end:
    heavy = {{"torch", "pandas", "pyarrow", "lightning", "matplotlib", "transformers"}} & set(sys.modules)
    assert not heavy, heavy
    print(end)
"""


def report(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tagrpo-report", *map(str, arguments)])
    main()


def test_a_single_run_gets_a_page_beside_it(tmp_path, write_run, monkeypatch, capsys):
    run = write_run(tmp_path, "grpo", 0, [1, 2, 3])
    report(monkeypatch, run)
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    (about,) = read_blocks(run / "report.html")["index"]["index"]["runs"]
    assert (about["name"], about["splits"], about["responses"]) == ("grpo", ["test_id"], 0)
    assert about["scalars"][:2] == ["budget/rollouts", "rollout/reward"]


def test_an_evaluation_alone_gets_one_too(tmp_path, write_run, monkeypatch):
    run = write_run(tmp_path, "base", 0, [1, 2, 3])
    for name in ("metrics.csv", "ledger.json", "embedding_diversity.csv"):
        (run / name).unlink()
    report(monkeypatch, run, "-o", tmp_path / "page.html")
    index = read_blocks(tmp_path / "page.html")["index"]["index"]
    assert [figure["title"] for figure in index["figures"]] == ["Pass@k"]
    (sentence,) = index["answer"]["sentences"]
    assert sentence.startswith("base solves 25.0 [")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "Expected a run directory, or a folder with some, at .*nowhere, but there is none"),
        ("empty", r"Expected test.json, exact.json, .*parquet somewhere below .*empty, but found none"),
        ("broken", "Expected a Parquet file at .*000000-0.parquet, but it can't be read"),
    ],
)
def test_errors_say_what_was_expected_where(tmp_path, monkeypatch, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "rollouts").mkdir(parents=True)
    (tmp_path / "broken" / "rollouts" / "000000-0.parquet").write_text("no Parquet")
    with pytest.raises(SystemExit, match=f"tagrpo-report: {message}"):
        report(monkeypatch, tmp_path / name)


@pytest.mark.parametrize(
    ("argument", "says"), [("--help", "usage: tagrpo-report"), ("/none", "at /none, but there is none")]
)
def test_help_and_a_missing_run_import_nothing_heavy(argument, says):
    program = [sys.executable, "-c", PROGRAM.format(argument=argument)]
    assert says in subprocess.run(program, check=True, capture_output=True, text=True).stdout
