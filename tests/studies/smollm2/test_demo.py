"""Tables of docs/smollm2.md on `make demo-lm`, from runs that are made up."""

import json

import pytest

from studies.smollm2 import demo

pytestmark = pytest.mark.pages


def test_the_tables_have_the_numbers_of_the_runs(tmp_path):
    scores = {"value": 0.25, "low": 0.125, "high": 0.5}
    of_method = dict.fromkeys(("1", "32"), scores)
    results = {"pass_at_k": {split: dict.fromkeys(demo.METHODS, of_method) for split in demo.TESTS}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    for place, method in enumerate(demo.METHODS):
        folder = tmp_path / method / "seed0"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"seconds": 600.0 + 60 * place}))
        trained = "step,seconds/generate,seconds/update,seconds/validate\n1,60,120,\n2,30,60,90\n"
        (folder / "metrics.csv").write_text(trained if place else "step\n0\n")
    found = demo.sections(tmp_path)
    assert "| other wordings, pass@32 |" + " 25.0 [12.5, 50.0] |" * 4 in found["demo"]
    rows = found["minutes"].splitlines()
    assert rows[2] == "| untrained | 0.0 | 0.0 | 0.0 | 10.0 | 10.0 |"
    assert rows[5] == "| TA-GRPO | 1.5 | 3.0 | 1.5 | 7.0 | 13.0 |"


def test_the_page_has_both_tables():
    text = demo.PAGE.read_text()
    for name in ("demo", "minutes"):
        assert f"<!-- begin {name} -->" in text
