"""Memory and time of a run by arithmetic on the sizes of its model: what `tagrpo-plan` says. Nothing is run.

Activations are counted for a decoder of the usual kind (two norms, attention, a gated MLP) whose layers are not
compiled. Of mixtures of experts the memory of weights is right; activations and hours are those of a dense model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

GIB = 2**30
CONTEXT = 2.0
"""GiB per GPU that no tensor shows: CUDA's context, NCCL's buffers, what a sleeping vLLM keeps, fragments."""
UPDATE_SHARE = (0.25, 0.4)
"""Useful share of a GPU's peak rate in an update."""
SAMPLING_SHARE = (0.03, 0.08)
"""The same of the engine while it samples, bound by memory and by the longest responses."""
CACHED = 0.75
"""Share of an engine's memory that its weights may take: the rest is for keys, values and its own activations."""


class Gpu(NamedTuple):
    """A GPU as `tagrpo-plan` knows it."""

    memory: float  # GiB that programs can have, as PyTorch reports them
    rate: float  # dense FLOP/s in bfloat16, as the vendor states them


GPUS = {
    "h200": Gpu(139.8, 989e12),
    "h100": Gpu(79.1, 989e12),
    "a100": Gpu(79.2, 312e12),
    "a100_40gb": Gpu(39.4, 312e12),
    "l40s": Gpu(44.4, 362e12),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of a causal language model: parameters, and widths of its layers."""

    parameters: int
    trained: int
    layer: int
    """Parameters of the largest decoder layer."""
    root: int
    """Parameters outside of the decoder layers: embeddings, head and last norm."""
    layers: int
    hidden: int
    inner: int
    """Width of the MLP."""
    queries: int
    """Heads · head_dim."""
    keys: int
    """Of the keys, which is that of the values."""
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Memory of the sampling engine on one training GPU, in GiB; none where the engine has GPUs of its own."""

    awake: float = 0.0
    """While it samples, cache included."""
    asleep: float = 0.0
    """During the update."""
    weights: float = 0.0
    """Part of `awake` that its weights take."""
    parallel: int = 1
    """GPUs that hold an engine together."""
    own_gpus: bool = False


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Work of an iteration over all ranks, lengths in tokens, and how the ranks share it."""

    ranks: int
    questions: int
    responses: int
    """Per question, rephrasings included."""
    score_prompts: int
    """Distinct prompts per question that responses are scored under."""
    prompt: int
    """The longest; the mean is taken to be half of it."""
    longest: int
    """The longest response."""
    mean: float
    """The mean response."""
    mini_batches: int
    token_budget: int
    iterations: int | None
    """Of the run; None where it depends on how many questions there are."""
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
    """Part → GiB on each GPU, at the peak of an update and while it samples; FLOP and seconds of an iteration."""

    update: dict[str, float]
    sampling: dict[str, float]
    flop: float
    """Of the update, over all GPUs, recomputation included."""
    seconds: tuple[float, float]
    """At the better and the worse share of the peak rate."""


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


def memory(model: Model, work: Workload) -> dict[str, float]:
    """Part → bytes of the training on one GPU at the peak of an update, in float32 with the two moments of AdamW."""
    share = 0.0 if work.offloaded else 1 / work.ranks if work.sharded else 1.0
    size = 2 if work.reduced else 4
    # FSDP2 gathers the root and, ahead of time, a second layer; autocast keeps copies of all weights.
    together = model.root + 2 * model.layer if work.sharded else model.parameters if work.reduced else 0
    rows = min(max(2**27 // model.vocabulary, 1), work.fullest)  # of a chunk of logits, which has a gradient
    return {
        "weights": 4 * model.parameters * share,
        "gathered": size * together,
        "gradients": 4 * model.trained * (share + work.doubled),
        "optimizer": 8 * model.trained * share,
        "activations": activation_bytes(model, work),
        "head": rows * model.vocabulary * 2 * size,
    }


def forecast(model: Model, work: Workload, gpu: Gpu, engine: Engine) -> Forecast:
    """Memory, arithmetic and time of a run."""
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
    sampled = 0.0 if engine.own_gpus else work.questions * work.responses * work.mean * forward
    useful = work.tokens * forward * (3 + forwards)
    worst, best = (
        (useful / update_share + sampled / sampling_share) / (work.ranks * gpu.rate)
        for update_share, sampling_share in zip(UPDATE_SHARE, SAMPLING_SHARE, strict=True)
    )
    return Forecast(
        update=update | extra | {"engine": engine.asleep},
        sampling=resting | extra | {"engine": engine.awake},
        flop=work.tokens * forward * (3 + work.checkpointing + forwards),
        seconds=(best, worst),
    )


def advice(found: Forecast, work: Workload, gpu: Gpu, engine: Engine, *, adapted: bool) -> list[str]:
    """Changes that help when a run does not fit, the cheapest first; empty when it fits."""
    lines = for_update(found, work, gpu, adapted=adapted) if sum(found.update.values()) > gpu.memory else []
    if engine.weights > CACHED * engine.awake:
        team = engine.parallel
        while engine.weights * engine.parallel / team > CACHED * engine.awake and team < work.ranks:
            team *= 2
        lines.append(
            f"rollout.engine.tensor_parallel_size={team}: an engine's weights take {engine.weights:.1f} GiB, of the "
            f"{engine.awake:.1f} that rollout.engine.gpu_memory_utilization gives it on each GPU, cache included"
        )
    elif (excess := sum(found.sampling.values()) - gpu.memory) > 0:
        free = (found.sampling["engine"] - excess) / gpu.memory
        if free > 0.1:
            lines.append(
                f"rollout.engine.gpu_memory_utilization={math.floor(free * 20) / 20:.2f}: less for vLLM's cache"
            )
        lines.append(
            "rollout.engine.tensor_parallel_size=2, or rollout=vllm_server: an engine over several GPUs, or on its own"
        )
    return lines


def for_update(found: Forecast, work: Workload, gpu: Gpu, *, adapted: bool) -> list[str]:
    """Changes that make an update smaller, the cheapest first."""
    excess, grows = sum(found.update.values()) - gpu.memory, found.update["activations"]
    large = sum(found.update[part] for part in ("weights", "gradients", "optimizer")) > 0.2 * gpu.memory
    smaller = int(work.token_budget * (1 - excess / grows) * 0.95) // 256 * 256 if grows > excess else 0
    changes = {
        "model.load.gradient_checkpointing=true: layers are computed again in the backward, a third more work": (
            work.checkpointing < 1
        ),
        f"policy.token_budget={smaller}: the same update in more micro-batches": smaller >= work.prompt + work.longest,
        "strategy=fsdp2: weights, gradients and optimizer state are spread over the GPUs": (
            not work.sharded and work.ranks > 1
        ),
        "rollout.engine.sleep=true: vLLM gives its memory back during the update": found.update["engine"] > CONTEXT,
        "lora=default: no gradients and no optimizer state of the weights": large and not adapted,
        "strategy.cpu_offload=true: they stay in host memory; steps take several times longer": (
            large and work.sharded and not work.offloaded
        ),
        "more GPUs: each holds a smaller part of weights, gradients and optimizer state": work.sharded,
    }
    return [change for change, helps in changes.items() if helps]
