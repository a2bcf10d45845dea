"""One engine over a run: made once, given weights when they have changed, made anew after it was closed."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tagrpo import types
from tagrpo.rollouts.engines.synced import SyncedEngine, own_parameters

MADE = []


class Engine(types.Engine):
    def __init__(self):
        self.synced, self.calls = [], []
        MADE.append(self)

    def sync(self, parameters):
        self.synced.append({name: float(tensor) for name, tensor in parameters})

    def generate(self, request, deliver=types.ignore):
        return []

    def sleep(self):
        self.calls.append("sleep")

    def close(self):
        self.calls.append("close")


@pytest.fixture
def policy():
    MADE.clear()
    policy = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(policy.weight)
    return policy


def test_weights_follow_the_steps_and_a_closed_engine_is_made_anew(policy):
    synced = SyncedEngine(Engine, own_parameters, False)
    synced.sleep()
    synced.close()
    assert MADE == [], "nothing is made before it is needed"
    first = synced.at(policy, 0)
    with torch.no_grad():
        policy.weight += 1
    assert synced.at(policy, 0) is first
    assert synced.at(policy, 1) is first
    assert first.synced == [{"weight": 0.0}, {"weight": 1.0}]
    synced.weights_replaced()
    synced.at(policy, 1)
    assert len(first.synced) == 3
    synced.sleep()
    synced.close()
    assert first.calls == ["sleep", "close"]
    assert synced.at(policy, 1) is MADE[1]
    assert MADE[1].synced == [{"weight": 1.0}]


def test_a_class_is_refused_when_the_run_is_built_and_an_object_when_it_is_made(policy):
    class Half:
        def sync(self, parameters):
            pass

    for make in (Half, partial(Half)):
        with pytest.raises(TypeError, match=r"rollout\.engine"):
            SyncedEngine(make, own_parameters, False)
    with pytest.raises(ValueError, match=r"rollout\.ahead, but Engine shares"):
        SyncedEngine(partial(Engine), own_parameters, True)
    made = Engine()
    late = SyncedEngine(lambda: made, own_parameters, True)
    with pytest.raises(ValueError, match=r"rollout\.ahead, but Engine shares"):
        late.at(policy, 0)


def test_an_engine_that_was_made_in_a_validation_takes_weights_later(policy):
    class Model(Engine):
        def __init__(self):
            self.weight = torch.zeros(1, 1)

        def sync(self, parameters):
            self.weight.copy_(dict(parameters)["weight"])

    synced = SyncedEngine(Model, own_parameters, False)
    with torch.inference_mode():
        synced.at(policy, 0)
    with torch.no_grad():
        policy.weight += 1
    assert synced.at(policy, 1).weight.item() == 1.0
