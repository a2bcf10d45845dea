"""Adapters' processes: what they get, what they may return, and how they fail."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import save_file

from tagrpo.foreign import ForeignDataError
from tagrpo.verify import adapters
from tagrpo.verify.adapters import ask, has_module, known_trainers, read_answer, write_exchange
from tagrpo.verify.batch import small_batch
from tagrpo.verify.models import logprobs_of, models_for

ENTRY = {
    "supported": True,
    "advantages": [[1.0]],
    "token_weights": [[-0.5]],
    "loss": 0.25,
    "metrics": {"a": 1.5},
}


def write(folder, **change):
    result = {"trainer": "x", "version": "1", "methods": {"grpo": {**ENTRY, **change}}}
    (folder / "result.json").write_text(json.dumps(result))
    save_file({"w": torch.tensor([1.0, -2.0])}, folder / "gradient_grpo.safetensors")


def test_an_answer_is_read_with_its_gradient(tmp_path):
    write(tmp_path)
    answer = read_answer("x", tmp_path)
    outcome = answer.outcomes["grpo"]
    assert (answer.version, outcome.loss, outcome.metrics) == ("1", 0.25, {"a": 1.5})
    assert outcome.gradient["w"].tolist() == [1.0, -2.0]
    write(tmp_path, supported="has none")
    assert read_answer("x", tmp_path).reasons == {"grpo": "has none"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": "low"}, "loss"),
        ({"advantages": [["a"]]}, "advantages"),
        ({"token_weights": 3}, "token_weights"),
        ({"loss": float("nan")}, "JSON"),
    ],
)
def test_an_answer_that_breaks_the_protocol_is_refused_by_its_field(change, said, tmp_path):
    write(tmp_path, **change)
    with pytest.raises(ForeignDataError, match=said):
        read_answer("x", tmp_path)


def test_a_missing_answer_is_refused(tmp_path):
    with pytest.raises(ForeignDataError, match=r"trainers/x\.py"):
        read_answer("x", tmp_path)


def test_the_exchange_has_rows_settings_model_and_log_probs_of_the_reference(tmp_path):
    batch, models = models_for(small_batch(), None, 1.0)
    write_exchange(tmp_path, batch, models, {"temperature": 1.0, "methods": {}})
    rows = json.loads((tmp_path / "batch.json").read_text())["rows"]
    assert [row["response_ids"] for row in rows] == [row.response_ids for row in batch.rows]
    expected = logprobs_of(models.reference, [rows[3]["prompt_ids"]], [rows[3]["response_ids"]], 1.0)[0]
    assert rows[3]["reference_logprobs"] == expected.tolist()
    assert (tmp_path / "model" / "model.safetensors").is_file()


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write the program of an adapter's process."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    monkeypatch.setattr(adapters, "SCRIPTS", folder)
    return (folder / "__main__.py").write_text


def test_a_process_that_fails_is_named_with_its_last_line_and_the_command(script, tmp_path):
    script("raise RuntimeError('no such thing')")
    with pytest.raises(RuntimeError, match=r"x's adapter.*no such thing"):
        ask("x", sys.executable, tmp_path, tmp_path / "out")


def test_an_interpreter_that_does_not_run_names_its_setting(script, tmp_path):
    script("")
    with pytest.raises(RuntimeError, match=r"trainers\.x"):
        ask("x", str(tmp_path / "none"), tmp_path, tmp_path / "out")


def test_a_process_sees_no_key_of_the_user(script, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_API_KEY", "abc")
    script("import os, sys\nsys.exit('SEEN' if 'SECRET_API_KEY' in os.environ else 'hidden')")
    with pytest.raises(RuntimeError, match="hidden"):
        ask("x", sys.executable, tmp_path, tmp_path / "out")


def test_modules_are_found_without_an_import():
    assert has_module(sys.executable, "json")
    assert not has_module(sys.executable, "no_such_module_at_all")
    assert {"trl", "verl"} <= set(known_trainers())
    assert "protocol" not in known_trainers()
