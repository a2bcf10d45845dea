"""What a part from outside says when it fails reaches terminal and files without escape sequences and keys."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.cli.uncaught import UncaughtError, printed_safely, traceback_of
from tagrpo.runs.grid import tail_of
from tests.helpers import forked, grid_run

KEY = "a plain text, of 27 letters"
"""A key that its spelling does not tell; only the name of its variable does."""
PARTS = """
import os, sys, threading
from lightning.pytorch import Callback
from tagrpo.datamodules.sources.base import Source
from tagrpo.rewards import FinalAnswerReward
from tagrpo.types import AdvantageStrategy, RewardTerm

SAID = "Ünlike \\x1b[2J\\x1b]0;title\\x07\\r\\u202e " + os.environ["MY_API_KEY"]

class Advantage(AdvantageStrategy):
    def __init__(self, **_): pass
    def __call__(self, groups):
        try:
            {}[SAID]
        except KeyError as error:
            raise LookupError("first line\\n" + SAID) from error

class Reward(FinalAnswerReward):
    def __call__(self, response, reference):
        raise RuntimeError(SAID)

class Term(RewardTerm):
    def __call__(self, rollouts, groups):
        raise type("Mine\\x1b[2J", (Exception,), {})(SAID)

class Questions(Source):
    def __init__(self, **_): pass
    def load(self):
        raise ValueError(SAID)

class Exits(Callback):
    def on_train_batch_end(self, *_):
        sys.exit(SAID)

class Unraisable:
    def __del__(self):
        raise RuntimeError("finalizer " + SAID)

class Everywhere(Callback):
    def on_train_batch_end(self, *_):
        def fail():
            raise RuntimeError("thread " + SAID)
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        Unraisable()
        error = RuntimeError("main " + SAID)
        error.add_note(SAID)
        raise error
"""
SMALL = [
    "hydra.run.dir=run", "experiment=grpo", "iterations=1", "threads=1", "callbacks=[checkpoint]", "logger=csv",
    "data.train.size=4", "data.batch_size=2", "data.num_rephrasings=0", "data.samples_per_prompt=2", "test=false",
    "rollout.sampling.max_new_tokens=4", "trainer.limit_val_batches=0", "export=false",
    "+trainer.enable_progress_bar=false",
]  # fmt: skip


def check_output(said: str, folder: Path) -> None:
    assert r"Ünlike \x1b[2J" in said, said[-3000:]
    assert "<removed>" in said
    hidden = "".join(c for c in said if not c.isprintable() and c != "\n")
    assert hidden == ""
    for content in (
        said,
        *(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()),
    ):
        assert KEY not in content


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "bad.py").write_text(PARTS)
    monkeypatch.setenv("MY_API_KEY", KEY)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("override", "kinds"),
    [
        ("reward._target_=bad.Reward", ["RuntimeError: "]),
        ("+rollout.reward_terms.mine._target_=bad.Term", [r"Mine\x1b[2J: "]),
        ("data.train._target_=bad.Questions", []),
        ("+callbacks.mine._target_=bad.Exits", []),
        ("advantage._target_=bad.Advantage", ["KeyError: ", "LookupError: first line\n"]),
    ],
)
def test_the_error_of_a_part_is_printed_without_escapes_and_keys(folder, override, kinds):
    code, said = forked("train", *SMALL, override, folder=folder)
    assert code == 1
    check_output(said, folder / "run")
    assert all(kind in said for kind in kinds), said


@pytest.mark.runs
@pytest.mark.parametrize(
    ("override", "full", "kinds"),
    [
        ("advantage._target_=bad.Advantage", "0", ["KeyError: ", "LookupError: first line\n"]),
        ("+callbacks.mine._target_=bad.Everywhere", "1", ["thread ", "finalizer ", "main "]),
    ],
)
def test_the_interpreter_prints_errors_without_escapes_and_keys(folder, override, full, kinds):
    command = [Path(sys.executable).with_name("tagrpo-train"), *SMALL, override]
    environment = {**os.environ, "HYDRA_FULL_ERROR": full, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 1
    check_output(done.stderr, folder / "run")
    assert KEY not in done.stdout
    assert all(kind in done.stderr for kind in kinds), done.stderr
    assert 'bad.py", line' in done.stderr, "it says where"


def test_a_module_that_fails_when_it_is_imported_leaves_no_key_in_the_log(folder):
    (folder / "worse.py").write_text('import os\nraise RuntimeError(os.environ["MY_API_KEY"] + "\\x1b[2J")')
    code, said = forked("train", *SMALL, "reward._target_=worse.Reward", folder=folder)
    assert code == 1
    assert "worse.Reward" in said
    assert KEY not in said
    assert "\x1b" not in said
    assert not [path for path in folder.rglob("*.log") if KEY in path.read_text()]


@given(st.text())
def test_no_text_of_an_error_reaches_the_terminal_as_it_is(text):
    said = traceback_of(ValueError(text))
    assert said.startswith("ValueError")
    assert all(c.isprintable() or c == "\n" for c in said)


def test_the_hook_of_a_library_learns_of_the_error_but_not_of_its_text(monkeypatch):
    """That of W&B prints the error which it gets, and notes that the program has failed."""
    monkeypatch.setenv("MY_API_KEY", KEY)
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: seen.append(given))
    with pytest.raises(RuntimeError) as raised, printed_safely():
        raise RuntimeError(f"\x1b[2J{KEY}")
    sys.excepthook(raised.type, raised.value, raised.tb)
    ((kind, error, trace),) = seen
    assert (kind, trace) == (UncaughtError, None)
    assert r"RuntimeError: \x1b[2J<removed>" in str(error)
    assert KEY not in "".join(traceback.format_exception(error))


def test_an_error_whose_text_cannot_be_had_is_named():
    class Silent(Exception):
        def __str__(self):
            raise ValueError("no text")

    assert "Silent" in traceback_of(Silent())


def test_the_end_of_a_log_is_shown_without_escapes_and_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", KEY)
    run = grid_run(tmp_path, "a", "")
    run.directory.mkdir(parents=True)
    (run.directory / "log.txt").write_text(f"iteration 1 \x1b[2J{KEY}\nlast\x07\n")
    assert len(tail_of(run.directory / "log.txt", 5)) == 2
    run.state = "running"
    for said in (run.progress(), run.log_tail()):
        assert r"iteration 1 \x1b[2J<removed>" in said
        assert not {"\x1b", "\x07"} & set(said)
