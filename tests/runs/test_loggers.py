"""Loggers that a resumed run goes on with."""

from __future__ import annotations

import csv
import errno
import os
import resource
import signal
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tagrpo.runs.loggers import (
    MetricsCSV,
    ResumableLogger,
    ResumableTensorBoard,
)


def rows_of(directory: Path) -> list[str]:
    return (directory / "metrics.csv").read_text().splitlines()


def test_rows_are_on_disk_at_once_and_columns_may_come_later(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"b": 1.5, "epoch": 0}, step=0)
    assert rows_of(tmp_path) == ["b,epoch,step", "1.5,0,0"]
    logger.log_metrics({"a": 1 / 3}, step=1)
    logger.log_metrics({"b": 2.0}, step=2)
    assert rows_of(tmp_path) == ["a,b,epoch,step", ",1.5,0,0", "0.3333333333333333,,,1", ",2.0,,2"]


def test_a_resumed_run_drops_the_rows_after_its_checkpoint(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"a": 0.0}, step=0)
    logger.log_metrics({"a": 1.0}, step=1)
    state = logger.state_dict()
    logger.log_metrics({"a": 2.0}, step=2)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("3.0,")  # it died in the middle of a row
    resumed = MetricsCSV(tmp_path)
    resumed.load_state_dict(state)
    assert len(rows_of(tmp_path)) == 5, "nothing is lost before there is something to log"
    resumed.log_metrics({"a": 7.0}, step=2)
    assert rows_of(tmp_path) == ["a,step", "0.0,0", "1.0,1", "7.0,2"]
    assert resumed.state_dict() == {"rows": 3}


@pytest.mark.parametrize("kept", [None, 1, 25])
def test_rows_that_have_gone_are_missed_on_a_resume(kept, tmp_path):
    logger, path = MetricsCSV(tmp_path), tmp_path / "metrics.csv"
    for step in range(3):
        logger.log_metrics({"a": 0.125 * step}, step=step)
    (tmp_path / "checkpoints").mkdir()
    content = path.read_text()
    path.unlink() if kept is None else path.write_text(
        content[:kept] if kept > 1 else content.splitlines()[0]
    )
    resumed = MetricsCSV(tmp_path)
    with pytest.warns(UserWarning, match=rf"3 rows .* found {2 if kept == 25 else 0}: .* cut"):
        resumed.load_state_dict(logger.state_dict())
    resumed.log_metrics({"a": 9.0}, step=3)
    assert rows_of(tmp_path)[-1] == "9.0,3"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MetricsCSV(tmp_path / "elsewhere").load_state_dict({"rows": 3})  # a run that goes on there has none
    path.write_bytes(b"\xff\x00")
    with pytest.raises(ValueError, match=r"Expected a table in .*metrics.csv"):
        MetricsCSV(tmp_path).load_state_dict({"rows": 3})


def test_a_new_run_replaces_the_file_of_the_run_before(tmp_path):
    MetricsCSV(tmp_path).log_metrics({"old": 1.0}, step=0)
    logger = MetricsCSV(tmp_path)
    assert rows_of(tmp_path)[0] == "old,step"
    logger.log_metrics({"new": 2.0}, step=0)
    assert rows_of(tmp_path) == ["new,step", "2.0,0"]


def test_a_process_that_dies_while_it_adds_a_column_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    before = rows_of(tmp_path)
    monkeypatch.setattr(csv.DictWriter, "writeheader", lambda self: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if not child:
        logger.log_metrics({"b": 1.0}, step=1)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert rows_of(tmp_path) == before


def test_a_full_disk_is_explained(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="Make room") as raised:
            logger.log_metrics({"a": 2.0}, step=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno in (errno.EFBIG, errno.ENOSPC)


def test_which_loggers_are_resumed(tmp_path):
    assert isinstance(ResumableTensorBoard(tmp_path), ResumableLogger)
    assert not isinstance(CSVLogger(tmp_path), ResumableLogger)


def test_a_run_that_goes_on_within_a_second_shows_its_own_curve(tmp_path, monkeypatch):
    for number, (state, values) in enumerate([(None, [0.0, 1.0, 2.0, 3.0]), (1, [7.0])]):
        monkeypatch.setattr(os, "getpid", lambda number=number: [9, 10][number])  # "10" stands before "9"
        logger = ResumableTensorBoard(tmp_path, name="", version="tensorboard", default_hp_metric=False)
        logger.log_hyperparams({"seed": 0})
        if state is not None:
            logger.load_state_dict({"step": state})
        first = -1 if state is None else state
        for step, value in enumerate(values, first + 1):
            logger.log_metrics({"a": value}, step)
        logger.experiment.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(0, 0.0), (1, 1.0), (2, 7.0)]


@pytest.mark.parametrize("clock", [[5_000, 4_000, 3_000], [3_000, 3_000, 3_000], [3_000, 5_000, 4_000]])
def test_the_curve_of_a_run_does_not_depend_on_the_clocks_of_its_machines(clock, tmp_path, monkeypatch):
    for number, seconds in enumerate(clock):
        monkeypatch.setattr("time.time", lambda seconds=seconds: 1_700_000_000.0 + seconds)
        logger = ResumableTensorBoard(tmp_path, name="", version="tensorboard", default_hp_metric=False)
        if number:
            logger.load_state_dict({"step": 2 * number - 1})
        for step in range(2 * number, 2 * number + 4):  # the last two are of an attempt that died
            logger.log_metrics({"a": 10.0 * number + step}, step)
        logger.experiment.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    expected = [(0, 0.0), (1, 1.0), (2, 12.0), (3, 13.0), *((step, 20.0 + step) for step in range(4, 8))]
    assert [(event.step, event.value) for event in events.Scalars("a")] == expected


def test_a_writer_that_was_closed_is_followed_by_another_and_nothing_is_written_before_the_first_row(
    tmp_path,
):
    logger = ResumableTensorBoard(tmp_path, name="", version="tensorboard", default_hp_metric=False)
    logger.load_state_dict({"step": 3})
    logger.save()
    assert not (tmp_path / "tensorboard").exists()
    for step in (4, 5):
        logger.log_metrics({"a": float(step)}, step)
        logger.finalize("success")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("a")] == [4, 5]


ROWS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.floats(-9, 9), min_size=1), min_size=1, max_size=8
)


@given(ROWS, st.integers(0, 8), st.integers(0, 3))
@settings(max_examples=30)
def test_a_table_goes_on_from_any_split_whatever_came_after_it(rows, at, lost):
    def written(logger, rows, first=0):
        for step, row in enumerate(rows, first):
            logger.log_metrics(row, step)

    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as split:
        written(MetricsCSV(whole), rows)
        first, second = MetricsCSV(split), MetricsCSV(split)
        written(first, rows[:at])
        state = first.state_dict()
        written(first, rows[at : at + lost], at)
        second.load_state_dict(state)
        written(second, rows[at:], at)
        if at < len(rows):
            assert rows_of(Path(split)) == rows_of(Path(whole))
