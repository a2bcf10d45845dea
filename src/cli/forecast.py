"""Memory and time of a run by arithmetic on the sizes of its model: what `tagrpo-plan` says. Nothing is run.

Activations are counted for a decoder of the usual kind (two norms, attention, a gated MLP) whose layers are not
compiled. Of mixtures of experts the memory of weights is right; activations and hours are those of a dense model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 2**30
CONTEXT = 2.0
"""GiB per GPU that no tensor shows: CUDA's context, NCCL's buffers, what a sleeping vLLM keeps, fragments."""
UPDATE_SHARE = (0.25, 0.4)
"""Useful share of a GPU's peak rate in an update."""
SAMPLING_SHARE = (0.03, 0.08)
"""The same of the engine while it samples, bound by memory and by the longest responses."""
CACHED = 0.75
"""Share of an engine's memory that its weights may take: the rest is for keys, values and its own activations."""


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
class Model:
    """Sizes of a causal language model."""

    parameters: int
    trained: int
    layer: int
    """Parameters of one decoder layer, the largest."""
    root: int
    """Parameters outside of the decoder layers: embeddings, head and last norm."""
    layers: int
    hidden: int
    inner: int
    """Width of the MLP."""
    queries: int
    """Width of all queries: heads · head_dim."""
    keys: int
    """Width of all keys, which is that of all values."""
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The sampling engine, seen from one training GPU."""

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
    """Work that a run gives its GPUs, and how they share it."""

    ranks: int
    questions: int
    """Per iteration, over all ranks."""
    responses: int
    """Per question, rephrasings included."""
    score_prompts: int
    """Distinct prompts per question that responses are scored under."""
    prompt: int
    """Tokens of the longest prompt; the mean is taken to be half of it."""
    longest: int
    """Tokens of the longest response."""
    mean: float
    """Tokens of the mean response."""
    mini_batches: int
    token_budget: int
    iterations: int | None
    """None where it depends on how many questions there are."""
    reference: bool
    """Whether there is a frozen second copy of the policy, for a KL term."""
    reference_forward: bool
    """Whether there is a forward for the KL term, with the copy or with adapters off."""
    checkpointing: float
    """Share of layers that are computed again in the backward."""
    sharded: bool
    """Whether FSDP2 shards weights, gradients and optimizer state; else each rank has all of them."""
    offloaded: bool = False
    """Whether these are in host memory."""
    doubled: bool = False
    """Whether DDP's buckets are a second copy of the gradients."""
    reduced: bool = True
    """Whether products are taken in bfloat16; else in float32."""

    @property
    def tokens(self) -> float:
        """Distinct tokens of one iteration over all ranks."""
        return self.questions * (self.responses * self.mean + self.score_prompts * self.prompt / 2)

    @property
    def fullest(self) -> int:
        """Tokens of the largest micro-batch that can occur: the longest responses, as far as the budget goes."""
        own = max(self.questions * self.responses // self.ranks // self.mini_batches, 1)
        prompt = max(self.prompt // 2, 1)
        return prompt + min(max(self.token_budget - prompt, self.longest), own * self.longest)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Needs of a run, GPU by GPU."""

    update: dict[str, float]
    """Part → GiB at the peak of an update."""
    sampling: dict[str, float]
    """Part → GiB while it samples."""
    flop: float
    """Of the update of an iteration over all GPUs, recomputation included."""
    network: float
    """Bytes that each GPU receives from the others in the update of an iteration."""
    seconds: tuple[float, float]
    """Wall seconds of an iteration, at the better and the worse share of the peak rate."""


def activation_bytes(model: Model, work: Workload) -> float:
    """Bytes that the layers keep for the backward of the fullest micro-batch, and that the backward of one layer adds.

    Of each token a layer keeps the inputs of its products and of its rotary embedding, its queries, keys, values and
    output of attention, gate, up, their activation and product; norms keep a copy in float32. A layer that is computed
    again keeps its input alone, until its turn comes.
    """
    size = 2 if work.reduced else 4
    wide = 4 * model.hidden + 3 * model.queries + 4 * model.keys + 4 * model.inner
    in_float32 = 2 * model.hidden + model.queries + model.keys
    whole = size * wide + 4 * in_float32
    again = round(work.checkpointing * model.layers)
    kept = again * size * model.hidden + (model.layers - again) * whole
    turn = (whole if again else 0) + size * 3 * model.inner
    return work.fullest * (kept + turn)


def head_bytes(model: Model, work: Workload) -> float:
    """Bytes of one chunk of logits and of its gradient."""
    rows = min(max(2**27 // model.vocabulary, 1), work.fullest)
    return rows * model.vocabulary * (2 * 2 if work.reduced else 2 * 4)


def memory(model: Model, work: Workload) -> dict[str, float]:
    """Part → bytes of the training on one GPU at the peak of an update, in float32 with the two moments of AdamW."""
    share = 0.0 if work.offloaded else 1 / work.ranks if work.sharded else 1.0
    size = 2 if work.reduced else 4
    # FSDP2 gathers the root and, ahead of time, a second layer; autocast keeps copies of all weights.
    together = model.root + 2 * model.layer if work.sharded else model.parameters if work.reduced else 0
    return {
        "weights": 4 * model.parameters * share,
        "gathered": size * together,
        "gradients": 4 * model.trained * (share + work.doubled),
        "optimizer": 8 * model.trained * share,
        "activations": activation_bytes(model, work),
        "head": head_bytes(model, work),
    }


def forecast(model: Model, work: Workload, gpu: Gpu, engine: Engine) -> Forecast:
    """Memory, arithmetic, traffic and time of a run."""
    update = {part: size / GIB for part, size in memory(model, work).items()}
    # FSDP2 keeps the root of a model gathered after a forward without gradient, in two bytes.
    copy = update["weights"] + (2 * model.root / GIB if work.sharded else 0.0)
    extra = {"reference": copy if work.reference else 0.0, "context": CONTEXT}
    resting = {part: update[part] for part in ("weights", "gradients", "optimizer")}
    # Forwards without gradient: the old log-probs of later mini-batches, and the reference.
    forwards = (work.mini_batches - 1) / work.mini_batches + work.reference_forward
    # Two per weight and token; attention sees half of the prompt and response on average.
    seen = (work.prompt / 2 + work.mean) / 2
    forward = 2 * model.parameters + 4 * model.layers * model.queries * seen
    steps = work.mini_batches * max(math.ceil(work.tokens / work.ranks / work.mini_batches / work.token_budget), 1)
    moved = (2 * 2 + 2 * forwards) * model.parameters + 4 * model.trained
    sampled = 0.0 if engine.own_gpus else work.questions * work.responses * work.mean * forward
    useful = work.tokens * forward * (3 + forwards)
    best, worst = (
        (useful / update_share + sampled / sampling_share) / (work.ranks * gpu.rate)
        for update_share, sampling_share in zip(reversed(UPDATE_SHARE), reversed(SAMPLING_SHARE), strict=True)
    )
    return Forecast(
        update=update | extra | {"engine": engine.asleep},
        sampling=resting | extra | {"engine": engine.awake},
        flop=work.tokens * forward * (3 + work.checkpointing + forwards),
        network=steps * moved * (work.ranks - 1) / work.ranks if work.sharded else 0.0,
        seconds=(best, worst),
    )


def advice(found: Forecast, work: Workload, gpu: Gpu, engine: Engine, *, adapted: bool) -> list[str]:
    """Changes that help when a run does not fit, the cheapest first; empty when it fits."""
    lines = []
    excess = sum(found.update.values()) - gpu.memory
    grows = found.update["activations"]
    large = sum(found.update[part] for part in ("weights", "gradients", "optimizer")) > 0.2 * gpu.memory
    if excess > 0:
        smaller = int(work.token_budget * (1 - excess / grows) * 0.95) // 256 * 256 if grows > excess else 0
        if work.checkpointing < 1:
            lines.append(
                "model.load.gradient_checkpointing=true: layers are computed again in the backward, a third more work"
            )
        if smaller >= work.prompt + work.longest:
            lines.append(f"policy.token_budget={smaller}: the same update in more micro-batches")
        if not work.sharded and work.ranks > 1:
            lines.append("strategy=fsdp2: weights, gradients and optimizer state are spread over the GPUs")
        if found.update["engine"] > CONTEXT:
            lines.append("rollout.engine.sleep=true: vLLM gives its memory back during the update")
        if large and not adapted:
            lines.append("lora=default: no gradients and no optimizer state of the weights")
        if large and work.sharded and not work.offloaded:
            lines.append("strategy.cpu_offload=true: they stay in host memory; steps take several times longer")
        if work.sharded:
            lines.append("more GPUs: each holds a smaller part of weights, gradients and optimizer state")
    if engine.weights > CACHED * engine.awake:
        team = engine.parallel
        while engine.weights * engine.parallel / team > CACHED * engine.awake and team < work.ranks:
            team *= 2
        lines.append(
            f"rollout.engine.tensor_parallel_size={team}: an engine's weights take {engine.weights:.1f} GiB, of the "
            f"{engine.awake:.1f} that rollout.engine.gpu_memory_utilization gives it on each GPU, cache included"
        )
    elif sum(found.sampling.values()) > gpu.memory:
        free = (gpu.memory - sum(size for part, size in found.sampling.items() if part != "engine")) / gpu.memory
        if free > 0.1:
            lines.append(
                f"rollout.engine.gpu_memory_utilization={math.floor(free * 20) / 20:.2f}: less for vLLM's cache"
            )
        lines.append(
            "rollout.engine.tensor_parallel_size=2, or rollout=vllm_server: an engine over several GPUs, or on its own"
        )
    return lines
