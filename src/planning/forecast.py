"""Forecast of a run's memory and time from the sizes of its model, for `tagrpo-plan`.

Activations are counted for a usual decoder (two norms, attention, a gated MLP) whose layers are not compiled.
For mixtures of experts, the memory of weights is exact; activations and hours are computed as for a dense
model.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

GIB = 2**30
# GiB per GPU besides tensors: CUDA's context, NCCL's buffers, what a sleeping vLLM keeps, fragments
CONTEXT = 2.0
FILLED = 0.95  # share of a GPU's memory that the advice fills
# of the peak rate, reached by an update with large micro-batches; recomputed layers count as work
UPDATE_SHARE = 0.5
HALF_TOKENS = 8192  # tokens of a micro-batch that reaches half of UPDATE_SHARE
ENGINE_SHARE = 0.7  # of bandwidth and peak rate, reached by a step of the engine
STEP_SECONDS = 0.004  # seconds that each step of the engine takes in addition
# factors by which times, and a guessed mean response, may be off either way
RATE_SPREAD, LENGTH_SPREAD = 1.8, 1.4


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Input of a forecast: model sizes, work of an iteration over all ranks (in tokens), GPUs, engine."""

    memory: float  # GiB of a GPU that programs can have
    rate: float  # dense FLOP/s of a GPU in bfloat16
    bandwidth: float  # bytes/s of GPU memory
    parameters: int
    trained: int
    layer: int  # parameters of the largest decoder layer
    root: int  # parameters outside of the decoder layers: embeddings, head and last norm
    layers: int
    hidden: int
    inner: int  # width of the MLP
    queries: int  # heads · head_dim
    keys: int  # width of the keys, which is that of the values
    vocabulary: int
    context: int  # tokens of the longest sequence that must fit into the engine
    responses: int
    prompts: int  # distinct ones that responses are scored under
    prompt: int  # the longest prompt; half of this length is taken as the mean
    longest: int  # the longest response
    mean: float  # the mean response
    assumed: bool  # whether the mean is a guess
    mini_batches: int
    token_budget: int
    iterations: int | None  # of the run; None if the number depends on the number of questions
    kl: bool  # whether there is a forward for a KL term
    copies: int  # copies of the weights: the policy, and the frozen reference of a KL term
    checkpointing: float  # share of layers that are recomputed in the backward pass
    ranks: int
    nodes: int
    # whether FSDP2 shards weights, gradients and optimizer state; else each rank has all of them
    sharded: bool
    replicas: int  # replicas of the sharded model
    offloaded: bool  # whether the shards are in host memory
    reduced: bool  # whether matrix products are computed in bfloat16; else in float32
    awake: float  # GiB of the engine on each of its GPUs during sampling
    asleep: float  # GiB of the engine on each of these GPUs during an update
    held: float  # GiB of the engine's weights
    token: float  # GiB of the keys and values of one token
    rows: int  # responses that the engine samples at once, if they fit into its cache
    utilization: float = 0.0  # vLLM's share of the GPU; 0 for an engine without a fixed share
    team: int = 1  # GPUs that share an engine
    servers: int = 0  # GPUs of servers; 0 if the engine samples on the training GPUs
    ahead: bool = False  # whether servers sample the next batch during the update
    kept: int = 0  # checkpoints that are kept; 0 if the run writes none

    def tokens(self) -> float:
        """Return the number of distinct tokens of all ranks in one iteration."""
        return self.responses * self.mean + self.prompts * self.prompt / 2

    def fullest(self) -> int:
        """Return the number of tokens in the largest micro-batch, with the longest responses that fit."""
        own = max(self.responses // self.ranks // self.mini_batches, 1)
        prompt = max(self.prompt // 2, 1)
        return prompt + min(max(self.token_budget - prompt, self.longest), own * self.longest)

    def activation_bytes(self) -> float:
        """Return the bytes of activations for the backward pass of the fullest micro-batch.

        For each token, a layer keeps the inputs of its products and of its rotary embedding, queries, keys,
        values, the output of attention, and gate, up, their activation and product; norms keep a copy in
        float32. A recomputed layer keeps only its input until its backward pass. The temporary tensors of one
        layer are included.
        """
        size = 2 if self.reduced else 4
        wide = 4 * self.hidden + 3 * self.queries + 4 * self.keys + 4 * self.inner
        whole = size * wide + 4 * (2 * self.hidden + self.queries + self.keys)
        again = math.ceil(self.checkpointing * self.layers)
        kept = again * size * self.hidden + (self.layers - again) * whole
        turn = (whole if again else 0) + size * 3 * self.inner
        return self.fullest() * (kept + turn)

    def updating(self) -> dict[str, float]:
        """Return the GiB on one GPU at the peak of an update, by purpose.

        Weights and AdamW's two moments are float32.
        """
        share = 1.0
        if self.offloaded:
            share = 0.0
        elif self.sharded:
            share = self.replicas / self.ranks
        size = 2 if self.reduced else 4
        # FSDP2 gathers the root and, ahead of time, a second layer; autocast keeps copies of all weights.
        together = 0
        if self.sharded:
            together = self.root + 2 * self.layer
        elif self.reduced:
            together = self.parameters
        rows = min(max(2**27 // self.vocabulary, 1), self.fullest())  # of a chunk of logits and its gradient
        parts = {
            "weights": 4 * self.parameters * share,
            "gathered": size * together,
            # DDP's buckets are a second copy.
            "gradients": 4 * self.trained * (share + (not self.sharded and self.ranks > 1)),
            "optimizer": 8 * self.trained * share,
            "activations": self.activation_bytes(),
            "head": rows * self.vocabulary * 2 * size,
            # FSDP2 keeps the root of a model gathered after a forward without gradient, in two bytes.
            "reference": (self.copies - 1) * (4 * self.parameters * share + 2 * self.root * self.sharded),
        }
        sizes = {part: size / GIB for part, size in parts.items()}
        return sizes | {"context": CONTEXT, "engine": 0.0 if self.servers else self.asleep}

    def sampling(self) -> dict[str, float]:
        """Return the GiB on one GPU during sampling, by purpose."""
        kept = ("weights", "gradients", "optimizer", "reference", "context")
        sizes = {part: size for part, size in self.updating().items() if part in kept}
        return sizes | {"engine": 0.0 if self.servers else self.awake}

    def host(self) -> dict[str, float]:
        """Return the GiB of host memory on the first node, by purpose.

        Loading and export need float32 weights; the memory for other purposes is permanent.
        """
        whole, own = 4 * self.parameters / GIB, self.ranks / self.nodes
        shards = (self.copies * whole + 12 * self.trained / GIB) * self.replicas / self.nodes
        sleeps = self.utilization and not (self.asleep or self.servers)
        return {
            "loading, export": whole if self.sharded else own * self.copies * whole,
            "offloaded": shards if self.offloaded else 0.0,
            "sleeping engines": own * self.held if sleeps else 0.0,
        }

    def checkpoint(self) -> float:
        """Return the GiB of a checkpoint: float32 weights, and AdamW's two moments of trained weights."""
        return (4 * self.parameters + 8 * self.trained) / GIB

    def disk(self) -> float:
        """Return the GiB of all checkpoints during a write; the oldest checkpoint is deleted afterwards."""
        return (self.kept + 1) * self.checkpoint() if self.kept else 0.0

    def least(self) -> float:
        """Return the GiB that vLLM needs on a GPU.

        The weights and the cache of one sequence fill at most 90 % of this memory, the weights at most 75 %.
        """
        return (
            max((self.held + self.context * self.token) / 0.9, self.held / 0.75) if self.utilization else 0.0
        )

    def forward_flop(self) -> float:
        """Return a forward's FLOP per token: two per weight, and attention to half of prompt and response."""
        return 2 * self.parameters + 2 * self.layers * self.queries * (self.prompt / 2 + self.mean)

    def update_flop(self) -> float:
        """Return the FLOP of an update over all GPUs.

        The old log-probs of later mini-batches and the KL are extra forward passes.
        """
        forwards = 1 - 1 / self.mini_batches + self.kl
        return self.tokens() * self.forward_flop() * (3 + self.checkpointing + forwards)

    def update_seconds(self) -> float:
        """Return the seconds of an update; small micro-batches reach a smaller share of the peak rate."""
        micro_batch = min(self.token_budget, self.tokens() / self.ranks / self.mini_batches)
        return self.update_flop() / self.ranks / self.rate / UPDATE_SHARE * (1 + HALF_TOKENS / micro_batch)

    def sampling_seconds(self) -> float:
        """Return the seconds of sampling.

        A decoding step reads the weights and the cache of its rows. At the end, the longest response is
        decoded alone.
        """
        wanted = self.responses * self.team / (self.servers or self.ranks)
        row = (self.prompt + self.mean) / 2 * self.token
        cache = (0.9 if self.utilization else 1.0) * self.awake - self.held
        rows = min(max(min(self.rows, cache / row), 1), wanted)
        alone = self.held * GIB / self.bandwidth
        many = alone + rows * (row * GIB / self.bandwidth + self.forward_flop() / self.team / self.rate)
        full, last = (STEP_SECONDS + seconds / ENGINE_SHARE for seconds in (many, alone))
        return wanted / rows * self.mean * full + (self.longest - self.mean) * last

    def spread(self) -> float:
        """Return the factor by which an iteration's seconds may be off.

        The errors of the compute rate and of the response length count as independent.
        """
        return math.exp(math.hypot(math.log(RATE_SPREAD), self.assumed * math.log(LENGTH_SPREAD)))


def figure(x: float) -> str:
    """Return a number with three significant digits: 1234.5 becomes 1,230."""
    return f"{float(f'{x:.3g}'):,g}"


def total(s: Setup) -> float:
    """Return the GiB on one GPU at the peak of an update."""
    return sum(s.updating().values())


def needed(s: Setup) -> list[str]:
    """Return changes that help if a run does not fit, the cheapest first; empty if the run fits."""
    after = {line: total(replace(s, **change)) for line, change in for_update(s).items()}
    helps = [f"{line}: then {size:.1f} GiB" for line, size in after.items() if size < 0.99 * total(s)]
    lines = (helps or ["GPUs with more memory, or a smaller model"]) if total(s) > s.memory else []
    if s.least() > s.awake or (not lines and sum(s.sampling().values()) > s.memory):
        lines += for_engine(s)
    return lines


def for_update(s: Setup) -> dict[str, dict[str, Any]]:
    """Return the settings that shrink an update, cheapest first, with the fields of `Setup` that change."""
    # The smallest share of layers, in tenths, whose recomputation makes an update fit.
    shares = (tenths / 10 for tenths in range(11))
    fits = (share for share in shares if total(replace(s, checkpointing=share)) <= FILLED * s.memory)
    share = max(next(fits, 1.0), s.checkpointing)
    budget = (
        int(s.token_budget * (1 - (total(s) - FILLED * s.memory) / s.updating()["activations"])) // 256 * 256
    )
    enough = budget >= s.prompt + s.longest
    adapters = {"copies": 1, "trained": min(s.trained, s.parameters // 100)}
    recomputed = (
        f"model.load.gradient_checkpointing={share if share < 1 else 'true'}, their layers computed twice"
    )
    return {
        recomputed: {"checkpointing": share},
        f"policy.token_budget={budget}, more micro-batches": {
            "token_budget": budget if enough else s.token_budget
        },
        "strategy=fsdp2, weights, gradients and moments spread over the GPUs": {"sharded": True},
        "strategy.replicas=1, shards over all GPUs": {"replicas": 1},
        "rollout.engine.sleep=true, vLLM's memory given back": {"asleep": 0.0} if s.utilization else {},
        "lora=default, gradients and moments of adapters alone": adapters,
        "strategy.cpu_offload=true, shards in host memory, steps several times longer": {
            "offloaded": s.sharded
        },
        "twice as many GPUs": {"ranks": s.ranks * (1 + s.sharded)},
    }


def for_engine(s: Setup) -> list[str]:
    """Return changes after which engine and training both have enough memory, the cheapest first."""
    if not s.utilization:
        return ["rollout.engine.max_rows=<fewer responses at one time>, or rollout=vllm"]
    room = s.awake
    # the largest share, in twentieths, that leaves training its memory
    if not s.servers and total(s) <= s.memory:
        others = max(sum(s.sampling().values()) - s.awake, total(s) - s.asleep if s.asleep else 0.0)
        room = max(math.floor(20 * (FILLED - others / s.memory)), 0) / 20 * s.memory
    fits = int((0.9 * min(room, s.awake) - s.held) / s.token) // 256 * 256
    team = s.team
    while s.least() * s.team / team > room and team < max(s.ranks, 8):
        team *= 2
    lines = {
        f"rollout.engine.max_model_len={fits}": s.prompt + s.longest <= fits < s.context,
        f"rollout.engine.gpu_memory_utilization={room / s.memory:.2f}": s.least() <= room,
        f"rollout.engine.tensor_parallel_size={team}": s.team < team <= s.ranks,
        "rollout=vllm_server, engines on GPUs of their own": True,
    }
    if s.servers:
        lines = {f"gpus_per_server={team}, servers with --tensor-parallel-size {team}": True}
    needs = f"of {s.awake:.1f} GiB {s.held:.1f} are weights, and a sequence of {s.context:,} tokens takes"
    return [f"{line}: {needs} {s.context * s.token:.1f}" for line, right in lines.items() if right]
