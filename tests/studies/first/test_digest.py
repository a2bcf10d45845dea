"""What the digest says of runs beyond their counts, and the check of a repeated run."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
import yaml

from studies.first.digest import digest
from studies.first.page import main, page
from studies.first.regimes import Regime, load, write
from studies.first.rerun import first_difference


def add(path, seed, weight=1.0):
    """What `tagrpo-compare` and training leave beside what `write_run` writes."""
    (path / ".hydra").mkdir()
    noted = {"overrides": {"task": [f"seed={seed}"], "hydra": [f"hydra.run.dir={path}"]}, "job": {"name": "train"}}
    (path / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": noted}))
    record = {"settings": ["-m", "tagrpo.train"], "finished": True, "starts": 2, "versions": {}}
    (path / "run.json").write_text(json.dumps(record))
    (path / "checkpoints").mkdir()
    weights = {"state_dict": {"policy.w": torch.tensor([weight, 2.0])}}
    torch.save(weights, path / "checkpoints" / "iteration-000004.ckpt")
    ledger = json.loads((path / "ledger.json").read_text()) | {"iterations": 4}
    (path / "ledger.json").write_text(json.dumps(ledger))
    frame = pd.read_csv(path / "metrics.csv").assign(step=[0, 3, 4])
    for n in range(3):
        frame[f"rephrasing/{n}/ratio"] = [1.0 + n, 2.0 + n, None]
    frame.to_csv(path / "metrics.csv", index=False)
    return path


@pytest.fixture
def root(tmp_path, write_run):
    for seed in (0, 1):
        add(write_run(tmp_path / "mixed", "ta_grpo", seed, [3, 4, 5], 32), seed)
    return tmp_path


def test_an_entry_keeps_quarters_starts_and_a_fingerprint_of_its_weights(root):
    first, second = digest(root)["regimes"]["mixed"]
    # Of four iterations the first and the last were logged: a quarter each.
    assert first["quarters"]["original/ratio"] == [1.0, 2.0]
    assert first["quarters"]["rephrasings/ratio"] == [2.5, 3.5], "the mean of the two rephrasings"
    assert first["quarters"]["train/grad_norm"] == [1.0, 2.0]
    assert Regime([first, second]).quarters("ta_grpo", "original/ratio").to_numpy().tolist() == [[1.0, 2.0]] * 2
    assert first["starts"] == 2
    assert first["weights"] == second["weights"]
    assert len(first["weights"]) == 16


def test_runs_that_did_not_finish_are_named_and_their_numbers_left_out(root, write_run):
    broken = write_run(root / "mixed", "grpo", 0, [1, 1, 1], 32)
    record = {"settings": ["-m", "tagrpo.train", "name=grpo"], "finished": False, "starts": 3}
    (broken / "run.json").write_text(json.dumps(record))
    never = root / "hard" / "grpo" / "seed4"
    never.mkdir(parents=True)
    (never / "run.json").write_text(json.dumps(record))
    content = digest(root)
    assert [run["method"] for run in content["regimes"]["mixed"]] == ["ta_grpo"] * 2
    assert [(run["place"], run["starts"]) for run in content["unfinished"]] == [
        ("hard/grpo/seed4", 3), ("mixed/grpo/seed0", 3),
    ]  # fmt: skip
    text = page(content, [])
    assert "| hard/grpo/seed4 | 3 | `python -m tagrpo.train name=grpo` |" in text
    assert "| mixed/grpo/seed0 | 3 |" in text


def test_a_rerun_is_compared_to_the_bit(root, write_run, tmp_path_factory, capsys):
    write(digest(root), root / "digest.json")
    elsewhere = tmp_path_factory.mktemp("again")
    same = add(write_run(elsewhere, "ta_grpo", 1, [3, 4, 5], 32), 1)
    content = load(root / "digest.json")
    assert first_difference(same, content) is None
    checked = ["--digest", str(root / "digest.json"), "--check"]
    assert main([*checked, str(same)]) == 0
    counts = add(write_run(elsewhere / "counts", "ta_grpo", 1, [3, 4, 6], 32), 1)
    assert first_difference(counts, content) == "correct/test_id is [3, 4, 6], but [3, 4, 5] in the digest"
    weights = add(write_run(elsewhere / "weights", "ta_grpo", 1, [3, 4, 5], 32), 1, weight=1.0000001)
    assert first_difference(weights, content).startswith("weights is ")
    assert main([*checked, str(weights)]) == 1
    assert "but" in capsys.readouterr().out
    foreign = add(write_run(elsewhere / "foreign", "ta_grpo", 7, [3, 4, 5], 32), 7)
    with pytest.raises(ValueError, match="seed=7"):
        first_difference(foreign, content)


def test_methods_that_came_out_equal_are_named(root, write_run):
    for seed in (0, 1):
        add(write_run(root / "mixed", "exposure", seed, [3, 4, 5], 32), seed)
    assert "exposure and ta_grpo are one method under two names" in page(digest(root), [])
