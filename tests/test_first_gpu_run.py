"""benchmarks/first_gpu_run.sh: whatever a step does, the next one starts and a page is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "first_gpu_run.sh"
STEPS = [
    "machine", "short", "same32", "same16", "train", "padded", "compiled", "tests", "resume", "4b", "offload", "lora",
]  # fmt: skip
FAKE = """#!/bin/sh
case "$*" in *first_gpu_page*) exec $REAL "$@" ;; esac
echo "$*" >>"$CALLS"
step=$(wc -l <"$CALLS")
if [ "$step" = "$FAILS" ]; then echo "the reason"; exit 3; fi
if [ "$step" = "$HANGS" ]; then trap "" TERM; sleep 60 & wait; sleep 60; fi
"""
"""Plays Python: step FAILS fails, step HANGS neither ends nor listens."""


@pytest.fixture
def first(tmp_path):
    """Runs the script with a Python that is played; returns what it printed, the calls, and the folder of results."""
    python = tmp_path / "python"
    python.write_text(FAKE)
    python.chmod(0o755)

    def run(*steps, **variables):
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {
            **os.environ, "PYTHON": str(python), "REAL": sys.executable, "OUT": str(tmp_path / "out"),
            "RUN": str(tmp_path / "run"), "SITE": str(tmp_path / "site"), "CALLS": str(calls), "FAILS": "0",
            "HANGS": "0", "SKIP_INSTALL": "1", **variables,
        }  # fmt: skip
        found = subprocess.run(
            ["bash", SCRIPT, *steps], env=environment, capture_output=True, text=True, check=False
        )
        return found, calls.read_text().splitlines(), tmp_path / "out"

    return run


def outcomes(folder):
    """(name, outcome) of each step."""
    lines = (folder / "gpu-steps.tsv").read_text().splitlines()
    return [tuple(line.split("\t")[:2]) for line in lines]


def test_all_steps_run_in_order_and_the_page_lists_them(first):
    found, calls, folder = first()
    assert found.returncode == 0, found.stderr
    assert outcomes(folder) == [(name, "done") for name in STEPS]
    assert len(calls) == len(STEPS)
    for name in STEPS:
        assert f"| {name} | done |" in found.stdout
    assert found.stdout.endswith((folder / "gpu-page.md").read_text())


@pytest.mark.parametrize("failing", range(len(STEPS)))
def test_a_step_that_fails_or_hangs_stops_no_other(first, failing):
    expected = [(name, "done") for name in STEPS]
    expected[failing] = (STEPS[failing], "FAILED")
    found, calls, folder = first(FAILS=str(failing + 1))
    assert found.returncode == 1
    assert outcomes(folder) == expected
    assert len(calls) == len(STEPS)
    assert f"| {STEPS[failing]} | FAILED |" in found.stdout
    assert "last line: `the reason`" in found.stdout


@pytest.mark.parametrize("hanging", [0, 4, len(STEPS) - 1])
def test_a_step_that_hangs_is_killed_and_the_next_one_goes_on(first, hanging):
    found, calls, folder = first(HANGS=str(hanging + 1), STEP_SECONDS="1")
    assert found.returncode == 1
    assert dict(outcomes(folder))[STEPS[hanging]] == "too long"
    assert len(calls) == len(STEPS)
    with tarfile.open(folder / "gpu.tar.gz") as archive:
        assert {f"gpu-{name}.log" for name in STEPS} | {"gpu-page.md"} <= set(archive.getnames())


def test_no_step_begins_when_the_time_is_up_and_the_page_says_so(first):
    began = time.monotonic()
    found, calls, folder = first(HANGS="2", TOTAL="16")
    assert time.monotonic() - began < 60, (
        "the second step took what was left, not its own limit and not a minute"
    )
    assert outcomes(folder)[:2] == [("machine", "done"), ("short", "too long")]
    assert set(outcomes(folder)[2:]) == {(name, "no time left") for name in STEPS[2:]}
    assert len(calls) == 2
    assert "| lora | no time left |" in found.stdout


def test_packages_are_installed_from_the_folder_of_wheels_and_from_no_index(first, tmp_path):
    _, calls, folder = first("machine", SKIP_INSTALL="", WHEELS=str(tmp_path / "wheels"))
    assert outcomes(folder) == [("install", "done"), ("machine", "done")]
    assert "--no-index --no-deps" in calls[0]
    assert calls[0].endswith(f"{tmp_path / 'wheels'}/*.whl")


def test_half_written_results_do_not_cost_the_page(first):
    _, _, folder = first("machine", "short")
    for name, text in {
        "gpu-short.json": "[{",
        "gpu-machine.json": '{"card": "a card"}',
        "gpu-same32.json": "{}",
    }.items():
        (folder / name).write_text(text)
    (folder / "gpu-steps.tsv").write_text(
        "machine\tdone\t1\nshort\ttoo long\t90\nsame32\tdone\t2\ntrain\tFAILED\t3\n"
    )
    (folder / "gpu-train.csv").write_text("step,train/loss\n")
    (folder / "gpu-train.log").write_bytes(b"out of | memory \xff\n")
    (folder / "gpu-same32.json").write_text(json.dumps({"seconds": {"padded": 1.0}}))
    found = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "first_gpu_page.py", folder],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "| card | a card |" in found
    assert "| same32 | done | 2 | unreadable (KeyError) |" in found
    assert "no iteration; last line: `out of / memory" in found


@pytest.mark.parametrize("steps", [pytest.param(["machine", "short"], id="quick"),
                                   pytest.param(STEPS, id="whole", marks=pytest.mark.slow)])  # fmt: skip
def test_the_steps_run_on_a_cpu_with_tiny_shapes(steps, tmp_path):
    environment = {
        **os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path / "out"), "RUN": str(tmp_path / "run"),
        "SMALL": "1", "SKIP_INSTALL": "1", "TOTAL": "1800", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    found = subprocess.run(
        ["bash", SCRIPT, *steps], env=environment, capture_output=True, text=True, check=False
    )
    assert outcomes(tmp_path / "out") == [(name, "done") for name in steps], found.stdout[-3000:]
    assert found.returncode == 0
    assert "3 of 3 kernels agree with float32" in found.stdout
    assert "| torch |" in found.stdout


def test_with_a_second_card_a_server_takes_weights(first):
    found, calls, folder = first("machine", SERVER_CARD="1")
    assert found.returncode == 0, found.stderr
    assert outcomes(folder) == [("machine", "done"), ("server", "done")]
    _, served, trained = calls
    assert "tagrpo.rollouts.transfer.flags src/starter --dtype bfloat16" in served
    assert {"rollout=vllm_server", "rollout.engine.check_weights=true"} <= set(trained.split())
