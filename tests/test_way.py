"""The way of a batch: how it is counted, and that it is short."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tagrpo.modules.losses import PolicyLoss
from tagrpo.types import Prompt, QuestionBatch, QuestionGroup
from tests.loading import script

pytestmark = pytest.mark.pages

LIMITS = {"roll-out": (13, 3), "update": (15, 3)}
"""Part of the way → most stays, most climbs."""


WAY = script("way")


@pytest.fixture(scope="module", params=["grpo", "ta_grpo"])
def ways(request):
    return WAY.ways([f"experiment={request.param}"])


@pytest.mark.parametrize("part", LIMITS)
def test_the_way_of_a_batch_is_short(part, ways):
    way = ways[part]
    stays, climbs = LIMITS[part]
    shown = "\n".join(way.lines())
    assert len(way.stays) <= stays, shown
    assert way.climbs <= climbs, shown
    assert len(way.stays) == way.files + way.returns


def test_the_batch_is_followed_from_the_callback_to_the_optimizer(ways):
    found = {part: [stay.file for stay in way.stays] for part, way in ways.items()}
    rolled_out, updated = found["roll-out"], found["update"]
    assert rolled_out[:2] == ["callbacks/rollout.py", "rollouts/pipeline.py"]
    assert {"rollouts/engines/transformers.py", "rollouts/scoring.py", "distributed.py"} < {*rolled_out}
    assert rolled_out[-1] == "runs/scalars.py", "what is logged was made from the batch"
    assert updated[:2] == ["modules/lightning/policy_module.py", "modules/update.py"]
    parts = {"modules/experience.py", "modules/advantages/group.py", "packing/batch.py", "packing/policy.py"}
    assert parts < {*updated}
    assert updated[-1] == "modules/update_stats.py", (
        "what comes after the last optimizer step is no part of it"
    )


def test_stays_returns_and_climbs_are_counted_by_functions_that_are_met_first(monkeypatch):
    floors = {"low": 0, "middle": 1, "high": 2}
    monkeypatch.setattr(WAY, "room_of", lambda file: file.partition("/")[0])
    monkeypatch.setattr(WAY, "floor_of", floors.__getitem__)
    way = WAY.Way()
    for file, function in [
        ("high/a.py", "begin"), ("high/a.py", "go"), ("middle/b.py", "work"), ("low/c.py", "help"),
        ("middle/b.py", "work"), ("low/c.py", "help"),  # a loop: nothing new is met
        ("middle/d.py", "work"), ("middle/b.py", "end"), ("high/a.py", "go"),
    ]:  # fmt: skip
        way.meet(file, function)
    assert [(stay.file, stay.functions) for stay in way.stays] == [
        ("high/a.py", ["begin", "go"]),
        ("middle/b.py", ["work"]),
        ("low/c.py", ["help"]),
        ("middle/d.py", ["work"]),
        ("middle/b.py", ["end"]),
    ]
    assert (len(way.stays), way.files, way.returns, way.climbs) == (5, 4, 1, 1)
    way.step()
    way.meet("high/a.py", "after")
    assert len(way.stays) == 5
    way.step()
    assert (len(way.stays), way.climbs) == (6, 2)


def test_a_value_is_followed_if_it_is_or_holds_a_part_of_the_batch():
    ids = torch.tensor([1])
    batch = QuestionBatch([QuestionGroup("a", "q", (), ("1",))], [Prompt(0, 0, "plain", "q", ids, ids, 2)])
    followed = WAY.Followed()
    followed.learn(batch)
    for value in (batch, ids, [ids], {"x": [ids]}, batch.prompts[0]):
        assert followed.has(value), value
    for value in (torch.tensor([1]), [1, "q", None], SimpleNamespace(x=ids), {}):
        assert not followed.has(value), value
    for part in (PolicyLoss(), torch.nn.Linear(1, 1)):
        followed.learn(part)
        assert not followed.has(part), "parts and weights are not followed"


def test_a_room_is_higher_than_those_that_it_imports_from():
    floors = {room: WAY.floor_of(room) for room in WAY.rooms()}
    for room, others in WAY.rooms().items():
        assert all(floors[other] < floors[room] for other in others if room != "."), room
    assert WAY.floor_of(".") == 0
    assert WAY.room_of("modules/lightning/policy_module.py") == "modules/lightning"
    assert WAY.room_of("rollouts/engines/base.py") == "rollouts"
    assert WAY.room_of("seeds.py") == "."
