"""What the adapters share: padding, passes, token weights, results; and the process that runs them."""

from __future__ import annotations

import json
import runpy
import shutil

import numpy as np
import pytest
import torch

from tagrpo.verify.trainers.installs import INSTALL
from tagrpo.verify.trainers.protocol import (
    UNBOUNDED,
    Batch,
    Exchange,
    Method,
    MethodSettings,
    Row,
    UnsupportedMethodError,
)
from tests.helpers import in_fork
from tests.verify.trainers.exchange import ADAPTERS, Reference, rows, write


def clipped_token_mean(exchange, settings):
    """GRPO's clipped term with the reward as the advantage, as an adapter would build it."""
    advantages = exchange.batch.rewards(exchange.dtype)[:, None] * exchange.batch.mask

    def loss(micro):
        ratio = (micro.scores.logprobs - micro.rows.old_logprobs).exp()
        bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
        terms = torch.minimum(ratio * micro.advantages, bounded * micro.advantages)
        part = -terms[micro.rows.mask].sum() / micro.whole.mask.sum()
        return part, {"rows": len(micro.rows), "first": micro.start}

    return Method(advantages=advantages, loss=loss, options=settings.with_defaults(epsilon=0.2))


def refused(exchange, settings):
    raise UnsupportedMethodError("needs a critic")


def broken(exchange, settings):
    raise KeyError("uid")


METHODS = {"reward": clipped_token_mean, "refused": refused, "broken": broken}


def exchanged(folder, methods, **settings):
    """Run the methods above; return the folder of results, and the formulas of the batch."""
    source = write(folder / "in", rows(), methods, **settings)
    Exchange.read(source, folder / "out").run("Mine", "1.0", METHODS)
    return folder / "out", Reference(source)


@pytest.mark.parametrize("micro_batch_rows", [1, 5, 14])
def test_padding_and_micro_batches_change_no_gradient(tmp_path, micro_batch_rows):
    out, reference = exchanged(tmp_path, {"reward": {}}, micro_batch_rows=micro_batch_rows)
    rewards = [row["reward"] for row in reference.batch]
    reference.check(out, "reward", reference.token_mean(reference.clipped(rewards)), rewards)


def test_no_number_of_rows_puts_all_in_one_micro_batch(tmp_path):
    source = write(tmp_path / "in", rows(), {"reward": {}}, micro_batch_rows=None)
    Exchange.read(source, tmp_path / "out").run("Mine", "1.0", METHODS)
    result = json.loads((tmp_path / "out" / "result.json").read_text())["methods"]["reward"]
    assert result["metrics"] == {"rows": 14.0, "first": 0.0}


def test_metrics_are_means_over_micro_batches_unless_the_adapter_reduces_them(tmp_path):
    out, _ = exchanged(tmp_path, {"reward": {}}, micro_batch_rows=5)
    result = json.loads((out / "result.json").read_text())["methods"]["reward"]
    assert result["metrics"] == {"rows": pytest.approx(14 / 3), "first": 5.0}


def test_entries_may_run_a_method_under_another_name(tmp_path):
    out, reference = exchanged(tmp_path, {"wide": {"method": "reward", "clip_high": 9.0}, "reward": {}})
    rewards = [row["reward"] for row in reference.batch]
    wide, usual = (reference.token_mean(reference.clipped(rewards, high=high)) for high in (9.0, 0.2))
    assert wide.item() != usual.item()
    reference.check(out, "wide", wide, rewards)
    reference.check(out, "reward", usual, rewards)


def test_a_method_that_fails_does_not_end_the_others(tmp_path):
    methods = {
        "unknown": {},
        "refused": {},
        "broken": {},
        "misspelled": {"method": "reward", "options": {"epsilom": 1}},
        "reward": {"options": {"epsilon": 0.1}},
    }
    out, _ = exchanged(tmp_path, methods)
    result = json.loads((out / "result.json").read_text())
    assert (result["trainer"], result["version"]) == ("Mine", "1.0")
    found = {name: entry["supported"] for name, entry in result["methods"].items()}
    assert found["unknown"] == "Mine 1.0 has no unknown"
    assert found["refused"] == "needs a critic"
    assert found["broken"] == "KeyError: 'uid'"
    assert "epsilom" in found["misspelled"]
    assert found["reward"] is True
    assert result["methods"]["reward"]["options"] == {"epsilon": 0.1}


def test_responses_without_a_reward_are_named(tmp_path):
    batch = rows(groups=(3,))
    batch[1]["reward"] = None
    source = write(tmp_path / "in", batch, {"reward": {}})
    Exchange.read(source, tmp_path / "out").run("Mine", "1.0", METHODS)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert "[1]" in result["methods"]["reward"]["supported"]


def test_a_reference_is_needed_for_a_divergence_alone(tmp_path):
    batch = rows(groups=(2, 2))
    source = write(tmp_path / "in", batch, {})
    Exchange.read(source, tmp_path).batch.require_reference()
    del batch[2]["reference_logprobs"]
    (source / "batch.json").write_text(json.dumps({"rows": batch}))
    exchange = Exchange.read(source, tmp_path)
    assert exchange.batch.reference_logprobs is None
    with pytest.raises(ValueError, match="reference_logprobs"):
        exchange.batch.require_reference()


def test_rows_are_padded_on_their_sides(tmp_path):
    batch = Exchange.read(write(tmp_path / "in", rows(), {}), tmp_path).batch
    assert batch.prompt_mask.sum(1).tolist() == [len(row.prompt_ids) for row in batch.rows]
    assert batch.lengths.tolist() == [len(row.response_ids) for row in batch.rows]
    assert bool(batch.prompt_mask[:, -1].all())
    assert bool(batch.mask[:, 0].all())
    for number, row in enumerate(batch.rows):
        assert batch.response_ids[number, : len(row.response_ids)].tolist() == row.response_ids
        assert batch.prompt_ids[number, batch.prompt_mask[number]].tolist() == row.prompt_ids
    np.testing.assert_array_equal(batch.old_logprobs[~batch.mask], 0.0)


def test_settings_of_a_method_default_to_grpos_clip_range():
    settings = MethodSettings()
    assert (settings.clip_low, settings.clip_high, settings.kl_coefficient) == (0.2, 0.2, 0.0)


ADAPTER = """
import wave                      # a module of the standard library, of the adapter's own name
from .protocol import Exchange

def run(exchange):
    (exchange.target / "found").write_text(wave.__name__ + " " + str(hasattr(wave, "Wave_read")))
"""


def test_an_adapter_may_have_the_name_of_its_trainer(tmp_path):
    """`python FOLDER`, as `runpy` runs it, puts the folder first on the path."""
    adapters = shutil.copytree(ADAPTERS, tmp_path / "adapters")
    (adapters / "wave.py").write_text(ADAPTER)
    source = write(tmp_path / "in", rows(groups=(2,)), {})
    (tmp_path / "out").mkdir()
    code, output = in_fork(
        lambda: runpy.run_path(str(adapters), run_name="__main__"), "wave", source, tmp_path / "out"
    )
    assert code == 0, output
    assert (tmp_path / "out" / "found").read_text() == "wave True"


@pytest.mark.parametrize("trainer", sorted(INSTALL))
def test_every_trainer_that_can_be_installed_has_an_adapter(trainer):
    assert (ADAPTERS / f"{trainer}.py").exists()
    if trainer != "trl":
        assert f".trainers/{trainer}/bin/python" in INSTALL[trainer]


def test_rewards_lie_at_the_last_token_of_each_response():
    given = [Row(**row, sampled_logprobs=[-1.0] * len(row["response_ids"])) for row in rows()]
    rewards = Batch.of(given, torch.float64).token_rewards(torch.float64)
    for row, values in zip(given, rewards.tolist(), strict=True):
        assert values[: len(row.response_ids)] == [0.0] * (len(row.response_ids) - 1) + [row.reward]
        assert not any(values[len(row.response_ids) :])


def test_no_bound_of_a_clip_range_is_one_that_no_ratio_reaches():
    assert MethodSettings(clip_low=None, clip_high=0.3).clip_range == (UNBOUNDED, 0.3)
    assert MethodSettings(clip_low=0.1, clip_high=None).clip_range == (0.1, UNBOUNDED)
