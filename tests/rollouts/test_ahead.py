"""Sampling beside the update: which weights sample what, when it is waited for, and what survives a restart."""

from __future__ import annotations

import threading

import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo import types
from tagrpo.rollouts import EngineError, RolloutPipeline, SamplingConfig, TransformersEngine
from tagrpo.rollouts.ahead import Block, Generation, Queue
from tagrpo.rollouts.engines.cached import CachedEngine
from tagrpo.rollouts.responses import request_key
from tagrpo.types import Prompt, QuestionBatch, QuestionGroup, Request, Score, Seconds
from tests.helpers import WaitingEngine


class Even(types.Verifier):
    def __call__(self, response, reference):
        return Score(int(response) % 2 == 0, response)


def make_pipeline(engine, ahead=1):
    decode = lambda token_ids: [str(int(ids[0])) for ids in token_ids]  # noqa: E731
    return RolloutPipeline(lambda: engine, Even(), decode, SamplingConfig(max_new_tokens=4), ahead=ahead)


def cached(engine, folder):
    return CachedEngine(lambda: engine, folder, lambda: 0)


def asking(question):
    ids = torch.tensor([question])
    groups = [QuestionGroup(str(question), "q", (), ("0",))]
    return QuestionBatch(groups=groups, prompts=[Prompt(0, 0, "plain", "q", ids, ids, 2)])


def make_policy(weight=0.0):
    policy = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(policy.weight, weight)
    return policy


def update(policy):
    with torch.no_grad():
        policy.weight += 3


def sampled_by(rollouts):
    (weight,) = {int(ids[0]) for ids in rollouts.token_ids}
    return weight


def test_the_engine_samples_beside_the_update_with_the_weights_from_before_it():
    updated = threading.Event()
    engine, policy = WaitingEngine(updated), make_policy()
    pipeline = make_pipeline(engine)
    found = []
    for step in range(3):
        updated.clear()
        rollouts = pipeline.roll_out(asking(step), policy, 3 * step).rollouts
        found.append(
            (sampled_by(rollouts), rollouts.staleness.tolist(), pipeline.scalars["rollout/staleness"])
        )
        if step < 2:
            pipeline.sample_next([asking(step + 1)], policy, 3 * step, rollouts.seconds)
        update(policy)
        updated.set()
        pipeline.following.wait(rollouts.seconds)
        assert set(rollouts.seconds) >= ({"wait"} if step < 2 else {"score"})
    assert found == [(0, [0, 0], 0.0), (0, [3, 3], 3.0), (3, [3, 3], 3.0)]
    assert engine.calls == [("generate", 0, [0]), ("generate_async", 0, [1]), ("generate_async", 3, [2])]
    assert pipeline.ledger["rollouts"] == 6, "counted when it is learned from"


def test_evaluation_waits_and_gets_the_weights_of_its_time():
    engine, policy = WaitingEngine(), make_policy()
    pipeline = make_pipeline(engine)
    first = pipeline.roll_out(asking(0), policy, 0).rollouts
    pipeline.sample_next([asking(1)], policy, 0, first.seconds)
    update(policy)
    assert sampled_by(pipeline.evaluate(asking(50), policy, 3, ("validate", 0, 0)).rollouts) == 3
    assert sampled_by(pipeline.roll_out(asking(1), policy, 3).rollouts) == 0


def test_a_failure_is_raised_when_the_batch_is_needed_and_that_batch_can_be_sampled_anew():
    engine, policy = WaitingEngine(fail_at=[1]), make_policy()
    pipeline = make_pipeline(engine)
    first = pipeline.roll_out(asking(0), policy, 0).rollouts
    pipeline.sample_next([asking(1)], policy, 0, first.seconds)
    update(policy)
    pipeline.following.wait(first.seconds)
    state = pipeline.state_dict()
    with pytest.raises(EngineError, match="gone"):
        pipeline.roll_out(asking(1), policy, 3)
    assert sampled_by(pipeline.roll_out(asking(1), policy, 3).rollouts) == 3
    resumed = make_pipeline(WaitingEngine())
    resumed.load_state_dict(state)
    assert sampled_by(resumed.roll_out(asking(1), policy, 3).rollouts) == 3


def test_a_state_holds_the_responses_and_the_resumed_run_learns_from_them(tmp_path):
    policy = make_policy()
    pipeline = make_pipeline(WaitingEngine())
    first = pipeline.roll_out(asking(0), policy, 0).rollouts
    pipeline.sample_next([asking(1)], policy, 0, first.seconds)
    torch.save(pipeline.state_dict(), tmp_path / "state")
    engine = WaitingEngine()
    resumed = make_pipeline(engine)
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    update(policy)
    rollouts = resumed.roll_out(asking(1), policy, 3).rollouts
    assert (sampled_by(rollouts), rollouts.staleness.tolist(), engine.calls) == (0, [3, 3], [])


def test_a_run_that_had_nothing_ahead_in_its_state_samples_anew():
    pipeline = make_pipeline(WaitingEngine())
    state = pipeline.state_dict()
    del state["following"]
    pipeline.load_state_dict(state)
    assert sampled_by(pipeline.roll_out(asking(0), make_policy(), 0).rollouts) == 0


def test_a_block_asks_for_all_prompts_at_once_and_gives_each_batch_its_own_responses():
    def request(*prompts, seed):
        return Request([torch.tensor([p]) for p in prompts], [p % 3 for p in prompts], SamplingConfig(), seed)

    delivered, finished = [], []

    class Recorded:
        def __init__(self, name):
            self.deliver = lambda prompt, completions: delivered.append((name, prompt, completions))

    block = Block(
        [request(1, 2, seed=5), request(7, seed=6), request(8, 10, seed=7)], [Recorded(n) for n in "abc"]
    )
    assert [int(prompt) for prompt in block.request.prompts] == [1, 2, 7, 8, 10]
    assert (block.request.num_samples, block.request.seed) == ([1, 2, 1, 2, 1], 5)
    for prompt in (4, 0, 2, 3, 1):
        block.deliver(prompt, [prompt])
    assert delivered == [("c", 1, [4]), ("a", 0, [0]), ("b", 0, [2]), ("c", 0, [3]), ("a", 1, [1])]
    block.finish = lambda: finished.append(1) or list("vwxyz")
    assert [block.part(number) for number in (1, 0, 2)] == [["x"], ["v", "w"], ["y", "z"]]
    assert finished == [1], "sampled once"


@pytest.mark.parametrize(("until", "asked"), [(1, [[0], [1, 2]]), (2, [[0], [1, 2], [3, 4]])])
def test_what_several_batches_have_sampled_survives_a_crash_as_a_whole(until, asked, tmp_path):
    def run(engine, until):
        policy, pipeline = make_policy(), make_pipeline(cached(engine, tmp_path), ahead=2)
        found = []
        for number in range(until):
            rollouts = pipeline.roll_out(asking(number), policy, 3 * number).rollouts
            found.append((sampled_by(rollouts), rollouts.staleness.tolist()))
            if len(pipeline.following) < 2:
                following = [asking(number + len(pipeline.following) + n) for n in (1, 2)]
                pipeline.sample_next(following, policy, 3 * number, rollouts.seconds)
            update(policy)
            pipeline.following.wait(rollouts.seconds)
        return found

    expected = [(0, [0, 0]), (0, [3, 3]), (0, [6, 6]), (3, [6, 6]), (3, [9, 9]), (9, [6, 6])]
    engine = WaitingEngine()
    assert run(engine, until) == expected[:until]
    assert [call[2] for call in engine.calls] == asked
    engine = WaitingEngine()
    assert run(engine, 6) == expected
    assert [call[2] for call in engine.calls] == [[3, 4], [5, 6], [7, 8]], (
        "what had been waited for comes from disk"
    )


def test_after_a_failure_all_of_a_block_are_sampled_anew(recwarn):
    engine, policy = WaitingEngine(fail_at=[1]), make_policy()
    pipeline = make_pipeline(engine, ahead=2)
    first = pipeline.roll_out(asking(0), policy, 0).rollouts
    pipeline.sample_next([asking(1), asking(2)], policy, 0, first.seconds)
    update(policy)
    with pytest.raises(EngineError, match="gone"):
        pipeline.roll_out(asking(1), policy, 3)
    assert [sampled_by(pipeline.roll_out(asking(n), policy, 3).rollouts) for n in (1, 2)] == [3, 3]
    assert not recwarn.list, "no other batch came"


def test_what_was_sampled_before_the_crash_comes_from_disk(tmp_path):
    def run(engine):
        policy, pipeline = make_policy(), make_pipeline(cached(engine, tmp_path))
        first = pipeline.roll_out(asking(0), policy, 0).rollouts
        pipeline.sample_next([asking(1)], policy, 0, first.seconds)
        update(policy)
        pipeline.following.wait(first.seconds)
        return pipeline.roll_out(asking(1), policy, 3).rollouts

    before, engine = run(WaitingEngine()), WaitingEngine()
    after = run(engine)
    assert engine.calls == []
    assert sampled_by(after) == sampled_by(before) == 0
    assert after.staleness.tolist() == [3, 3]


def test_responses_to_other_prompts_than_those_that_came_are_not_used():
    engine, policy = WaitingEngine(), make_policy()
    pipeline = make_pipeline(engine)
    first = pipeline.roll_out(asking(0), policy, 0).rollouts
    pipeline.sample_next([asking(40)], policy, 0, first.seconds)
    update(policy)
    with pytest.warns(UserWarning, match="Another batch came"):
        assert sampled_by(pipeline.roll_out(asking(1), policy, 3).rollouts) == 3


def test_a_generation_is_used_for_its_own_request_alone():
    request = Request([torch.tensor([1])], [1], SamplingConfig(), 0)
    key = request_key(request)

    def taken(generation, request=request):
        queue = Queue()
        queue += [generation, Generation("next", 3)]
        return queue.take(request, Seconds()), len(queue)

    generation = Generation(key, 3)
    assert taken(generation) == (generation, 1)
    assert taken(Generation("", 3)) == (None, 0), "without a word: it was lost"
    failed = Generation(key, 3, error=EngineError("gone"))
    assert taken(failed) == (failed, 0), "what follows was sampled in one request with it"
    with pytest.warns(UserWarning, match="sampled anew"):
        assert taken(generation, request._replace(seed=1)) == (None, 0)


def test_neither_failed_responses_nor_those_of_another_number_of_ranks_are_resumed():
    def fail():
        raise EngineError("gone")

    request = Request([torch.tensor([1]), torch.tensor([2])], [2, 1], SamplingConfig(), 0)
    there = Generation("key", 3, finish=lambda: WaitingEngine().responses(request)).state_dict()
    found = Generation.from_state(there)
    assert (found.key, found.step) == ("key", 3)
    assert [len(samples) for samples in found.result(Seconds())] == [2, 1]
    lost = Generation("", 3)
    assert Generation.from_state({**there, "ranks": there["ranks"] * 2}) == lost
    failed = Generation("key", 3, finish=fail)
    assert Generation.from_state(failed.state_dict()) == lost, "a checkpoint can be written all the same"
    with pytest.raises(EngineError, match="gone"):
        failed.result(Seconds())


def test_a_thread_samples_what_a_call_does(tiny_policy):
    engine = TransformersEngine(str(tiny_policy))
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine.sync(model.named_parameters())
    request = Request(
        [torch.tensor([5, 6, 7]), torch.tensor([8, 9])], [4, 3], SamplingConfig(max_new_tokens=8), 1
    )
    expected = engine.generate(request)
    state = torch.get_rng_state()
    delivered = []
    finish = engine.generate_async(request, lambda prompt, _: delivered.append(prompt))
    with torch.no_grad():
        for parameter in model.parameters():  # an update beside it, which must not reach the engine's copy
            parameter.add_(torch.ones_like(parameter))
    found = finish()
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(delivered) == [0, 1]
    for a, b in zip(sum(found, []), sum(expected, []), strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert torch.equal(a.logprobs, b.logprobs)


def test_what_is_under_way_is_waited_for_before_the_engine_is_asked_for_another_batch():
    engine, policy = WaitingEngine(), make_policy()  # which refuses two things at once
    pipeline = make_pipeline(engine, ahead=2)
    for number in range(2):
        rollouts = pipeline.roll_out(asking(number), policy, 3 * number).rollouts
        following = [asking(number + len(pipeline.following) + n) for n in (1, 2)]
        pipeline.sample_next(following, policy, 3 * number, rollouts.seconds)
        update(policy)
        pipeline.following.wait(rollouts.seconds)
    assert engine.busy, "the block of 3 and 4 is under way"
    assert pipeline.following.under_way
    with pytest.warns(UserWarning, match="Another batch came"):
        assert sampled_by(pipeline.roll_out(asking(99), policy, 6).rollouts) == 6
    assert [call[2] for call in engine.calls] == [[0], [1, 2], [3, 4], [99]]
    assert not pipeline.following.under_way


def test_an_engine_is_asked_once_for_a_block_that_fails():
    request = Request([torch.tensor([1])], [1], SamplingConfig(), 0)
    block, asked = Block([request, request], [None, None]), []

    def finish():
        asked.append(1)
        raise EngineError("gone")

    block.finish = finish
    with pytest.raises(EngineError, match="gone"):
        block.part(0)
    with pytest.raises(EngineError, match="sampling them failed"):
        block.part(1)
    assert asked == [1]
