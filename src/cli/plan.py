"""`tagrpo-plan`: does a run fit, and what does it cost? Only `main` knows Hydra.

    tagrpo-plan experiment=ta_grpo scale=paper model=qwen3_1.7b gpu=h100

Takes the settings of `tagrpo-train`. Nothing is loaded but the model's configuration.
"""

from __future__ import annotations

from omegaconf import DictConfig, ListConfig
from rich.console import Console
from rich.table import Table

from ..settings.checks import check_given, check_types
from ..settings.config import check
from .console import entry_point, explained
from .forecast import (
    CONTEXT,
    GIB,
    GPUS,
    SAMPLING_SHARE,
    UPDATE_SHARE,
    Engine,
    Forecast,
    Gpu,
    Model,
    Workload,
    advice,
    forecast,
)


def workload_of(cfg: DictConfig, ranks: int) -> Workload:
    """The run's shape, from its settings."""
    from hydra.utils import get_class
    from lightning.pytorch.strategies import DDPStrategy

    from ..modules.strategy import FullyShardedStrategy

    data, policy = cfg.data, cfg.policy
    prompts = 1 + (data.num_rephrasings or 0)
    limits = [cfg.trainer.max_steps // policy.mini_batches] if cfg.trainer.max_steps > 0 else []
    if (cfg.trainer.max_epochs or 0) > 0 and cfg.questions:
        limits.append(cfg.trainer.max_epochs * (cfg.questions // data.batch_size))
    strategy = get_class(cfg.strategy._target_) if isinstance(cfg.strategy, DictConfig) else object
    sharded = issubclass(strategy, FullyShardedStrategy)
    longest = cfg.rollout.sampling.max_new_tokens
    return Workload(
        ranks=ranks,
        questions=data.batch_size,
        responses=prompts * data.samples_per_prompt,
        score_prompts=1 if policy.anchor == "original" else prompts,
        prompt=data.max_prompt_tokens,
        longest=longest,
        mean=cfg.mean_length * longest,
        mini_batches=policy.mini_batches,
        token_budget=policy.token_budget,
        iterations=min(limits, default=None),
        reference=bool(cfg.loss.kl_coef) and not cfg.get("lora"),
        reference_forward=bool(cfg.loss.kl_coef),
        checkpointing=float(cfg.model.load.get("gradient_checkpointing") or 0.0),
        sharded=sharded,
        offloaded=sharded and cfg.strategy.cpu_offload,
        doubled=issubclass(strategy, DDPStrategy),
        reduced=cfg.policy.compute_dtype == "bfloat16"
        or (cfg.policy.compute_dtype == "auto" and cfg.trainer.accelerator != "cpu"),
    )


def model_of(cfg: DictConfig) -> Model:
    """Sizes of the model that settings name, which is made without memory."""
    import torch
    from hydra.utils import instantiate

    from ..modules.policy.sharding import decoder_layers

    with torch.device("meta"):
        model = instantiate(cfg.model.load, weights="random")()
    config, layers = model.config, [sum(p.numel() for p in m.parameters()) for m in decoder_layers(model)]
    parameters = sum(p.numel() for p in model.parameters())
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Model(
        parameters=parameters,
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        layer=max(layers),
        root=parameters - sum(layers),
        layers=len(layers),
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        queries=config.num_attention_heads * head,
        keys=config.num_key_value_heads * head,
        vocabulary=config.vocab_size,
    )


def engine_of(cfg: DictConfig, gpu: Gpu, model: Model) -> Engine:
    """Memory of the engine, from its settings."""
    import torch
    from hydra.utils import get_class

    from ..rollouts import TransformersEngine, VLLMEngine

    settings = cfg.rollout.engine
    kind = get_class(settings._target_)
    if issubclass(kind, VLLMEngine):
        awake, team = settings.gpu_memory_utilization * gpu.memory, settings.tensor_parallel_size
        weights = model.parameters * getattr(torch, settings.dtype).itemsize / GIB / team
        return Engine(awake=awake, asleep=0.0 if settings.sleep else awake, weights=weights, parallel=team)
    if not issubclass(kind, TransformersEngine):
        return Engine(own_gpus=True)
    size = getattr(torch, settings.get("dtype", "float32")).itemsize
    rows = min(settings.get("max_rows", 512), cfg.data.batch_size * cfg.data.samples_per_prompt)
    cached = rows * (cfg.data.max_prompt_tokens + cfg.rollout.sampling.max_new_tokens)
    weights = model.parameters * size / GIB
    return Engine(awake=weights + 2 * model.layers * model.keys * size * cached / GIB, asleep=weights)


def plan(cfg: DictConfig) -> tuple[Forecast, Workload, list[str]]:
    """Needs of the run of a composed configuration, and what to change when it does not fit."""
    check(cfg)
    if cfg.gpu not in GPUS:
        raise ValueError(f"Expected gpu to be one of {', '.join(GPUS)}, but got {cfg.gpu!r}.")
    if not 0 < cfg.mean_length <= 1:
        raise ValueError(f"Expected mean_length to be above 0 and at most 1, but got {cfg.mean_length}.")
    gpu, devices = GPUS[cfg.gpu], cfg.trainer.devices
    if isinstance(devices, ListConfig):
        devices = len(devices)
    ranks = (cfg.gpus_per_node if devices in ("auto", -1) else int(devices)) * cfg.trainer.num_nodes
    work, model = workload_of(cfg, ranks), model_of(cfg)
    engine = engine_of(cfg, gpu, model)
    found = forecast(model, work, gpu, engine)
    return found, work, advice(found, work, gpu, engine, adapted=bool(cfg.get("lora")))


def show(found: Forecast, work: Workload, lines: list[str], gpu: str, console: Console) -> None:
    """Print a forecast."""
    limit = GPUS[gpu].memory
    table = Table("GiB per GPU", "in an update", "while sampling", title=f"{work.ranks} × {gpu}, {limit:.0f} GiB each")
    for part in found.update:
        sizes = (f"{phase.get(part, 0.0):.1f}" for phase in (found.update, found.sampling))
        table.add_row(part, *sizes)
    totals = [sum(phase.values()) for phase in (found.update, found.sampling)]
    table.add_row("total", *(f"{total:.1f}" for total in totals), style="bold")
    console.print(table)
    responses = work.questions * work.responses
    hours = "unknown: the run lasts for epochs; say questions=<how many there are>"
    if work.iterations is not None:
        hours = " to ".join(f"{s * work.ranks * work.iterations / 3600:,.3g}" for s in found.seconds)
    best, worst = found.seconds
    console.print(
        f"An iteration: {responses:,} responses, {responses * work.mean / 1e6:.3g} million tokens; its update "
        f"{found.flop / 1e15:,.3g} PFLOP; {best:.3g} to {worst:.3g} seconds. Iterations: {work.iterations or '?'}. "
        f"GPU hours: {hours}."
    )
    console.print(
        f"Assumed: responses of {work.mean:.0f} tokens on average, {work.mean / work.longest:.0%} of the longest "
        f"(mean_length); {UPDATE_SHARE[0]:.0%} to {UPDATE_SHARE[1]:.0%} of the peak rate is useful work in an update "
        f"and {SAMPLING_SHARE[0]:.0%} to {SAMPLING_SHARE[1]:.0%} in sampling; {CONTEXT:.0f} GiB of contexts and "
        "fragments; layers are not compiled, which would keep less; every token passes every weight, so that of "
        "mixtures of experts the hours are too many. Evaluation, verification and start-up are not in it.",
        style="dim",
    )
    if not lines:
        console.print(f"It fits: at most {max(totals):.1f} of {limit:.1f} GiB.")
        return
    console.print("It does not fit. Each of these helps, the cheapest first; then plan again:")
    for line in lines:
        console.print(f"- {line}", markup=False)


@entry_point("plan")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    with explained():
        check_types(cfg)
        check_given(cfg)
        found, work, lines = plan(cfg)
    show(found, work, lines, cfg.gpu, Console())


if __name__ == "__main__":
    main()
