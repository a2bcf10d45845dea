"""Runs that end at any of their writes go on as if nothing had been; all points take an hour."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tagrpo.starter import starter_path

SCRIPT = Path(__file__).parents[1] / "scripts" / "crash_points.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the calls are counted by a library in C"),
]


def driven(folder: Path, *options: str, code: int = 0) -> list[dict]:
    """What became of each attempt."""
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout + result.stderr[-3000:]
    return [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines()]


def test_a_run_that_is_killed_after_any_call_goes_on_bit_for_bit(tmp_path):
    done = {
        "what": "kill",
        "ranks": 1,
        "point": 40,
        "of": 900,
        "call": "before",
        "codes": [],
        "outcome": "same",
    }
    (tmp_path / "outcomes.jsonl").write_text(json.dumps(done) + "\n")
    tried = driven(tmp_path, "--first", "40", "--every", "170")
    calls = (tmp_path / "points.txt").read_text()
    assert 4 < len(tried) == len(range(40, calls.count("\n") + 1, 170))
    assert all(one["codes"] == [-signal.SIGKILL] for one in tried[1:])
    assert {"write", "fsync", "rename", "unlink", "mkdir"} <= {line.split()[0] for line in calls.splitlines()}
    for call in ("rename /checkpoints/iteration-000002.ckpt", "fsync /metrics.csv", "fsync /checkpoints\n"):
        assert call in calls
    trained = load_file(tmp_path / "undisturbed" / "model" / "model.safetensors")
    start = load_file(Path(starter_path()) / "model.safetensors")
    assert not any(torch.equal(trained[name], start[name]) for name in trained if name in start)


@pytest.mark.parametrize("what", ["interrupt", "full", "broken"])
def test_a_run_that_is_interrupted_or_refused_at_any_call_goes_on_bit_for_bit(what, tmp_path):
    assert len(driven(tmp_path, "--what", what, "--first", "7", "--every", "60")) > 10


@pytest.mark.distributed
def test_two_ranks_of_which_one_is_killed_after_any_call_go_on_bit_for_bit(tmp_path):
    assert len(driven(tmp_path, "--ranks", "2", "--every", "101")) > 5


def test_it_is_noticed_where_files_are_written_in_place(tmp_path):
    (one,) = driven(tmp_path, "--in-place", "--first", "300", "--every", "2000", code=1)
    assert one["call"] == "write /checkpoints/iteration-000001.ckpt"
    assert one["outcome"] == "checkpoints.previous/iteration-000001.ckpt is too much"
