"""`tagrpo-plan`: does a run fit, and what does it cost? Only `main` knows Hydra.

    tagrpo-plan experiment=ta_grpo scale=paper model=qwen3_1.7b gpu=h100

Takes the settings of `tagrpo-train`. Nothing is loaded but the model's configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from ..settings.checks import check_given, check_types
from ..settings.config import check
from .console import entry_point, explained

if TYPE_CHECKING:
    from ..planning.forecast import Engine, Forecast, Gpu, Workload

MEANINGS = {
    "gathered": "weights of other GPUs, gathered",
    "head": "output head",
    "reference": "reference policy",
    "context": "CUDA, NCCL, fragments",
    "engine": "engine, its weights and cache",
}
"""Parts of memory in more words."""


def workload_of(cfg: DictConfig, ranks: int) -> Workload:
    """The run's shape, from its settings."""
    from ..planning.forecast import Workload

    data, policy = cfg.data, cfg.policy
    prompts = 1 + (data.num_rephrasings or 0)
    limits = [cfg.trainer.max_steps // policy.mini_batches] if cfg.trainer.max_steps > 0 else []
    if (cfg.trainer.max_epochs or 0) > 0 and cfg.questions:
        limits.append(cfg.trainer.max_epochs * (cfg.questions // data.batch_size))
    return Workload(
        ranks=ranks,
        questions=data.batch_size,
        responses=prompts * data.samples_per_prompt,
        score_prompts=1 if policy.anchor == "original" else prompts,
        prompt=data.max_prompt_tokens,
        longest=cfg.rollout.sampling.max_new_tokens,
        mini_batches=policy.mini_batches,
        token_budget=policy.token_budget,
        iterations=min(limits, default=None),
        reference=bool(cfg.loss.kl_coef) and not cfg.get("lora"),
        reference_forward=bool(cfg.loss.kl_coef),
        checkpointing=float(cfg.model.load.get("gradient_checkpointing") or 0.0),
    )


def engine_of(cfg: DictConfig, gpu: Gpu, parameters: int) -> Engine:
    """Memory of the engine, from its settings."""
    import torch
    from hydra.utils import get_class
    from transformers import AutoConfig

    from ..planning.forecast import GIB, Engine
    from ..rollouts import TransformersEngine, VLLMEngine

    settings = cfg.rollout.engine
    kind = get_class(settings._target_)
    if issubclass(kind, VLLMEngine):
        awake = settings.gpu_memory_utilization * gpu.memory
        team = settings.tensor_parallel_size
        weights = parameters * getattr(torch, settings.dtype).itemsize / GIB / team
        return Engine(awake=awake, asleep=0.0 if settings.sleep else awake, weights=weights, parallel=team)
    if not issubclass(kind, TransformersEngine):
        return Engine(own_gpus=True)
    model = AutoConfig.from_pretrained(cfg.model.path, trust_remote_code=False)
    width = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    rows = min(settings.get("max_rows", 512), cfg.data.batch_size * cfg.data.samples_per_prompt)
    cached = cfg.data.max_prompt_tokens + cfg.rollout.sampling.max_new_tokens
    size = getattr(torch, settings.get("dtype", "float32")).itemsize
    cache = 2 * model.num_hidden_layers * model.num_key_value_heads * width * size * rows * cached
    weights = parameters * size / GIB
    return Engine(awake=weights + cache / GIB, asleep=weights)


def plan(cfg: DictConfig) -> tuple[Forecast, Workload, list[str]]:
    """What the run of a composed configuration needs, and what to change when it does not fit.

    Raises:
        ValueError: there is no such GPU, or settings contradict each other.
    """
    check(cfg)
    import torch
    from hydra.utils import get_class, instantiate
    from lightning.pytorch.strategies import DDPStrategy

    from ..modules.strategy import FullyShardedStrategy
    from ..planning.dry_run import dry_run_by_layers
    from ..planning.forecast import GIB, GPUS, advice, forecast

    if cfg.gpu not in GPUS:
        raise ValueError(f"Expected gpu to be one of {', '.join(GPUS)}, but got {cfg.gpu!r}.")
    gpu, devices = GPUS[cfg.gpu], cfg.trainer.devices
    ranks = (cfg.gpus_per_node if devices in ("auto", -1) else int(devices)) * cfg.trainer.num_nodes
    work = workload_of(cfg, ranks)
    target = cfg.strategy._target_ if isinstance(cfg.strategy, DictConfig) else ""
    sharded = bool(target) and issubclass(get_class(target), FullyShardedStrategy)
    on_gpu = cfg.trainer.accelerator != "cpu"
    reduced = cfg.policy.compute_dtype == "bfloat16" or (cfg.policy.compute_dtype == "auto" and on_gpu)
    packed = work.fullest()
    dry = dry_run_by_layers(
        instantiate(cfg.model.load, weights="random"),
        instantiate(cfg.optimizer),
        packed,
        ranks=ranks,
        sharded=sharded,
        compute_dtype=torch.bfloat16 if reduced else None,
        on_gpu=on_gpu,
        accumulates=work.micro_batches(work.longest) > 1,
        entropy="grad" if cfg.loss.get("entropy_coef") else "detached",
        by_token=cfg.loss.get("ratio", "token") == "token",
    )
    offloaded = sharded and cfg.strategy.cpu_offload
    if offloaded:
        dry = dry.offloaded()
    engine = engine_of(cfg, gpu, dry.parameters)
    found = forecast(dry, packed, work, gpu, engine, sharded)
    if target and issubclass(get_class(target), DDPStrategy):
        found.update["gradients"] += 4 * dry.trained / GIB  # DDP's buckets are a second copy
    options = {"sharded": sharded, "offloaded": offloaded, "adapted": bool(cfg.get("lora"))}
    return found, work, advice(found, work, gpu, engine, **options)


def show(found: Forecast, work: Workload, lines: list[str], gpu: str, console: Console) -> None:
    """Print a forecast."""
    from ..planning.forecast import CONTEXT, GPUS, LENGTHS, SAMPLING_SHARE, UPDATE_SHARE

    limit = GPUS[gpu].memory
    table = Table("GiB per GPU", "in an update", "while sampling", title=f"{work.ranks} × {gpu}, {limit:.0f} GiB each")
    for part in dict.fromkeys((*found.update, *found.sampling)):
        table.add_row(
            MEANINGS.get(part, part), *(f"{phase.get(part, 0.0):.1f}" for phase in (found.update, found.sampling))
        )
    totals = [sum(phase.values()) for phase in (found.update, found.sampling)]
    table.add_row("total", *(f"{total:.1f}" for total in totals), style="bold")
    console.print(table)

    def span(values: tuple[float, float], unit: float = 1.0) -> str:
        return " to ".join(f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in (value / unit for value in values))

    rows = [
        ("responses of an iteration", f"{found.responses:,}"),
        ("their tokens", f"{span(found.tokens, 1e6)} million"),
        ("arithmetic of its update", f"{span(found.flop, 1e15)} PFLOP"),
        ("memory that it reads and writes", f"{span(found.traffic, 1e12)} TB"),
        ("what each GPU receives", f"{span(found.network, 1e9)} GB"),
        ("seconds of an iteration", span(found.seconds)),
    ]
    if work.iterations is not None:
        hours = (found.seconds[0] * work.ranks / 3600, found.seconds[1] * work.ranks / 3600)
        rows.append(("iterations", f"{work.iterations:,}"))
        rows.append(("GPU hours", span((hours[0] * work.iterations, hours[1] * work.iterations))))
    else:
        rows.append(("GPU hours", "unknown: the run lasts for epochs; say questions=<how many there are>"))
    details = Table.grid(padding=(0, 2))
    for row in rows:
        details.add_row(*row)
    console.print(details)
    console.print(
        f"Assumed: responses of {LENGTHS[0]:.0%} to {LENGTHS[1]:.0%} of the longest ({work.longest} tokens); "
        f"{UPDATE_SHARE[0]:.0%} to {UPDATE_SHARE[1]:.0%} of the peak rate is useful work in an update and "
        f"{SAMPLING_SHARE[0]:.0%} to {SAMPLING_SHARE[1]:.0%} in sampling; {CONTEXT:.0f} GiB of contexts and fragments; "
        "layers are not compiled, which would keep less; every token passes every weight, so that of mixtures of "
        "experts the memory is right and the hours are not. Evaluation, verification and start-up are not in it.",
        style="dim",
    )
    if not lines:
        console.print(f"It fits: at most {max(totals):.1f} of {limit:.1f} GiB.")
        return
    phases = zip(("An update", "Sampling"), totals, strict=True)
    over = "".join(f" {phase} needs {total:.1f} of {limit:.1f} GiB." for phase, total in phases if total > limit)
    console.print(f"It does not fit.{over} Each of these helps, the cheapest first; then plan again:")
    for line in lines:
        console.print(f"- {line}", markup=False)


@entry_point("plan")
@hydra.main(config_path="pkg://tagrpo.configs", config_name="plan", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    with explained():
        check_types(cfg)
        check_given(cfg)
        found, work, lines = plan(cfg)
    show(found, work, lines, cfg.gpu, Console())


if __name__ == "__main__":
    main()
