"""Memory without memory, against real runs: one under torch's tracker, one under its profiler. `-s` shows figures."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config

from tagrpo.modules.policy.causal_policy import CausalPolicy
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.packing import pack
from tagrpo.modules.policy.sharding import shard
from tagrpo.planning.counters import Costs
from tagrpo.planning.dry_run import dry_run, dry_run_by_layers

GIB = 2**30
ADAMW = partial(torch.optim.AdamW, lr=1e-3)


def batch(prompt, length, count):
    bodies = [torch.full((length,), 5) for _ in range(count)]
    return pack([torch.full((prompt,), 5)], torch.zeros(count, dtype=torch.long), bodies, torch.arange(count))


def loss(_, logprobs, __):
    return logprobs.sum()


def two_updates(policy, optimizer, packed, between=lambda: None):
    """Gradients of the first stay, as between two micro-batches."""
    for _ in range(2):
        between()
        policy(packed, loss=loss).loss.backward()
        optimizer.step()


def test_a_sharded_plan_is_what_torchs_tracker_finds_in_a_real_run(tiny_policy, tmp_path):
    packed = batch(40, 100, 20)
    plan = dry_run(partial(load_causal_lm, tiny_policy), ADAMW, packed, ranks=1, compute_dtype=None, on_gpu=False)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "store"), 1))
    try:
        policy = CausalPolicy(load_causal_lm(tiny_policy)).train()
        shard(policy, init_device_mesh("cpu", (1,)), None)
        optimizer = ADAMW(policy.parameters())
        with FSDPMemTracker(policy, optimizer) as tracker:
            two_updates(policy, optimizer, packed, tracker.reset_mod_stats)
        measured = sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())
    finally:
        dist.destroy_process_group()
    print(f"peak under FSDP2, planned / tracked: {sum(plan.peak.values()) / measured:.3f}")
    assert sum(plan.peak.values()) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_plan_is_what_a_real_run_on_a_cpu_allocates(tiny_policy, checkpointing):
    packed = batch(40, 100, 20)
    load = partial(load_causal_lm, tiny_policy, gradient_checkpointing=checkpointing)
    plan = dry_run(load, ADAMW, packed, sharded=False, compute_dtype=None, on_gpu=False)
    policy = CausalPolicy(load()).train()
    optimizer = ADAMW(policy.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        two_updates(policy, optimizer, packed)
    held = highest = sum(p.numel() * p.element_size() for p in policy.parameters())
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    print(f"peak on a CPU, {checkpointing=}, planned / allocated: {sum(plan.peak.values()) / highest:.3f}")
    assert sum(plan.peak.values()) == pytest.approx(highest, rel=0.1)


def test_more_ranks_hold_less_and_the_parts_add_up(tiny_policy):
    load, packed = partial(load_causal_lm, tiny_policy), batch(10, 20, 4)
    one, eight = (dry_run(load, ADAMW, packed, ranks=ranks) for ranks in (1, 8))
    # Shards are padded to equal sizes, at most a row of each parameter.
    assert one.resting["weights"] == pytest.approx(4 * one.parameters, rel=0.01)
    assert one.resting["optimizer"] == pytest.approx(2 * one.resting["weights"], rel=0.01)
    for part in ("weights", "gradients", "optimizer"):
        assert eight.resting[part] == pytest.approx(one.resting[part] / 8, rel=0.1)
    assert eight.peak["activations"] == pytest.approx(one.peak["activations"], rel=0.1)
    away = eight.offloaded()
    assert away.peak["weights"] == away.resting["optimizer"] == 0
    assert away.peak["activations"] == eight.peak["activations"]


SIZES = {"1.7B": (2048, 6144, 28, 16), "4B": (2560, 9728, 36, 32)}


@pytest.mark.parametrize(
    ("size", "ranks", "bar"), [("1.7B", 8, 11.7), ("1.7B", 64, 11.7), ("4B", 8, 19.9), ("4B", 64, 19.9)]
)
def test_qwen3_stays_under_its_bar_with_a_micro_batch_of_32768_tokens(size, ranks, bar, tmp_path):
    """GiB per GPU with AdamW, whose fused form under FSDP2 is a case of its own."""
    hidden, inner, layers, heads = SIZES[size]
    Qwen3Config(
        vocab_size=151936, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    load = partial(load_causal_lm, tmp_path, weights="random", gradient_checkpointing=True)
    adamw = partial(ADAMW, fused=True)
    plan = dry_run_by_layers(load, adamw, batch(512, 1008, 32), ranks=ranks, accumulates=False)
    print(f"{size} on {ranks} ranks: {sum(plan.peak.values()) / GIB:.2f} GiB, at most {bar}")
    assert sum(plan.peak.values()) / GIB < bar + 0.05  # to the digit that is given
    assert min(plan.peak.values()) >= 0
    assert plan.peak["optimizer"] == pytest.approx(2 * plan.resting["weights"], rel=0.01)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_few_layers_tell_of_all_of_them(checkpointing, tmp_path):
    Qwen3Config(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32,
    ).save_pretrained(tmp_path)  # fmt: skip
    load = partial(load_causal_lm, tmp_path, weights="random", gradient_checkpointing=checkpointing)
    packed = batch(40, 100, 20)
    whole, told = (run(load, ADAMW, packed, ranks=2) for run in (dry_run, dry_run_by_layers))
    for part, size in whole.peak.items():
        assert told.peak[part] == pytest.approx(size, rel=0.01, abs=1000), part
    assert told.resting == pytest.approx(whole.resting, rel=1e-3)
    assert (told.parameters, told.trained) == (whole.parameters, whole.trained)
    assert told.root_parameters == whole.root_parameters
    assert told.costs.product_flop == whole.costs.product_flop
    assert told.costs.other_bytes == pytest.approx(whole.costs.other_bytes, rel=1e-3)


def test_costs_count_products_exactly_and_bytes_that_are_read_and_written():
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    with Costs() as costs:
        c.addmm_(a, b)
        a.view(4, 3).exp()
    assert costs.product_flop == 2 * 3 * 4 * 5
    assert costs.product_bytes == 4 * (12 + 20 + 15 + 15)  # what it adds to is read and written
    assert costs.other_bytes == 4 * (12 + 12)
