"""The digest holds what the runs hold; tables and quarters by hand."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from studies.first.digest import digest, hard_share
from studies.first.regimes import Regime, load, ordered, write
from tagrpo.analysis.runs import RunFiles


@pytest.fixture
def root(tmp_path, write_run):
    for regime in ("hard", "mixed"):
        for seed in (0, 1):
            write_run(tmp_path / regime, "grpo", seed, [1, 2, 8 - seed])
            write_run(tmp_path / regime, "ta_grpo", seed, [3, 4, 5], zero=5.0)
    return tmp_path


def test_a_digest_survives_being_written(root, tmp_path):
    content = digest(root)
    write(content, tmp_path / "kept" / "digest.json")
    assert load(tmp_path / "kept" / "digest.json") == json.loads(json.dumps(content))
    # One line per run, so that a changed run shows as one changed line.
    assert sum('"method"' in line for line in (tmp_path / "kept" / "digest.json").read_text().splitlines()) == 8


def test_entries_hold_counts_series_and_distances(root):
    content = digest(root)
    assert list(content["regimes"]) == ["hard", "mixed"]
    assert content["questions"]["hard"] == {"test_id": ["q000", "q001", "q002"]}
    run = content["regimes"]["mixed"][1]
    assert (run["method"], run["seed"], run["n"], run["correct"]) == ("grpo", 1, 8, {"test_id": [1, 2, 7]})
    assert run["series"]["zero_gradient/percentage"] == {"0": 50.0, "1": 50.0}
    assert run["series"]["rollout/entropy"] == {"0": 0.3, "1": 0.2}
    # The fixture has one question per iteration: 0.1, 0.2, …
    assert run["diversity"]["original"] == {str(i): pytest.approx(0.1 * i + 0.1) for i in range(6)}
    assert run["hard_share"] == {}


def test_tables_have_a_row_per_seed(root):
    regime = ordered(digest(root), ["ta_grpo", "grpo"])["mixed"]
    assert regime.methods == ["ta_grpo", "grpo"]
    assert regime.pass_at_k("grpo", 1).to_numpy().tolist() == [[1 / 8, 2 / 8, 1.0], [1 / 8, 2 / 8, 7 / 8]]
    assert regime.pass_at_k("grpo", 8, "test_id").to_numpy().tolist() == [[1.0] * 3] * 2
    with pytest.raises(KeyError, match="runs of rloo"):
        regime.series("rloo", "rollout/entropy")


def test_quarters_are_those_of_the_runs_iterations():
    def run(seed, values):
        return {"method": "m", "seed": seed, "ledger": {"iterations": 8}, "series": {"x": values}}

    numbers = {str(i): float(i) for i in range(8)}
    regime = Regime([run(0, numbers), run(1, {k: v for k, v in numbers.items() if k != "7"})])
    assert regime.series("m", "x").columns.tolist() == list(range(7))
    assert regime.series("m", "x", "first").to_numpy().tolist() == [[0.0, 1.0]] * 2
    last = regime.series("m", "x", "last")
    assert last.to_numpy().tolist() == [[6.0]] * 2
    assert last.columns.tolist() == [0]


def test_the_share_of_hard_questions_by_hand(tmp_path):
    # Iteration 0: "a" has 1 of 4 correct and Σ|A| = 3, "b" 2 of 4 and Σ|A| = 1. Iteration 1 has no effort at all.
    rows = [(0, "a", i == 0, a) for i, a in enumerate((1.5, -0.5, -0.5, -0.5))]
    rows += [(0, "b", i < 2, a) for i, a in enumerate((0.25, 0.25, -0.25, -0.25))]
    rows += [(1, "c", True, 0.0)]
    frame = pd.DataFrame(rows, columns=["iteration", "question", "correct", "advantage"])
    frame = frame.assign(rephrasing=0, template="plain", answer="1", reward=frame["correct"].astype(float))
    (tmp_path / "rollouts").mkdir()
    frame.to_parquet(tmp_path / "rollouts" / "000000-0.parquet")
    assert hard_share(RunFiles("m", 0, tmp_path)).to_dict() == {0: pytest.approx(0.75)}


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="seed<k>"):
        digest(tmp_path)
