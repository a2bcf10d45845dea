"""Tables of sampled responses reach TensorBoard and W&B as they were sampled."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_module
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tagrpo.callbacks import ResponseTable
from tagrpo.callbacks.response_table import COLUMNS, as_markdown, response_rows
from tagrpo.runs.loggers import ResumableTensorBoard
from tagrpo.types import Fields


def measure(callback, batch, loggers, iteration):
    trainer = SimpleNamespace(
        is_global_zero=True, loggers=loggers, fit_loop=SimpleNamespace(total_batch_idx=iteration)
    )
    return callback.measure(trainer, Fields("batch", batch), {})


def test_rows_are_spread_over_the_batch(make_batch):
    batch = make_batch([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.5], [0.0, 0.0]]])
    rows = response_rows(Fields("batch", batch), 3, 4)
    rollouts = batch.rollouts
    assert [row[4] for row in rows] == [rollouts.text[i] for i in (0, 3, 6, 9)]
    assert [row[2] for row in rows] == rollouts.rephrasing[[0, 3, 6, 9]].tolist()
    assert [row[7] for row in rows] == rollouts.rewards[[0, 3, 6, 9]].tolist()
    assert [row[1] for row in rows] == [batch.groups[i].id for i in rollouts.question[[0, 3, 6, 9]]]
    assert [row[3] for row in rows] == [rollouts.prompts[i].text for i in rollouts.prompt[[0, 3, 6, 9]]]
    assert all(len(row) == len(COLUMNS) and row[0] == 3 for row in rows)
    assert len(response_rows(Fields("batch", batch), 0, 100)) == 12


@pytest.mark.parametrize("kind", [TensorBoardLogger, ResumableTensorBoard])
def test_tensorboard_gets_a_table_every_few_iterations(tmp_path, make_batch, kind):
    logger = kind(str(tmp_path), name="", version="tensorboard")
    callback = ResponseTable(every=2, responses=3)
    for iteration in range(4):
        assert (
            measure(callback, make_batch([[[1.0, 0.0, 1.0, 0.0]]]), [logger, CSVLogger(tmp_path)], iteration)
            == {}
        )
        logger.log_metrics({"x": 1.0}, iteration)
    logger.save()
    logger.finalize("success")
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert found.Tags()["tensors"] == ["rollout/responses/text_summary"]
    events = found.Tensors("rollout/responses/text_summary")
    assert [event.step for event in events] == [0, 2]
    text = events[1].tensor_proto.string_val[0].decode()
    assert len(text.splitlines()) == 2 + 3


def test_wandb_gets_a_table(make_batch, monkeypatch):
    logged = []
    logger = WandbLogger(offline=True)
    monkeypatch.setattr(WandbLogger, "log_table", lambda self, key, **table: logged.append((key, table)))
    text = ["lone \ud800", "x" * 3000, "c", "d"]
    batch = make_batch([[[1.0, 0.0, 1.0, 0.0]]])
    batch = replace(batch, rollouts=replace(batch.rollouts, text=text))
    measure(ResponseTable(every=1, responses=2), batch, [logger], 5)
    ((key, table),) = logged
    assert (key, table["columns"], table["step"]) == ("rollout/responses", list(COLUMNS), 5)
    assert [row[4] for row in table["data"]] == ["lone ?", "c"]


def test_what_a_model_wrote_stays_in_its_cell():
    texts = ["a | b", "</td><script>x</script>", "two\nlines", "`code` | **bold**"]
    table = as_markdown([[0, text, 1, text, text, text, True, 0.5] for text in texts])
    lines = table.splitlines()
    assert len(lines) == 2 + len(texts)
    assert all(line.count("|") == len(COLUMNS) + 1 for line in lines)
    assert "<script" not in table


def test_the_option_composes():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        config = compose("train", ["callbacks=[default,response_table]", "callbacks.response_table.every=5"])
    assert config.callbacks.response_table.every == 5
    assert "recorder" in config.callbacks


@pytest.mark.parametrize("wrong", [{"every": 0}, {"responses": 0}])
def test_numbers_below_one_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"callbacks.response_table.{name}.*0"):
        ResponseTable(**wrong)
