"""From a dry run to answers: does it fit, how much work is it, how long may it take, what to change.

All of it is arithmetic on stated assumptions; only the memory of training is more (see `dry_run.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..modules.policy.packing import PackedBatch, pack
from .dry_run import DryRun

GIB = 2**30
CONTEXT = 2.0
"""GiB per GPU that no tensor shows: CUDA's context, NCCL's buffers, what a sleeping vLLM keeps, fragments."""
UPDATE_SHARE = (0.2, 0.4)
"""Useful share of a GPU's peak rate in an update: counted for eager layers, attainable with compiled ones."""
SAMPLING_SHARE = (0.02, 0.08)
"""The same of vLLM while it samples, bound by memory and by the longest responses."""
CACHED = 0.75
"""Share of an engine's memory that its weights may take: the rest is for keys, values and its own activations."""
LENGTHS = (0.25, 1.0)
"""Mean length of a response, as a share of the longest."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One of its kind."""

    memory: float
    """GiB that programs can have."""
    rate: float
    """Products in bfloat16, FLOP/s, dense."""


GPUS = {
    "h200": Gpu(memory=139.8, rate=989e12),
    "h100": Gpu(memory=79.1, rate=989e12),
    "a100": Gpu(memory=79.2, rate=312e12),
    "a100_40gb": Gpu(memory=39.4, rate=312e12),
    "l40s": Gpu(memory=44.4, rate=362e12),
}
"""Name → what a GPU has, after its vendor's data sheet; memory as PyTorch reports it."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What samples, seen from one training GPU."""

    awake: float = 0.0
    """GiB during sampling."""
    asleep: float = 0.0
    """GiB during the update."""
    own_gpus: bool = False
    """Whether it has devices of its own."""
    weights: float = 0.0
    """GiB of its weights on each GPU, which `awake` has to hold beside a cache."""
    parallel: int = 1
    """GPUs that hold an engine together."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a run asks of its GPUs."""

    ranks: int
    questions: int
    """Per iteration, over all ranks."""
    responses: int
    """Per question, rephrasings included."""
    score_prompts: int
    """Distinct prompts per question that responses are scored under."""
    prompt: int
    """Tokens of the longest prompt."""
    longest: int
    """Tokens of the longest response."""
    mini_batches: int
    token_budget: int
    iterations: int | None
    """None where it depends on how many questions there are."""
    reference: bool
    """A frozen second copy of the policy, for a KL term."""
    reference_forward: bool
    """A forward for the KL term, with the copy or with adapters off."""
    checkpointing: float
    """Share of layers that are computed again in the backward."""

    def tokens(self, mean: float) -> float:
        """Distinct tokens of one iteration over all ranks, for responses of `mean` tokens."""
        return self.questions * (self.responses * mean + self.score_prompts * self.prompt / 2)

    def micro_batches(self, mean: float) -> int:
        """Of one rank in one optimizer step."""
        return max(math.ceil(self.tokens(mean) / self.ranks / self.mini_batches / self.token_budget), 1)

    def fullest(self) -> PackedBatch:
        """The largest micro-batch that can occur: the longest responses to one prompt, as many as the budget holds."""
        own = max(self.questions * self.responses // self.ranks // self.mini_batches, 1)
        prompt = max(self.prompt // 2, 1)
        room = max(self.token_budget - prompt, self.longest)
        whole, rest = divmod(min(room, own * self.longest), self.longest)
        lengths = [self.longest] * whole + [rest] * (rest > 0)
        responses = [torch.zeros(length, dtype=torch.long) for length in lengths]
        rows = torch.arange(len(lengths))
        return pack([torch.zeros(prompt, dtype=torch.long)], torch.zeros_like(rows), responses, rows)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run needs, GPU by GPU."""

    update: dict[str, float]
    """Part → GiB at the peak of an update."""
    sampling: dict[str, float]
    """Part → GiB while it samples."""
    responses: int
    """Per iteration."""
    tokens: tuple[float, float]
    """Response tokens of an iteration, from short to long responses."""
    flop: tuple[float, float]
    """Of the update of an iteration over all GPUs, recomputation included."""
    traffic: tuple[float, float]
    """Bytes that the update moves in the memory of all GPUs, operation by operation, without fusion."""
    network: tuple[float, float]
    """Bytes that each GPU receives from the others in the update of an iteration."""
    seconds: tuple[float, float]
    """Wall seconds of an iteration."""


def forecast(dry: DryRun, packed: PackedBatch, work: Workload, gpu: Gpu, engine: Engine, sharded: bool) -> Forecast:
    """Scale a dry run on `packed` to a whole run."""
    size = packed.input_ids.numel()
    copy = sum(dry.resting[part] for part in ("weights",)) / GIB
    # FSDP2 keeps the root of a model gathered after a forward without gradient, in two bytes.
    reference = copy + (2 * dry.root_parameters / GIB if sharded else 0.0) if work.reference else 0.0
    update = {part: value / GIB for part, value in dry.peak.items()}
    resting = {part: value / GIB for part, value in dry.resting.items() if value}
    extra = {"reference": reference, "context": CONTEXT}
    means = tuple(share * work.longest for share in LENGTHS)
    tokens = [work.tokens(mean) for mean in means]
    # Forwards without gradient: the old log-probs of later mini-batches, and the reference.
    forwards = (work.mini_batches - 1) / work.mini_batches + work.reference_forward
    passes = 1 + forwards / (3 + work.checkpointing)
    flop = [dry.costs.product_flop * passes * count / size for count in tokens]
    traffic = [(dry.costs.product_bytes + dry.costs.other_bytes) * passes * count / size for count in tokens]
    steps = [work.mini_batches * work.micro_batches(mean) for mean in means]
    moved = (2 * 2 + 2 * forwards) * dry.parameters + 4 * dry.trained
    network = [count * moved * (work.ranks - 1) / work.ranks if sharded else 0.0 for count in steps]
    useful = [f * 3 / (3 + work.checkpointing) for f in flop]
    sampled = [work.questions * work.responses * mean for mean in means]
    seconds = tuple(
        own / (work.ranks * gpu.rate * share)
        + (0.0 if engine.own_gpus else 2 * dry.parameters * count / (work.ranks * gpu.rate * engine_share))
        for own, count, share, engine_share in zip(
            useful, sampled, reversed(UPDATE_SHARE), reversed(SAMPLING_SHARE), strict=True
        )
    )
    return Forecast(
        update=update | extra | {"engine": engine.asleep},
        sampling=resting | extra | {"engine": engine.awake},
        responses=work.questions * work.responses,
        tokens=_pair(sampled),
        flop=_pair(flop),
        traffic=_pair(traffic),
        network=_pair(network),
        seconds=_pair(seconds),
    )


def _pair(values: list[float] | tuple[float, ...]) -> tuple[float, float]:
    low, high = values
    return low, high


def advice(
    found: Forecast, work: Workload, gpu: Gpu, engine: Engine, *, sharded: bool, offloaded: bool, adapted: bool
) -> list[str]:
    """What to change, the cheapest first, when a run does not fit; empty when it does."""
    lines = []
    excess = sum(found.update.values()) - gpu.memory
    grows = found.update["activations"] + found.update["head"]
    states = sum(found.update[part] for part in ("weights", "gradients", "optimizer"))
    if excess > 0:
        smaller = int(work.token_budget * (1 - excess / grows) * 0.95) // 256 * 256 if grows > excess else 0
        if work.checkpointing < 1:
            lines.append(
                "model.load.gradient_checkpointing=true: layers are computed again in the backward, a third more work"
            )
        if smaller >= work.prompt + work.longest:
            lines.append(f"policy.token_budget={smaller}: the same update in more micro-batches")
        if not sharded and work.ranks > 1:
            lines.append("strategy=fsdp2: weights, gradients and optimizer state are spread over the GPUs")
        if found.update["engine"] > CONTEXT:
            lines.append("rollout.engine.sleep=true: vLLM gives its memory back during the update")
        if states > 0.2 * gpu.memory and not adapted:
            lines.append("lora=default: no gradients and no optimizer state of the weights")
        if states > 0.2 * gpu.memory and sharded and not offloaded:
            lines.append("strategy.cpu_offload=true: they stay in host memory; steps take several times longer")
        if sharded:
            lines.append("more GPUs: each holds a smaller part of weights, gradients and optimizer state")
    over = sum(found.sampling.values()) - gpu.memory
    if engine.weights > CACHED * engine.awake:
        team = engine.parallel
        while engine.weights * engine.parallel / team > CACHED * engine.awake and team < work.ranks:
            team *= 2
        lines.append(
            f"rollout.engine.tensor_parallel_size={team}: an engine's weights take {engine.weights:.1f} GiB, of the "
            f"{engine.awake:.1f} that rollout.engine.gpu_memory_utilization gives it on each GPU, cache included"
        )
    elif over > 0:
        free = (gpu.memory - sum(size for part, size in found.sampling.items() if part != "engine")) / gpu.memory
        if free > 0.1:
            lines.append(
                f"rollout.engine.gpu_memory_utilization={math.floor(free * 20) / 20:.2f}: less for vLLM's cache"
            )
        lines.append(
            "rollout.engine.tensor_parallel_size=2, or rollout=vllm_server: an engine over several GPUs, or on its own"
        )
    return lines
