"""Arithmetic of forecasts, spelled out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tagrpo.planning.counters import Costs
from tagrpo.planning.dry_run import DryRun
from tagrpo.planning.forecast import CONTEXT, GIB, Engine, Gpu, Workload, advice, forecast

WORK = Workload(
    ranks=4, questions=8, responses=16, score_prompts=1, prompt=100, longest=400, mini_batches=2, token_budget=1000,
    iterations=10, reference=True, reference_forward=True, checkpointing=1.0,
)  # fmt: skip
GPU = Gpu(memory=40.0, rate=1e12)


def dry(**peak):
    costs = Costs()
    costs.product_flop, costs.product_bytes, costs.other_bytes = 8_000, 300, 100
    parts = {"weights": 1, "gathered": 2, "gradients": 3, "optimizer": 4, "activations": 10, "head": 2}
    return DryRun(
        peak={part: int(size * GIB) for part, size in {**parts, **peak}.items()},
        resting={"weights": GIB, "gradients": GIB, "optimizer": 4 * GIB},
        costs=costs, parameters=100, trained=60, root_parameters=GIB,
    )  # fmt: skip


def test_the_fullest_micro_batch_holds_the_longest_responses_as_far_as_the_budget_goes():
    assert WORK.fullest().lengths.tolist() == [400, 400, 150], "1000 tokens less a prompt of 50"
    assert replace(WORK, token_budget=300).fullest().lengths.tolist() == [400], "one is over the budget alone"
    few = replace(WORK, questions=1, responses=8)
    assert few.fullest().lengths.tolist() == [400], "a rank has a single response of each mini-batch"


def test_work_grows_with_distinct_tokens_and_forwards_without_gradient():
    packed = WORK.fullest()
    found = forecast(dry(), packed, WORK, GPU, Engine(own_gpus=True), sharded=True)
    tokens = [8 * (16 * mean + 50) for mean in (100, 400)]
    # Half of the old log-probs and all of the reference's, each a quarter of forward, recomputation and backward.
    passes = 1 + (0.5 + 1) / 4
    assert found.tokens == (8 * 16 * 100, 8 * 16 * 400)
    assert found.flop == pytest.approx([8_000 * passes * count / 1000 for count in tokens])
    assert found.traffic == pytest.approx([400 * passes * count / 1000 for count in tokens])
    # 13,200 and 51,600 tokens in two mini-batches on four ranks: 2 and 7 micro-batches each.
    each = ((4 + 2 * 1.5) * 100 + 4 * 60) * 3 / 4
    assert found.network == pytest.approx([4 * each, 14 * each])
    # Three quarters of the arithmetic is useful: 40 % of the peak rate at best, 20 % at worst.
    expected = [0.75 * f / (4 * 1e12 * share) for f, share in zip(found.flop, (0.4, 0.2), strict=True)]
    assert found.seconds == pytest.approx(expected)


def test_memory_is_that_of_training_reference_and_engine_in_both_phases():
    found = forecast(dry(), WORK.fullest(), WORK, GPU, Engine(awake=20.0, asleep=0.5), sharded=True)
    # The reference: a GiB of shards, and the root that stays gathered in two bytes.
    assert found.update["reference"] == found.sampling["reference"] == 3.0
    assert sum(found.update.values()) == pytest.approx(1 + 2 + 3 + 4 + 10 + 2 + 3 + CONTEXT + 0.5)
    assert sum(found.sampling.values()) == pytest.approx(1 + 1 + 4 + 3 + CONTEXT + 20)
    assert "reference" in forecast(dry(), WORK.fullest(), replace(WORK, reference=False), GPU, Engine(), True).update


PLAIN = {"sharded": True, "offloaded": False, "adapted": False}


NO_ENGINE = Engine()


def lines_of(dry_run, work=WORK, engine=NO_ENGINE, **options):
    found = forecast(dry_run, WORK.fullest(), work, GPU, engine, sharded=True)
    return advice(found, work, GPU, engine, **{**PLAIN, **options})


def test_what_fits_needs_no_advice_and_what_does_not_is_told_the_cheapest_change_first():
    assert lines_of(dry()) == []
    # 47 GiB: 7 too many of 32 that grow with the budget.
    large = lines_of(dry(activations=30.0))
    assert large[0].startswith("policy.token_budget=512:"), "1000 · (1 − 7 / 32) · 0.95 in steps of 256"
    assert lines_of(dry(activations=30.0), replace(WORK, checkpointing=0.5))[0].startswith("model.load.gradient_check")
    unsharded = lines_of(dry(optimizer=60.0), sharded=False)
    assert unsharded[0].startswith("strategy=fsdp2")
    heavy = lines_of(dry(optimizer=60.0))
    assert [line.partition(":")[0] for line in heavy] == ["lora=default", "strategy.cpu_offload=true", "more GPUs"]
    assert [line.partition(":")[0] for line in lines_of(dry(optimizer=60.0), offloaded=True, adapted=True)] == [
        "more GPUs"
    ]


def test_an_engine_that_takes_too_much_is_made_smaller_or_moved():
    lines = lines_of(dry(), engine=Engine(awake=35.0, asleep=0.0))
    assert lines[0].startswith("rollout.engine.gpu_memory_utilization=0.70"), "29 of 40 GiB are free for it"
    assert "vllm_server" in lines[1]
    assert any(
        line.startswith("rollout.engine.sleep=true") for line in lines_of(dry(), engine=Engine(awake=20.0, asleep=20.0))
    )


def test_an_engine_whose_weights_leave_no_room_for_a_cache_is_spread_over_gpus():
    engine = Engine(awake=10.0)
    for weights, team in ((13.0, 2), (16.0, 4)):
        line, *_ = lines_of(dry(), engine=replace(engine, weights=weights))
        assert line.startswith(f"rollout.engine.tensor_parallel_size={team}: ")
    assert lines_of(dry(), engine=replace(engine, weights=6.5, parallel=2)) == []
