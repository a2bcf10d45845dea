"""One engine over a run: made once, given weights when they have changed, made anew after it was closed."""

from __future__ import annotations

from functools import partial
from itertools import count

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


def test_the_digest_is_taken_once_a_step_and_anew_when_weights_were_replaced(policy):
    synced = SyncedEngine(Engine, own_parameters, False)
    before = synced.weights_digest(policy, 0)
    with torch.no_grad():
        policy.weight += 1
    assert synced.weights_digest(policy, 0) == before
    after = synced.weights_digest(policy, 1)
    assert after != before
    with torch.no_grad():
        policy.weight -= 1
    synced.weights_replaced()
    assert synced.weights_digest(policy, 1) == before


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


def test_one_bit_of_one_weight_makes_another_digest():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2).bfloat16())
    synced, steps = SyncedEngine(Engine, own_parameters, False), count()
    digest = lambda: synced.weights_digest(module, next(steps))  # noqa: E731
    before = digest()
    assert digest() == before
    for parameter in module.parameters():
        old = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[0] = torch.nextafter(
                parameter.view(-1)[0], torch.tensor(9.0).to(parameter.dtype)
            )
        assert digest() != before
        with torch.no_grad():
            parameter.copy_(old)
    assert digest() == before
