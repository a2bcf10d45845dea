"""`tagrpo-plan`: check whether a run fits, and estimate its cost. Only `main` knows Hydra.

    tagrpo-plan experiment=ta_grpo scale=paper model=qwen3_1.7b gpu=h100

Takes the settings of `tagrpo-train`. Only the model's configuration is loaded; models.yaml has many models'
configurations.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from ..cli.console import entry_point, explained
from ..settings.checks import check_given
from ..settings.config import check_sections, check_settings
from ..settings.schema import Plan, check_fields
from ..settings.typed import check_declared
from .forecast import CONTEXT, ENGINE_SHARE, GIB, HALF_TOKENS, RATE_SPREAD, Setup, figure, needed


def workload_of(cfg: DictConfig, ranks: int) -> dict[str, Any]:
    """Return the workload of a run from its settings."""
    from hydra.utils import get_class

    from ..modules.lightning.strategy import FullyShardedStrategy

    data, policy, strategy, longest = cfg.data, cfg.policy, cfg.strategy, cfg.rollout.sampling.max_new_tokens
    if data.num_rephrasings is None:
        raise ValueError(
            "Expected data.num_rephrasings to be a number, but got null. Set it to that of the file."
        )
    asked = data.batch_size * (1 + data.num_rephrasings)
    batches = (cfg.trainer.max_epochs or 0) * ((cfg.questions or 0) // data.batch_size)
    sharded = isinstance(strategy, DictConfig) and issubclass(
        get_class(strategy._target_), FullyShardedStrategy
    )
    mean = longest / 2 if cfg.response_tokens is None else cfg.response_tokens
    if not (isinstance(mean, int | float) and 0 < mean <= longest):
        raise ValueError(
            f"Expected response_tokens to be above 0 and at most rollout.sampling.max_new_tokens={longest}, "
            f"but got {mean!r}. Set it to the mean of the responses, or to null."
        )
    original, kl = policy.anchor == "original", bool(cfg.loss.kl_coef)
    return {
        "responses": asked * data.samples_per_prompt, "prompts": data.batch_size if original else asked, "mean": mean,
        "assumed": cfg.response_tokens is None, "longest": longest, "prompt": data.max_prompt_tokens, "ranks": ranks,
        "iterations": min((n for n in (cfg.trainer.max_steps // policy.mini_batches, batches) if n > 0), default=None),
        "mini_batches": policy.mini_batches, "token_budget": policy.token_budget, "nodes": cfg.trainer.num_nodes,
        "kl": kl, "copies": 2 if kl and not cfg.get("lora") else 1, "sharded": sharded,
        "checkpointing": float(cfg.model.load.get("gradient_checkpointing") or 0),
        "replicas": strategy.get("replicas", 1) if sharded else 1, "offloaded": sharded and strategy.cpu_offload,
        "reduced": {"auto": cfg.trainer.accelerator != "cpu", "bfloat16": True}.get(policy.compute_dtype, False),
    }  # fmt: skip


def model_of(cfg: DictConfig) -> dict[str, int]:
    """Return the sizes of the configured model, by making it on the meta device, without memory."""
    import torch
    from hydra.utils import instantiate

    from ..modules.policy.flop import head_dim
    from ..modules.policy.sharding import decoder_layers

    known: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("models.yaml")))
    with torch.device("meta"), TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(known.get(cfg.model.path)))
        path = {"path": folder} if cfg.model.path in known else {}
        model = instantiate(cfg.model.load, **path)()
    config, layers = model.config, [sum(p.numel() for p in m.parameters()) for m in decoder_layers(model)]
    parameters = sum(p.numel() for p in model.parameters())
    head = head_dim(config)
    return {
        "parameters": parameters, "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "layer": max(layers), "root": parameters - sum(layers), "layers": len(layers),
        "hidden": config.hidden_size, "inner": config.intermediate_size, "vocabulary": config.vocab_size,
        "queries": config.num_attention_heads * head, "keys": config.num_key_value_heads * head,
        "context": config.max_position_embeddings,
    }  # fmt: skip


def engine_of(cfg: DictConfig, gpu: DictConfig, model: dict[str, int]) -> dict[str, Any]:
    """Return the engine's memory and GPUs; engines other than vLLM and transformers have separate GPUs."""
    import torch
    from hydra.utils import get_class

    from ..rollouts import TransformersEngine, VLLMEngine

    settings = cfg.rollout.engine
    kind, size = get_class(settings._target_), getattr(torch, settings.get("dtype", "float32")).itemsize / GIB
    held, token = model["parameters"] * size, 2 * model["layers"] * model["keys"] * size
    context = min(settings.get("max_model_len") or model["context"], model["context"])
    if issubclass(kind, TransformersEngine):
        rows = min(settings.get("max_rows", 512), cfg.data.batch_size * cfg.data.samples_per_prompt)
        cache = rows * (cfg.data.max_prompt_tokens + cfg.rollout.sampling.max_new_tokens) * token
        return {
            "awake": held + cache,
            "asleep": held,
            "held": held,
            "token": token,
            "rows": rows,
            "context": context,
        }
    colocated, urls = issubclass(kind, VLLMEngine), settings.get("url")
    share = settings.gpu_memory_utilization if colocated else 0.92  # vLLM's default
    team = settings.tensor_parallel_size if colocated else cfg.gpus_per_server
    servers = 0
    if not colocated:
        servers = team * (len(urls) if isinstance(urls, ListConfig) else 1)
    awake = share * gpu.memory
    return {
        "awake": awake, "asleep": 0.0 if settings.get("sleep") else awake, "utilization": share, "team": team,
        "held": held / team, "token": token / team, "context": context, "servers": servers,
        "ahead": servers > 0 and cfg.rollout.ahead > 0,
    }  # fmt: skip


def plan(cfg: DictConfig) -> Setup:
    """Return the forecast's input for a checked configuration: model, workload, engine and GPUs.

    Raises:
        ValueError: if `gpu` is not one of `gpus`, `data.num_rephrasings` is null, or `response_tokens` is out
            of its range.
    """
    if cfg.gpu not in cfg.gpus:
        raise ValueError(f"Expected gpu to be one of {', '.join(cfg.gpus)}, but got {cfg.gpu!r}.")
    gpu, devices, model = cfg.gpus[cfg.gpu], cfg.trainer.devices, model_of(cfg)
    devices = len(devices) if isinstance(devices, ListConfig) else devices
    ranks = (cfg.gpus_per_node if devices in ("auto", -1) else int(devices)) * cfg.trainer.num_nodes
    kept = OmegaConf.select(cfg, "callbacks.checkpoint.keep") or 0
    return Setup(**{**gpu, **model, **workload_of(cfg, ranks), **engine_of(cfg, gpu, model), "kept": kept})


def show(s: Setup, gpu: str, console: Console) -> None:
    """Print the forecast of a run, and changes that make the run fit."""
    phases = {"GPU, in an update": s.updating(), "GPU, sampling": s.sampling(), "host": s.host()}
    table = Table(
        "GiB", *phases, title=f"{s.ranks} × {gpu}, {s.memory:.0f} GiB each; the host is the first node"
    )
    for part in dict.fromkeys(part for sizes in phases.values() for part in sizes):
        table.add_row(part, *(f"{sizes[part]:.1f}" if part in sizes else "" for sizes in phases.values()))
    totals = [sum(sizes.values()) for sizes in phases.values()]
    table.add_row("total", *(f"{size:.1f}" for size in totals), style="bold")
    console.print(table)
    update, sampling = s.update_seconds(), s.sampling_seconds()
    seconds, count = max(update, sampling) if s.ahead else update + sampling, s.iterations or 1
    cost = (s.ranks + s.servers) * seconds
    shown = (
        cost,
        cost / s.spread(),
        cost * s.spread(),
        s.ranks * (seconds - update),
        s.servers * (seconds - sampling),
    )
    hours, low, high, *idle = (figure(each * count / 3600) for each in shown)
    run = "an iteration (for the run, set questions=<how many there are>)"
    if s.iterations:
        run = f"{count} iterations"
    console.print(
        f"An iteration: {s.responses:,} responses, {figure(s.responses * s.mean / 1e6)} million tokens, are "
        f"sampled in {figure(sampling)} seconds, {'while' if s.ahead else 'then'} an update takes "
        f"{figure(update)} ({figure(s.update_flop() / 1e15)} PFLOP).\nGPU hours of {run}: {hours}, from "
        f"{low} to {high}."
    )
    if s.servers:
        console.print(
            f"Idle of these: {idle[0]} of {s.ranks} GPUs that train, {idle[1]} of {s.servers} of servers."
        )
    if s.kept:
        console.print(
            f"Disk: a checkpoint takes {figure(s.checkpoint())} GiB; with "
            f"callbacks.checkpoint.keep={s.kept}, {figure(s.disk())} GiB while one is written."
        )
    console.print(
        f"Assumed: responses of {s.mean:.0f} tokens on average{', a guess (response_tokens)' * s.assumed}; "
        f"half of the peak rate in updates, a quarter in micro-batches of {HALF_TOKENS:,} tokens; "
        f"{ENGINE_SHARE:.0%} of the bandwidth in engines; times right to a factor of {RATE_SPREAD}; "
        f"{CONTEXT:.0f} GiB of contexts and fragments; layers not compiled, which would keep less; too many "
        "hours for mixtures of experts. Not included: further samples of dynamic sampling and "
        "reformulators, evaluation, verification, the transfer of weights, start-up, and the memory of the "
        "processes themselves.",
        style="dim",
    )
    if lines := needed(s):
        console.print("It does not fit. Each of these helps, the cheapest first; then plan again:")
    else:
        console.print(f"It fits: at most {max(totals[:2]):.1f} of {s.memory:.1f} GiB.")
    for line in lines:
        console.print(f"- {line}", markup=False)


@entry_point("plan")
def main(cfg: DictConfig) -> None:
    """Run `tagrpo-plan`."""
    with explained():
        check_fields(cfg, Plan)
        check_sections(cfg)
        check_given(cfg)
        check_settings(cfg)
        check_declared(cfg)
        setup = plan(cfg)
    show(setup, cfg.gpu, Console())


if __name__ == "__main__":
    main()
