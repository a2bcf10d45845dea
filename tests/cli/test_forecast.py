"""Arithmetic of forecasts, spelled out by hand, and against the peaks of real updates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tagrpo.cli.forecast import CONTEXT, GIB, Engine, Forecast, Gpu, Model, Workload, advice, forecast, memory

MODEL = Model(
    parameters=100, trained=60, layer=20, root=40, layers=3, hidden=4, inner=8, queries=6, keys=2, vocabulary=10
)
WORK = Workload(
    ranks=4, questions=8, responses=16, score_prompts=1, prompt=100, longest=400, mean=100.0, mini_batches=2,
    token_budget=1000, iterations=10, reference=True, reference_forward=True, checkpointing=1.0, sharded=True,
)  # fmt: skip
GPU = Gpu(memory=40.0, rate=1e12)


def test_the_fullest_micro_batch_holds_the_longest_responses_as_far_as_the_budget_goes():
    assert WORK.fullest == 1000
    assert replace(WORK, token_budget=300).fullest == 50 + 400, "one response is over the budget alone"
    assert replace(WORK, questions=1, responses=8).fullest == 50 + 400, "a rank has one response per mini-batch"


def test_weights_gradients_and_moments_are_counted_by_hand():
    parts = memory(MODEL, WORK)
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (4 * 100 / 4, 4 * 60 / 4, 8 * 60 / 4)
    assert parts["gathered"] == 2 * (40 + 2 * 20)
    # A layer's input is kept of each; of one all is there again, with the gradients of its MLP.
    whole = 2 * (4 * 4 + 3 * 6 + 4 * 2 + 4 * 8) + 4 * (2 * 4 + 6 + 2)
    assert parts["activations"] == 1000 * (3 * 2 * 4 + whole + 2 * 3 * 8)
    assert memory(MODEL, replace(WORK, checkpointing=0.0))["activations"] == 1000 * (3 * whole + 2 * 3 * 8)
    assert parts["head"] == 1000 * 10 * 4
    assert memory(MODEL, replace(WORK, sharded=False, doubled=True))["gradients"] == 2 * 4 * 60
    assert memory(MODEL, replace(WORK, offloaded=True))["weights"] == 0


@pytest.mark.parametrize(
    ("hidden", "inner", "layers", "heads", "found"), [(2048, 6144, 28, 16, 12.47), (2560, 9728, 36, 32, 21.76)]
)
def test_the_peak_of_qwen3_is_near_what_torchs_tracker_finds(hidden, inner, layers, heads, found):
    """GiB of Qwen3-1.7B and 4B on 8 ranks under FSDP2, found with fake tensors while gradients are added up."""
    layer = 2 * hidden * heads * 128 + 2 * hidden * 1024 + 3 * hidden * inner + 2 * hidden + 2 * 128
    root = 151936 * hidden + hidden
    parameters = root + layers * layer
    model = Model(
        parameters=parameters, trained=parameters, layer=layer, root=root, layers=layers, hidden=hidden, inner=inner,
        queries=heads * 128, keys=1024, vocabulary=151936,
    )  # fmt: skip
    work = replace(WORK, ranks=8, questions=1024, longest=1008, prompt=1024, token_budget=32768)
    assert sum(memory(model, work).values()) / GIB == pytest.approx(found, rel=0.1)


def test_work_grows_with_distinct_tokens_and_forwards_without_gradient():
    found = forecast(MODEL, WORK, GPU, Engine(own_gpus=True))
    tokens = 8 * (16 * 100 + 50)
    # 2 FLOP per weight and token, and two products of attention over 75 tokens on average.
    forward = 2 * 100 + 2 * 2 * 3 * 6 * 75
    # Forward, recomputation, twice as much backward; half of the old log-probs and all of the reference's.
    assert found.flop == pytest.approx(tokens * forward * (4 + 0.5 + 1))
    useful = tokens * forward * (3 + 1.5)
    assert found.seconds == pytest.approx([useful / (4 * 1e12 * share) for share in (0.4, 0.25)])
    sampled = 8 * 16 * 100 * forward
    both = forecast(MODEL, WORK, GPU, Engine()).seconds
    assert both == pytest.approx([found.seconds[0] + sampled / 4e12 / 0.08, found.seconds[1] + sampled / 4e12 / 0.03])


def test_memory_is_that_of_training_reference_and_engine_in_both_phases():
    found = forecast(MODEL, WORK, GPU, Engine(awake=20.0, asleep=0.5))
    assert found.update["reference"] == pytest.approx((4 * 100 / 4 + 2 * 40) / GIB)
    assert sum(found.update.values()) == pytest.approx(CONTEXT + 0.5, rel=1e-3)
    assert sum(found.sampling.values()) == pytest.approx(CONTEXT + 20, rel=1e-3)
    assert forecast(MODEL, replace(WORK, reference=False), GPU, Engine()).update["reference"] == 0


NO_ENGINE = Engine()


def lines_of(work=WORK, engine=NO_ENGINE, adapted=False, **parts):
    sizes = {"weights": 1.0, "gradients": 3.0, "optimizer": 4.0, "activations": 12.0, "gathered": 5.0, **parts}
    rest = {"weights": 1.0, "gradients": 1.0, "optimizer": 4.0, "reference": 3.0, "context": 2.0}
    found = Forecast(
        update={**sizes, "engine": engine.asleep}, sampling={**rest, "engine": engine.awake}, flop=0.0,
        seconds=(0.0, 0.0),
    )  # fmt: skip
    return advice(found, work, GPU, engine, adapted=adapted)


def test_what_fits_needs_no_advice_and_what_does_not_is_told_the_cheapest_change_first():
    assert lines_of() == []
    # 47 GiB: 7 too many of 34 that grow with the budget.
    assert lines_of(activations=34.0)[0].startswith("policy.token_budget=512:"), "1000 · (1 − 7 / 34) · 0.95, by 256"
    assert lines_of(replace(WORK, checkpointing=0.5), activations=34.0)[0].startswith("model.load.gradient_check")
    assert lines_of(replace(WORK, sharded=False), optimizer=60.0)[0].startswith("strategy=fsdp2")
    heavy = lines_of(optimizer=60.0)
    assert [line.partition(":")[0] for line in heavy] == ["lora=default", "strategy.cpu_offload=true", "more GPUs"]
    little = lines_of(replace(WORK, offloaded=True), adapted=True, optimizer=60.0)
    assert [line.partition(":")[0] for line in little] == ["more GPUs"]


def test_an_engine_that_takes_too_much_is_made_smaller_or_moved():
    lines = lines_of(engine=Engine(awake=35.0))
    assert lines[0].startswith("rollout.engine.gpu_memory_utilization=0.70"), "29 of 40 GiB are free for it"
    assert "vllm_server" in lines[1]
    awake = lines_of(engine=Engine(awake=20.0, asleep=20.0))
    assert any(line.startswith("rollout.engine.sleep=true") for line in awake)


def test_an_engine_whose_weights_leave_no_room_for_a_cache_is_spread_over_gpus():
    engine = Engine(awake=10.0)
    for weights, team in ((13.0, 2), (16.0, 4)):
        line, *_ = lines_of(engine=replace(engine, weights=weights))
        assert line.startswith(f"rollout.engine.tensor_parallel_size={team}: ")
    assert lines_of(engine=replace(engine, weights=6.5, parallel=2)) == []
