"""The benchmarks measure what they say: ways with the same gradient, and work that is that of distinct tokens."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import tables  # noqa: E402
import weight_stream  # noqa: E402
from workload import WAYS, Experience, Updates, experience, peak_memory  # noqa: E402

pytestmark = pytest.mark.pages

SHAPE = argparse.Namespace(
    questions=2, responses=4, prompt=12, mean=8, max=20, model="tiny", vocabulary=128, token_budget=96,
    checkpointing=False, compile=False, device="cpu", dtype="float32", seed=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def updates():
    data = experience(SHAPE)
    advantages = torch.where(data.prompt == 0, data.advantages, 0.0)
    return Updates(SHAPE, Experience(data.prompts, data.prompt, data.responses, advantages))


def gradient(updates, way):
    updates.model.zero_grad()
    updates.run(way)
    return updates.gradient()


def test_every_way_that_is_timed_has_the_same_gradient(updates):
    reference = gradient(updates, "trl")
    assert reference.norm() > 0
    for way in (*WAYS[1:], "dropped"):
        assert (gradient(updates, way) - reference).norm() < 1e-4 * reference.norm(), way


def test_compiled_layers_are_used_by_packed_ways_alone(updates, monkeypatch):
    layer, calls = updates.model.model.layers[0], []
    original = layer.forward

    def compiled(*arguments, **more):
        calls.append(way)
        return original(*arguments, **more)

    monkeypatch.setattr(updates, "compiled", {layer: compiled})
    for way in ("prefix_shared", "padded", "padding_free", "trl", "dropped", "trl_shared"):
        updates.run(way)
    assert {*calls} == {"prefix_shared", "padding_free", "dropped"}
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("way", ["prefix_shared", "trl_shared"])
def test_a_prefix_shared_update_multiplies_distinct_tokens_and_nothing_twice(updates, way):
    linear = [m for m in updates.model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    layers = sum(m.weight.numel() for m in linear)
    head = updates.model.lm_head.weight.numel()
    tokens = updates.data.tokens
    updates.model.zero_grad()
    # torch does not count products that are added in place.
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        updates.run(way)
    counted = {str(op): flop for op, flop in counter.get_flop_counts()["Global"].items()}
    products = sum(flop for op, flop in counted.items() if "attention" not in op)
    encoded = tokens["distinct"]
    states = tokens["states"]
    if way == "trl_shared":  # four micro-batches of two rows, which answer one prompt and begin differently
        assert [len(part["prompt_ids"].unique(dim=0)) for part in updates.trainer._buffered_inputs] == [1] * 4
        encoded = tokens["response"] - len(updates.data.responses) + 4 * SHAPE.prompt
        states = tokens["response"] - 4
    assert products == 6 * layers * encoded + 6 * head * states


def test_the_page_says_what_was_measured_and_what_its_formula_gives():
    text = tables.DOCUMENT.read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", text.split("## When the call helps")[1].split("\n## ")[0], re.MULTILINE
    )
    assert len(rows) == 7
    for name, row in rows:
        found = json.loads((tables.RESULTS / f"trl_shared_{name}.json").read_text())
        shape, response = argparse.Namespace(**found["shape"]), found["tokens"]["response"]
        b, s, p, t, m, v, products, formula, measured = (float(x.replace(",", "")) for x in row.split(" | "))
        assert (p, m, v, t) == (
            shape.prompt,
            shape.max,
            shape.vocabulary,
            round(response / len(experience(shape).prompt)),
        )
        assert b <= shape.token_budget // (p + m)
        assert s == max(b // shape.responses, 1)
        head = v * tables.MODELS[shape.model][0]
        layers, mean = found["parameters"] - head, response / len(experience(shape).prompt)
        padded, predicted, shared = b * (p + m), b * (p + m - 1), s * p + b * mean
        alone = 3 * layers * padded + 4 * head * predicted, 3 * layers * shared + 3 * head * b * mean
        assert alone[0] / alone[1] == pytest.approx(products, abs=0.006)
        theirs = 4.5 * layers * padded + (4 * head + 1400 * v) * predicted
        ours = 4.5 * layers * shared + (3 * head + 100 * v) * b * mean
        assert theirs / ours == pytest.approx(formula, abs=0.006)
        assert found["speedup"]["trl_shared over trl"]["median"] == pytest.approx(measured, abs=0.006)
        assert formula == pytest.approx(measured, rel=0.15)


def test_peak_memory_sees_what_was_held_and_given_back():
    def hold():
        torch.ones(16 << 20)

    assert 60 << 20 < peak_memory(hold) < 80 << 20
    assert peak_memory(lambda: None) < 4 << 20


def test_the_document_has_a_place_for_every_table():
    text = tables.DOCUMENT.read_text()
    for name in tables.TABLES:
        assert f"<!-- begin {name} -->" in text, name


def test_weights_over_tcp_are_compared_with_a_plain_socket_for_one_and_two_receivers():
    rows = weight_stream.compared([1e-3, 2e-3], tensors=3, rounds=2)
    ways = [(row["gigabytes"], row["way"], row["receivers"]) for row in rows]
    expected = [
        (size, way, count) for size in (1e-3, 2e-3) for count in (1, 2) for way in ("plain", "stream")
    ]
    assert sorted(ways) == sorted(expected)
    for row in rows:
        assert row["gb_per_s_each"] > 0
        assert row["way"] != "plain" or row["of_plain"] == 1.0
        assert row["receivers"] == 2 or row["of_one_receiver"] == 1.0
