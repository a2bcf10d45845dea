"""Arithmetic of forecasts, spelled out by hand, and against the peaks of real updates and rates that others report."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from tagrpo.planning.forecast import CONTEXT, GIB, Setup, needed

SETUP = Setup(
    memory=40.0, rate=1e12, bandwidth=1e9,
    parameters=100, trained=60, layer=20, root=40, layers=3, hidden=4, inner=8, queries=6, keys=2, vocabulary=10,
    ranks=4, nodes=2, responses=128, prompts=8, prompt=100, longest=400, mean=100.0, assumed=True, mini_batches=2,
    token_budget=1000, iterations=10, kl=True, copies=2, checkpointing=1.0, sharded=True, replicas=1, offloaded=False,
    reduced=True, context=500, awake=20.0, asleep=0.5, held=0.25, token=0.001, rows=8,
)  # fmt: skip


def qwen(hidden=2560, inner=9728, layers=36, heads=32, **settings):
    """Qwen3-4B, or a model of its kind, on eight H100s in TA-GRPO's settings with a vLLM that sleeps."""
    layer = 2 * hidden * heads * 128 + 2 * hidden * 1024 + 3 * hidden * inner + 2 * hidden + 2 * 128
    root = 151936 * hidden + hidden
    parameters = root + layers * layer
    setup = replace(
        SETUP, memory=79.1, rate=989e12, bandwidth=3.35e12, parameters=parameters, trained=parameters, layer=layer,
        root=root, layers=layers, hidden=hidden, inner=inner, queries=heads * 128, keys=1024, vocabulary=151936,
        ranks=8, nodes=1, responses=8192, prompts=256, prompt=512, longest=3072, mean=1536.0, token_budget=32768,
        context=7168, utilization=0.4, awake=0.4 * 79.1, asleep=0.0, held=2 * parameters / GIB,
        token=2 * 2 * layers * 1024 / GIB, rows=1024,
    )  # fmt: skip
    return replace(setup, **settings)


def test_the_fullest_micro_batch_holds_the_longest_responses_as_far_as_the_budget_goes():
    assert SETUP.fullest() == 1000
    assert replace(SETUP, token_budget=300).fullest() == 50 + 400, "one response is over the budget alone"
    assert replace(SETUP, responses=8).fullest() == 50 + 400, "a rank has one response per mini-batch"


def in_bytes(parts):
    return {part: pytest.approx(size * GIB) for part, size in parts.items()}


def test_weights_gradients_and_moments_are_counted_by_hand():
    parts = in_bytes(SETUP.updating())
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (4 * 100 / 4, 4 * 60 / 4, 8 * 60 / 4)
    assert parts["gathered"] == 2 * (40 + 2 * 20)
    # A layer's input is kept of each; of one all is there again, with the gradients of its MLP.
    whole = 2 * (4 * 4 + 3 * 6 + 4 * 2 + 4 * 8) + 4 * (2 * 4 + 6 + 2)
    assert parts["activations"] == 1000 * (3 * 2 * 4 + whole + 2 * 3 * 8)
    some = in_bytes(replace(SETUP, checkpointing=0.5).updating())
    assert some["activations"] == 1000 * (2 * 2 * 4 + 2 * whole + 2 * 3 * 8), "half of three layers are two"
    assert in_bytes(replace(SETUP, checkpointing=0.0).updating())["activations"] == 1000 * (
        3 * whole + 2 * 3 * 8
    )
    assert parts["head"] == 1000 * 10 * 4
    assert in_bytes(replace(SETUP, sharded=False).updating())["gradients"] == 2 * 4 * 60, (
        "with the buckets of DDP"
    )
    assert in_bytes(replace(SETUP, sharded=False, ranks=1).updating())["gradients"] == 4 * 60
    assert in_bytes(replace(SETUP, replicas=2).updating())["optimizer"] == 8 * 60 / 2, (
        "shards are on half of the ranks"
    )
    assert replace(SETUP, offloaded=True).updating()["weights"] == 0


@pytest.mark.parametrize(
    ("hidden", "inner", "layers", "heads", "found"),
    [(2048, 6144, 28, 16, 12.47), (2560, 9728, 36, 32, 21.76)],
)
def test_the_peak_of_qwen3_is_near_what_torchs_tracker_finds(hidden, inner, layers, heads, found):
    """GiB of Qwen3-1.7B and 4B on 8 ranks under FSDP2, found with fake tensors while gradients are added up."""
    parts = qwen(hidden, inner, layers, heads, longest=1008, prompt=1024, copies=1).updating()
    assert sum(parts.values()) - CONTEXT == pytest.approx(found, rel=0.1)


def test_memory_is_that_of_training_reference_and_engine_in_both_phases():
    update, sampling = SETUP.updating(), SETUP.sampling()
    assert update["reference"] == pytest.approx((4 * 100 / 4 + 2 * 40) / GIB)
    assert replace(SETUP, copies=1).updating()["reference"] == 0
    assert sum(update.values()) == pytest.approx(CONTEXT + 0.5, rel=1e-3)
    assert sum(sampling.values()) == pytest.approx(CONTEXT + 20, rel=1e-3)
    assert {"activations", "gathered", "head"}.isdisjoint(sampling)
    servers = replace(SETUP, servers=4)
    assert servers.updating()["engine"] == servers.sampling()["engine"] == 0, "theirs is on other GPUs"


def test_the_first_nodes_memory_has_what_is_read_offloaded_and_put_to_sleep():
    assert in_bytes(SETUP.host()) == {"loading, export": 4 * 100, "offloaded": 0, "sleeping engines": 0}
    assert in_bytes(replace(SETUP, sharded=False).host())["loading, export"] == 2 * 2 * 4 * 100, (
        "each rank reads both"
    )
    offloaded = replace(SETUP, offloaded=True)
    # Half of all shards: weights of policy and reference, gradients and two moments.
    assert in_bytes(offloaded.host())["offloaded"] == (4 * 100 * 2 + (4 + 8) * 60) / 2
    assert in_bytes(replace(offloaded, replicas=2).host())["offloaded"] == 4 * 100 * 2 + (4 + 8) * 60
    asleep = replace(SETUP, utilization=0.5, asleep=0.0)
    assert asleep.host()["sleeping engines"] == 2 * 0.25, "of two ranks"
    assert replace(asleep, servers=4).host()["sleeping engines"] == 0


def test_disk_is_that_of_kept_checkpoints_and_the_one_that_is_written():
    setup = replace(SETUP, parameters=1_700_000_000, trained=1_700_000_000, kept=2)
    assert setup.checkpoint() == pytest.approx(12 * 1.7e9 / 2**30)
    assert setup.disk() == pytest.approx(3 * 12 * 1.7e9 / 2**30)
    adapters = replace(setup, trained=17_000_000)
    assert adapters.checkpoint() == pytest.approx((4 * 1.7e9 + 8 * 1.7e7) / 2**30)
    assert replace(setup, kept=0).disk() == 0


def test_work_grows_with_distinct_tokens_and_forwards_without_gradient():
    tokens = 8 * (16 * 100 + 50)
    # 2 FLOP per weight and token, and two products of attention over 75 tokens on average.
    forward = 2 * 100 + 2 * 2 * 3 * 6 * 75
    # Forward, recomputation, twice as much backward; half of the old log-probs and all of the reference's.
    assert SETUP.update_flop() == pytest.approx(tokens * forward * (4 + 0.5 + 1))
    less = replace(SETUP, checkpointing=0.5, kl=False, mini_batches=1)
    assert less.update_flop() == pytest.approx(tokens * forward * 3.5)
    share = 0.5 * 1000 / (1000 + 8192)
    assert SETUP.update_seconds() == pytest.approx(SETUP.update_flop() / 4e12 / share)
    # A rank has fewer tokens in a mini-batch than the budget allows.
    few, own = replace(SETUP, token_budget=10**6), tokens / 4 / 2
    assert few.update_seconds() == pytest.approx(SETUP.update_flop() / 4e12 / (0.5 * own / (own + 8192)))


@pytest.mark.parametrize(
    ("tokens", "useful", "recomputed"),
    [
        (32768, 0.37, 1.0),  # our counts for Qwen3-1.7B on an H100
        (32768, 0.38, 1.0),  # Qwen3-4B on eight
        (8192, 0.26, 1.0),
        (8192, 0.33, 0.0),  # torchtitan, Llama-3.1-8B, eager
        (8192, 0.39, 0.0),  # compiled
        (16384, 0.139, 1.0),  # prime-rl, Qwen3-4B on eight
        (65536, 0.354, 1.0),
    ],
)
def test_shares_of_the_peak_rate_that_are_known_lie_in_the_range(tokens, useful, recomputed):
    """Useful FLOP are those of forward and backward; recomputed layers are work to us, a third more."""
    setup = qwen(token_budget=tokens, kl=False, mini_batches=1, checkpointing=recomputed, assumed=False)
    share = setup.update_flop() / setup.update_seconds() / 8 / 989e12
    known = useful * (3 + recomputed) / 3
    # torchtitan's selective recomputation is not counted: its share is at least this.
    assert share / setup.spread() <= known <= share * setup.spread()


def test_engines_read_weights_and_cache_in_every_step_as_often_as_the_cache_fills():
    forward = 2 * 100 + 2 * 2 * 3 * 6 * 75
    row = 0.001 * (100 + 100) / 2
    step = 0.004 + ((0.25 + 8 * row) * GIB / 1e9 + 8 * forward / 1e12) / 0.7
    last = 300 * (0.004 + 0.25 * GIB / 1e9 / 0.7)
    assert SETUP.sampling_seconds() == pytest.approx(32 / 8 * 100 * step + last), (
        "32 responses of each rank, 8 at once"
    )
    # A cache of 0.55 GiB holds five and a half; on servers four engines of two GPUs share all responses alike.
    small = replace(SETUP, awake=0.8, servers=8, team=2)
    step = 0.004 + ((0.25 + 5.5 * row) * GIB / 1e9 + 5.5 * forward / 2 / 1e12) / 0.7
    assert small.sampling_seconds() == pytest.approx(32 / 5.5 * 100 * step + last)
    vllm = replace(small, utilization=0.5)
    assert vllm.sampling_seconds() > small.sampling_seconds(), "a tenth is for its activations"


def test_one_response_is_sampled_about_as_fast_as_measured():
    """vLLM 0.23, Llama-3.1-8B in bfloat16 on an A100 of 40 GB: 75 tokens/s (johnmusgrave.com's sweep)."""
    setup = replace(
        qwen(), parameters=8030261248, held=2 * 8030261248 / GIB, token=2**17 / GIB, bandwidth=1.55e12, rate=312e12,
        ranks=1, responses=1, longest=128, mean=128.0, prompt=1024, awake=36.0, assumed=False,
    )  # fmt: skip
    assert 1 / setup.spread() < setup.sampling_seconds() / (128 / 75) < setup.spread()


def test_the_range_is_at_most_fourfold_and_wider_where_the_length_is_a_guess():
    guess, given = SETUP.spread(), replace(SETUP, assumed=False).spread()
    assert given == pytest.approx(1.8)
    assert guess == pytest.approx(math.exp(math.sqrt(math.log(1.8) ** 2 + math.log(1.4) ** 2)))
    assert given < guess <= 2


def changes(lines):
    return [re.split("[=,:]", line)[0] for line in lines]


def value(line):
    return float(re.split("[=,: ]", line)[1])


def test_what_fits_needs_no_change_and_what_does_not_is_told_the_cheapest_first():
    assert needed(qwen()) == []
    large = qwen(token_budget=2**18)
    line, *others = needed(large)
    assert changes([line]) == ["policy.token_budget"]
    assert needed(replace(large, token_budget=int(value(line)))) == [], "the advice is good"
    assert needed(replace(large, token_budget=int(1.2 * value(line)))) != []
    assert changes(others) == ["lora", "strategy.cpu_offload", "twice as many GPUs"]
    assert line.endswith(f"{sum(replace(large, token_budget=int(value(line))).updating().values()):.1f} GiB")


def test_layers_are_computed_again_as_few_as_fit():
    eager = qwen(checkpointing=0.0)
    line = needed(eager)[0]
    assert changes([line]) == ["model.load.gradient_checkpointing"]
    assert needed(replace(eager, checkpointing=value(line))) == []
    fullest = sum(replace(eager, checkpointing=value(line) - 0.1).updating().values())
    assert fullest > 0.95 * 79.1, "a tenth of the layers less does not fit, or barely"
    assert "=true," in needed(qwen(checkpointing=0.0, token_budget=2**18))[0], "no share is enough"


def test_weights_and_moments_that_do_not_fit_are_sharded_adapted_or_moved():
    assert changes(needed(qwen(sharded=False))) == ["strategy", "lora"]
    shards = qwen(hidden=5120, inner=27648, layers=64, heads=40, servers=64, team=8, held=8.0)
    apart = ["lora", "strategy.cpu_offload", "twice as many GPUs"]
    assert changes(needed(shards)) == apart
    replicas = replace(shards, ranks=64, replicas=8)
    assert changes(needed(replicas)) == ["strategy.replicas", *apart]
    assert needed(replicas)[0].endswith(f"{sum(replace(replicas, replicas=1).updating().values()):.1f} GiB")
    little = replace(shards, trained=10**7, copies=1, offloaded=True, token_budget=3584, memory=8.0)
    assert needed(little) == ["GPUs with more memory, or a smaller model"]


def test_an_engine_that_takes_too_much_is_made_smaller_or_moved():
    greedy = qwen(utilization=0.95, awake=0.95 * 79.1)
    lines = needed(greedy)
    others = sum(greedy.sampling().values()) - greedy.awake
    assert value(lines[0]) == math.floor((0.95 - others / 79.1) * 20) / 20 == 0.75
    assert changes(lines) == ["rollout.engine.gpu_memory_utilization", "rollout"]
    assert needed(replace(greedy, awake=0.75 * 79.1)) == []
    awake = qwen(asleep=0.8 * 79.1, awake=0.8 * 79.1, utilization=0.8)
    assert needed(awake)[0].startswith("rollout.engine.sleep=true")
    assert needed(replace(awake, asleep=0.0)) == []
    assert needed(replace(SETUP, awake=60.0)) == [
        "rollout.engine.max_rows=<fewer responses at one time>, or rollout=vllm"
    ]


def test_the_cache_must_hold_a_sequence_of_full_length():
    """Llama-3.1-8B, whose context is 131,072 tokens of 128 KiB each: 16 GiB beside 15 of weights, of 31.6."""
    llama = qwen(parameters=8030261248, held=2 * 8030261248 / GIB, token=2**17 / GIB, context=131072)
    lines = needed(llama)
    assert value(lines[0]) == int((0.9 * 0.4 * 79.1 - 2 * 8030261248 / GIB) * 2**13) // 256 * 256
    assert changes(lines) == [
        "rollout.engine.max_model_len",
        "rollout.engine.gpu_memory_utilization",
        "rollout",
    ]
    assert "a sequence of 131,072 tokens takes 16.0" in lines[0]
    assert needed(replace(llama, context=int(value(lines[0])))) == []
    assert needed(replace(llama, awake=value(lines[1]) * 79.1)) == []


def test_an_engine_whose_weights_leave_no_room_for_a_cache_is_spread_over_gpus():
    for weights, team in ((70.0, 2), (130.0, 4)):
        engine = qwen(held=weights)
        line, *_ = needed(engine)
        assert line.startswith(f"rollout.engine.tensor_parallel_size={team}: ")
        assert needed(replace(engine, held=weights / team, team=team, awake=0.75 * 79.1)) == []
    servers = qwen(held=60.0, utilization=0.92, awake=0.92 * 79.1, servers=2)
    assert needed(servers)[0].startswith("gpus_per_server=2, ")
    assert needed(replace(servers, held=30.0, team=2, servers=4)) == []
