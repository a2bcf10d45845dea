"""One micro-batch and one optimizer step without memory or arithmetic, on as many fake ranks as a run has.

torch's FakeTensorMode gives every tensor its shape and type and no content; its memory trackers add up what is alive at
each moment. FSDP2 takes part as in the run: its gathering and reducing is of full size, and goes nowhere. Of GPUs it is
assumed that attention is one fused kernel that saves its output and a float32 per token and head, and that no layer is
compiled: the compiler would save fewer activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from transformers import AttentionInterface, PreTrainedModel

from ..modules.policy.causal_policy import CausalPolicy, rows_at_once
from ..modules.policy.packing import PackedBatch
from ..modules.policy.sharding import decoder_layers, shard
from .counters import COUNTED, Costs

FEW = (3, 4)
"""Layers of the two dry runs that tell what each further layer adds."""
FUSED = "tagrpo_fused_in_plans"
PARTS = {
    "Parameter": "weights", "Sharded Param": "weights", "Buffer": "weights",
    "Unsharded Param": "gathered", "All Gather": "gathered",
    "Gradient": "gradients", "Sharded Grad": "gradients", "Unsharded Grad": "gradients", "Reduce Scatter": "gradients",
    "Optstate": "optimizer", "OptState": "optimizer",
}  # fmt: skip
"""What torch's trackers call a tensor → the part of memory that it belongs to; all else are activations."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What one rank holds and does. Bytes are those of the training alone, without engine or reference."""

    peak: dict[str, int]
    """Part → bytes at the moment of the peak: `weights`, `gathered` (of other ranks), `gradients`, `optimizer`,
    `activations`, `head`."""
    resting: dict[str, int]
    """Part → bytes between two updates."""
    costs: Costs
    """FLOP and bytes of the forward and backward of the micro-batch, attention counted over every pair of tokens."""
    parameters: int
    """Numbers in the model, over all ranks."""
    trained: int
    """Those that have gradients."""
    root_parameters: int
    """Those outside of the decoder layers, which FSDP2 gathers together."""

    def with_more(self, fewer: DryRun, times: int) -> DryRun:
        """What this has more than `fewer`, added `times` times."""

        def grown(mine: Any, other: Any) -> Any:
            if isinstance(mine, dict):
                return {key: grown(value, other[key]) for key, value in mine.items()}
            if isinstance(mine, Costs):
                costs = Costs()
                for name in COUNTED:
                    setattr(costs, name, grown(getattr(mine, name), getattr(other, name)))
                return costs
            return mine + times * (mine - other)

        found = {f.name: grown(getattr(self, f.name), getattr(fewer, f.name)) for f in fields(self)}
        return DryRun(**found)

    def offloaded(self) -> DryRun:
        """With weights, gradients and optimizer state in host memory."""
        in_host = dict.fromkeys(("weights", "gradients", "optimizer"), 0)
        return replace(self, peak=self.peak | in_host, resting=self.resting | in_host)


def dry_run_by_layers(load: Callable[[], PreTrainedModel], *arguments: Any, **options: Any) -> DryRun:
    """`dry_run` in the time of a few layers, for a model of equal ones: from three on, each adds the same.

    Args are those of `dry_run`, which runs the whole model where layers differ or only some are computed again.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        layers = decoder_layers(load())
    kinds = {(sum(p.numel() for p in m.parameters()), getattr(m, "gradient_checkpointing", False)) for m in layers}
    if len(kinds) > 1 or len(layers) <= FEW[1]:
        return dry_run(load, *arguments, **options)
    small, large = (dry_run(partial(_first_layers, load, count), *arguments, **options) for count in FEW)
    return large.with_more(small, (len(layers) - FEW[1]) // (FEW[1] - FEW[0]))


def _first_layers(load: Callable[[], PreTrainedModel], count: int) -> PreTrainedModel:
    model = load()
    every = decoder_layers(model)
    (layers,) = (m for m in model.modules() if isinstance(m, nn.ModuleList) and list(m) == every)
    del layers[count:]
    model.config.num_hidden_layers = count
    return model


def dry_run(
    load: Callable[[], PreTrainedModel],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    packed: PackedBatch,
    *,
    ranks: int = 1,
    sharded: bool = True,
    compute_dtype: torch.dtype | None = torch.bfloat16,
    on_gpu: bool = True,
    entropy: Any = "detached",
    by_token: bool = True,
    accumulates: bool = True,
) -> DryRun:
    """Pretend to train on `packed`, as in the second update of a run, when the optimizer has a state.

    Args:
        load: Makes the model; called where tensors have no content.
        optimizer: Parameters → optimizer.
        packed: A micro-batch, of real tensors.
        ranks: Over which FSDP2 shards.
        sharded: Under FSDP2; else whole on each rank.
        compute_dtype: As of `shard`, or of autocast without FSDP2.
        on_gpu: Attention and head as there; False: as on a CPU.
        entropy: As of `CausalPolicy.forward`.
        by_token: Whether the loss is taken inside the head.
        accumulates: Whether `packed` adds to the gradient of an earlier micro-batch.
    """
    if not on_gpu:
        _ = packed.blocks  # made while tensors have content
    with fake_ranks(ranks) if sharded else nullcontext() as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        policy = CausalPolicy(load()).train()
        if on_gpu and policy.shares_prefix:
            policy.model.set_attn_implementation(FUSED)
            policy.chunk_size = rows_at_once("cuda", policy.model.config.vocab_size)
        parameters = list(policy.parameters())
        in_layers = sum(p.numel() for layer in decoder_layers(policy) for p in layer.parameters())
        numel, trained = sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)
        autocast: AbstractContextManager[Any] = nullcontext()
        if mesh is not None:
            shard(policy, mesh, compute_dtype)
        elif compute_dtype is not None:
            autocast = torch.autocast("cpu", compute_dtype)
        step = optimizer([p for p in policy.parameters() if p.requires_grad])
        for parameter in policy.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        # Outside of the tracker: sharded tensors find out by whole ones, on their first step, what it returns.
        step.step()
        if not accumulates:
            step.zero_grad()
        watched = _Watched(policy, step, sharded)
        with watched.tracker:
            costs = watched.train(packed, autocast, entropy, by_token)
            step.step()
            resting = watched.parts("current")
    return DryRun(
        peak=watched.parts("peak"),
        resting=resting,
        costs=costs,
        parameters=numel,
        trained=trained,
        root_parameters=numel - in_layers,
    )


class _Watched:
    """A policy under one of torch's memory trackers, and how much of its memory belongs to the head."""

    def __init__(self, policy: CausalPolicy, optimizer: Optimizer, sharded: bool) -> None:
        self.policy, self.optimizer = policy, optimizer
        self.tracker = FSDPMemTracker(policy, optimizer) if sharded else MemTracker()
        if not sharded:
            self.tracker.track_external(policy, optimizer)
        self.head = 0
        self.before_head = 0
        policy.model.base_model.register_forward_hook(self._layers_are_done)

    def _layers_are_done(self, *_: Any) -> None:
        self.before_head = self.total("current")

    def total(self, moment: str) -> int:
        return sum(device["Total"] for device in self.tracker.get_tracker_snapshot(moment).values())

    def train(self, packed: PackedBatch, autocast: AbstractContextManager[Any], entropy: Any, by_token: bool) -> Costs:
        """Forward, backward and step; gradients stay, so that the next call adds to them."""

        def loss(_: slice, logprobs: Tensor, spread: Tensor | None) -> Tensor:
            return logprobs.sum() if spread is None else logprobs.sum() + spread.sum()

        self.tracker.reset_mod_stats()  # it refuses a second forward otherwise
        with Costs() as costs:
            with autocast:
                scores = self.policy(packed, entropy=entropy, loss=loss if by_token else None)
                value = loss(slice(None), scores.logprobs, scores.entropy) if scores.loss is None else scores.loss
            in_head, after = self.total("peak"), self.total("current")
            value.backward()
        peak = self.total("peak")
        # Less than nothing is left of it where the last layer was given back meanwhile.
        self.head = max((in_head if peak == in_head else after) - self.before_head, 0)
        return costs

    def parts(self, moment: str) -> dict[str, int]:
        """Part of memory → bytes."""
        parts = dict.fromkeys((*dict.fromkeys(PARTS.values()), "activations", "head"), 0)
        for device in self.tracker.get_tracker_snapshot(moment).values():
            for kind, size in device.items():
                name = getattr(kind, "value", kind)
                if name != "Total":
                    parts[PARTS.get(name, "activations")] += size
        if moment == "peak":
            parts["head"] = self.head
            parts["activations"] -= self.head
        return parts


@contextmanager
def fake_ranks(count: int) -> Iterator[DeviceMesh]:
    """A process group of `count` ranks of which this process is the first and the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def _fused_attention(_module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
    """Attention of an unknown kernel that keeps its inputs, its output and one number per token and head."""
    shared = query.shape[1] != key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)
    return out.transpose(1, 2), None


AttentionInterface.register(FUSED, _fused_attention)
