"""Build objects from a composed configuration.

Building loads no model, so that wrong settings fail at once. This file imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ..redaction import for_terminal
from ..runs.directory import checkpoints_in, wandb_run_id
from ..starter import starter_path
from ..starter.smollm2 import smollm2_folder
from .choices import check_choices
from .methods import configs
from .numbers import check_numbers
from .trainer import check_trainer

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from ..callbacks import RolloutCallback
    from ..datamodules.lightning.questions import QuestionDataModule
    from ..modules.lightning.policy_module import PolicyModule
    from ..types import Engine

T = TypeVar("T")
PARTS = (
    "advantage", "loss", "optimizer", "policy", "model", "model.load", "template", "reward", "trainer", "data",
    "rollout", "rollout.engine", "rollout.sampling", "rollout.evaluation_sampling",
)  # fmt: skip
"""Settings that are mappings of other settings in every run."""
GROUPS = ("callbacks", "logger", "rollout.reward_terms", "data.evaluation")
"""Settings that are mappings of named parts; null without parts."""
OPTIONAL = ("credit", "lora", "mismatch", "data.curriculum", "rollout.dynamic_sampling")
"""Parts that a run may lack, in which case they are null."""
USUAL_FORMAT = warnings.formatwarning
CHATTER = re.compile(
    r"💡|[GTH]PU available|Using (16|bf16)bit|`Trainer[.(].*(stopped|will be used)|`weights_only` was not set|Restored "
    r"all states|All distributed processes registered|-{20}|\n?Initializing distributed"
)
"""Pattern of messages that Lightning logs in every run."""


def run_name(name: str, seed: int) -> str:
    """Return the name of a run for loggers; in a sweep, the name includes the settings that vary."""
    swept = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    folder = HydraConfig.get().sweep.subdir if swept else f"seed{seed}"
    return f"{name}-{folder}".replace("/", "-")


def longest(data: DictConfig, sampling: DictConfig, evaluation_sampling: DictConfig) -> int:
    """Return the number of tokens of the longest possible prompt with response, in training or evaluation."""
    evaluated = data.max_evaluation_prompt_tokens or data.max_prompt_tokens
    return int(
        max(data.max_prompt_tokens + sampling.max_new_tokens, evaluated + evaluation_sampling.max_new_tokens)
    )


def ranks_wait(engine: DictConfig | None) -> int:
    """Return the timeout of ranks in minutes: 20 minutes more than rank 0 waits for a vLLM server."""
    if engine is None or "patience" not in engine:
        return 30  # Lightning's default
    return math.ceil(float(engine.patience + (engine.retries + 2) * engine.timeout) / 60) + 20


def sweep_folder(overrides: str, seed: object) -> str:
    """Return the folder of a run in a sweep: the varying settings, then `seed<seed>` as outside of sweeps.

    Args:
        overrides: The settings, separated by commas. If they have more than 120 bytes in UTF-8, the folder's
            name is cut and ends in a digest.
        seed: Seed of the run.

    >>> sweep_folder("loss.clip_high=0.3,seed=1", 1), sweep_folder("seed=2", 2), sweep_folder("model.path=a/b", 0)
    ('loss.clip_high=0.3/seed1', 'seed2', 'model.path=a-b/seed0')
    """
    varying = [setting for setting in overrides.split(",") if setting != f"seed={seed}"]
    name = ",".join(varying).replace("/", "-")
    if len(name.encode()) > 120:
        name = (
            f"{name.encode()[:110].decode(errors='ignore')},{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        )
    return f"{name}/seed{seed}" if name else f"seed{seed}"


RESOLVERS: dict[str, Callable[..., object]] = {
    "fused": lambda accelerator: accelerator in ("gpu", "cuda") or None,  # on CPUs torch's default is best
    "starter": lambda: str(starter_path()),
    "smollm2": lambda: str(smollm2_folder()),
    "updates": lambda iterations, mini: -1 if iterations is None else int(iterations) * mini,
    "questions": lambda rows, rephrasings: int(rows) // (1 + int(rephrasings)),
    "longest": longest,
    "ranks_wait": ranks_wait,
    "run_name": run_name,
    "sweep_folder": sweep_folder,
    "evaluation_folder": lambda run, name: f"{run}/diagnose" if run else f"runs/evaluation/{name}",
    "wandb_offline": lambda: "WANDB_API_KEY" not in os.environ,
    "wandb_run_id": wandb_run_id,
}
for resolver, function in RESOLVERS.items():
    OmegaConf.register_new_resolver(resolver, function, use_cache=function is wandb_run_id)


def compose_run(directory: str | Path, overrides: Sequence[str], command: str = "train") -> DictConfig:
    """Compose the settings of a run in `directory` as `command` does, for programs that build runs.

    Raises:
        ValueError: see `check_choices` and `check_sections`.
    """
    check_choices(overrides)
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose(command, [f'hydra.run.dir="{directory}"', *overrides], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    check_sections(cfg)
    drop_unchosen(cfg)
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


@dataclass(frozen=True)
class Run:
    """Objects of one run; `rollout` is one of the trainer's callbacks."""

    module: PolicyModule
    datamodule: QuestionDataModule
    trainer: Trainer
    directory: Path
    rollout: RolloutCallback

    def close(self) -> None:
        """Release engines and worker processes.

        Do not call this method between fit and test, since vLLM also ends the process group.
        """
        self.rollout.pipeline.close()


def check_sections(cfg: DictConfig) -> None:
    """Check that settings that must be mappings are mappings.

    Raises:
        ValueError: if one of `PARTS` is not a mapping, or if one of `OPTIONAL` or `GROUPS`, `data.train`, or
            a member of a group is neither a mapping nor null. The message names the setting.
    """
    for name in PARTS:
        part = OmegaConf.select(cfg, name)
        if not isinstance(part, DictConfig):
            shown = "null" if part is None else repr(part)
            raise ValueError(f"Expected {name} to be a mapping of settings, but got {shown}. Correct {name}.")
    for name in (*OPTIONAL, "data.train"):
        part = OmegaConf.select(cfg, name)
        if part is not None and not isinstance(part, DictConfig):
            raise ValueError(
                f"Expected {name} to be null or a mapping of settings, but got {part!r}. Correct {name}."
            )
    for setting in GROUPS:
        group = OmegaConf.select(cfg, setting)
        if group is None:
            continue
        if not isinstance(group, DictConfig):
            raise ValueError(
                f"Expected {setting} to be a mapping of names to parts, but got {group!r}. Correct it."
            )
        for member in group:
            try:
                part = group[member]
            except OmegaConfBaseException:  # the setting has no value, or refers to a setting without one
                continue
            if part is not None and not isinstance(part, DictConfig):
                raise ValueError(
                    f"Expected {setting}.{member!s} to be null, or the settings of a part, with a _target_, "
                    f"but got {part!r}. Correct it."
                )


def drop_unchosen(cfg: DictConfig) -> None:
    """Remove settings that experiments, scales and recipes make for optional parts that are not chosen.

    Such settings have no `_target_`, since the option `none` of a group has no `_target_`.
    """
    for setting in ("callbacks", "rollout.reward_terms"):
        group = OmegaConf.select(cfg, setting)
        if group is None:
            continue
        with open_dict(group):
            for name in [name for name, part in group.items() if part and "_target_" not in part]:
                del group[name]
    for setting in OPTIONAL:
        part = OmegaConf.select(cfg, setting)
        if isinstance(part, DictConfig) and "_target_" not in part:
            OmegaConf.update(cfg, setting, None, merge=False)


def guard_hooks(callback: Callback) -> None:
    """Convert StopIteration in a callback's hooks to an error; Lightning would take it for the data's end."""
    from lightning.pytorch import Callback

    from ..types.checks import own_code

    def guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(hook)
        def run(*arguments: Any, **options: Any) -> Any:
            try:
                return hook(*arguments, **options)
            except StopIteration as error:
                with own_code(callback, "callbacks"):
                    raise error

        return run

    for name in dir(callback):
        hook = getattr(callback, name) if name.startswith("on_") else None
        if callable(hook) and getattr(type(callback), name, None) is not getattr(Callback, name, None):
            setattr(callback, name, guarded(hook))


def instances(parts: DictConfig | None, setting: str, kind: Callable[..., T]) -> list[T]:
    """Build the parts of a group, such as `callbacks`, in the order of their names in the settings.

    Raises:
        ValueError: if a part is not a `kind`. The message names the part.
    """
    from hydra.utils import instantiate

    from ..types.checks import found

    built = {str(name): instantiate(part) for name, part in (parts or {}).items() if part}
    for name, part in built.items():
        if not isinstance(part, kind):  # type: ignore[arg-type]
            raise ValueError(
                f"Expected {setting}.{name} to make a {kind.__module__.partition('.')[0]} {kind.__name__}, "
                f"but its _target_ made {found(part)}. Correct {setting}.{name}._target_."
            )
    return list(built.values())


def build(cfg: DictConfig) -> Run:
    """Write a packaged model to its folder, and instantiate every part of a checked configuration.

    Raises:
        ValueError: if parts contradict each other, or a part calls `sys.exit`, which would end the program in
            silence.
    """
    try:
        return _build(cfg)
    except SystemExit as error:
        from ..types.checks import exit_of

        raise ValueError(
            f"Expected every part of the run to be built, but {exit_of(error)}. Correct that part, or choose "
            "another _target_."
        ) from error


def _build(cfg: DictConfig) -> Run:
    import torch
    import transformers
    from hydra.utils import instantiate
    from lightning.pytorch import Callback, seed_everything
    from lightning.pytorch.callbacks import Checkpoint, ProgressBar
    from lightning.pytorch.loggers import Logger

    from ..callbacks import Checkpointer, RolloutCallback
    from ..datamodules.lightning.questions import QuestionDataModule
    from ..modules.lightning.accelerator import SharedCUDAAccelerator
    from ..modules.lightning.strategy import check_strategy
    from ..runs.checkpoints import AtomicCheckpointIO
    from ..runs.scalars import ScalarLog, in_order
    from ..types.checks import found
    from .typed import check_declared

    check_declared(cfg)
    if cfg.model.get("make"):
        instantiate(cfg.model.make)
    quiet()
    transformers.utils.logging.disable_progress_bar()
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    seed_everything(cfg.seed, workers=True, verbose=False)
    configured = instances(cfg.get("callbacks"), "callbacks", Callback)
    for callback in configured:
        guard_hooks(callback)
    directory = Path(HydraConfig.get().runtime.output_dir)
    pipeline = instantiate(cfg.rollout)
    if any(isinstance(callback, Checkpointer) for callback in configured):
        pipeline = partial(pipeline, engine=kept_engine(pipeline.keywords["engine"], directory))
    rollout = RolloutCallback(pipeline)
    callbacks = in_order([*configured, rollout, ScalarLog()])
    loggers = instances(cfg.get("logger"), "logger", Logger)
    module = policy_module(cfg)
    if cfg.rollout.reward_terms and not module.advantage.reads_rewards:
        raise ValueError(
            "Expected a strategy that learns from shaped rewards, since rollout.reward_terms are "
            f"{', '.join(cfg.rollout.reward_terms)}, but {type(module.advantage).__name__} reads verdicts "
            "alone. Use another advantage, or 'reward_terms=[]'."
        )
    datamodule = instantiate(cfg.data)
    if not isinstance(datamodule, QuestionDataModule):
        raise ValueError(
            f"Expected data to make a QuestionDataModule, but its _target_ made {found(datamodule)}. Correct "
            "data._target_."
        )
    # Where there is none, Lightning would add a ModelCheckpoint, and a progress bar, which counts epochs.
    saves, shows = (any(isinstance(each, kind) for each in callbacks) for kind in (Checkpoint, ProgressBar))
    bar = cfg.trainer.get("enable_progress_bar", shows)
    own = {"plugins": [AtomicCheckpointIO()], "enable_checkpointing": saves, "enable_progress_bar": bar}
    if shares_gpus(cfg) and torch.cuda.is_available():
        own["accelerator"] = SharedCUDAAccelerator()
    trainer = instantiate(cfg.trainer, callbacks=callbacks, logger=loggers, **own)
    check_strategy(trainer.strategy)
    return Run(module, datamodule, trainer, directory, rollout)


def kept_engine(make: Callable[[], Engine], directory: Path) -> Callable[[], Engine]:
    """Return a function that makes the engine of a run.

    The engine keeps the responses of servers until a checkpoint contains them.
    """
    from ..rollouts.engines.cached import keep_paid

    def covered() -> int:
        return max(checkpoints_in(directory / "checkpoints"), default=0)

    return keep_paid(make, directory / "rollout_cache", covered)


def shares_gpus(cfg: DictConfig) -> bool:
    """Return whether a vLLM engine runs in the training process, on the GPUs of the trainer."""
    colocated = cfg.rollout.engine._target_.endswith("VLLMEngine")
    return colocated and cfg.trainer.accelerator in ("auto", "cuda", "gpu")


def policy_module(cfg: DictConfig) -> PolicyModule:
    """Return the Lightning module of the policy and its update."""
    from hydra.utils import instantiate

    from ..modules.lightning.policy_module import PolicyModule

    parts = {name: instantiate(cfg[name]) for name in ("advantage", "loss", "optimizer")}
    parts |= {name: instantiate(cfg.get(name)) for name in ("credit", "mismatch")}
    load, options = instantiate(cfg.model.load), instantiate(cfg.policy)
    return PolicyModule(load_model=load, model_path=cfg.model.path, options=options, **parts)


def check_settings(cfg: DictConfig, trains: bool = True) -> None:
    """Check for settings that would fail later in the run, or that training would not follow.

    `trains` is whether the command trains.

    Raises:
        ValueError: if there is such a setting. The message names the setting.
    """
    check_numbers(cfg)
    if cfg.recipe == "authors" and not exists(settings := HydraConfig.get().runtime.choices.get("settings")):
        raise ValueError(
            "Expected an experiment whose authors ran something else than their paper says, since "
            f"recipe=authors, but there are no settings {settings} for {cfg.name}. Use recipe=paper."
        )
    check_trainer(cfg.trainer)
    if trains and cfg.data.batch_size < cfg.policy.mini_batches:
        raise ValueError(
            f"Expected data.batch_size ≥ policy.mini_batches, but got {cfg.data.batch_size} and "
            f"{cfg.policy.mini_batches}: each optimizer step learns from whole questions. Raise "
            "data.batch_size."
        )
    made_by = cfg.model.get("made_by")
    if made_by and not (Path(cfg.model.path) / "config.json").is_file():
        raise ValueError(
            f"Expected the starter policy of this task at {cfg.model.path}, but it has not been made yet. "
            f"Make it in a copy of the repository, in minutes, with `{made_by}`, or set model.path to "
            "another policy."
        )
    asked = f"{cfg.template.get('instruction', '')}{cfg.template.get('format', '')}"
    if "boxed" in asked and cfg.reward._target_.endswith("FinalAnswerReward"):
        raise ValueError(
            "Expected a reward that reads boxes, since the template asks for \\boxed{}, but "
            f"reward=final_answer reads what follows {cfg.reward.marker!r}. Use reward=mixed or reward=math."
        )
    temperature = cfg.rollout.sampling.temperature
    if temperature <= 0:
        raise ValueError(
            f"Expected rollout.sampling.temperature > 0 in training, but got {temperature}: greedy responses "
            "to a prompt are all the same. Use rollout.evaluation_sampling.temperature=0 for greedy "
            "evaluation."
        )
    if cfg.trainer.max_steps < 0 and (cfg.trainer.max_epochs or -1) < 0:
        raise ValueError(
            "Expected a run that ends, but iterations is null and trainer.max_epochs is "
            f"{cfg.trainer.max_epochs}. Set one of them."
        )
    ks = OmegaConf.select(cfg, "callbacks.pass_at_k.ks")
    if ks and min(ks) > cfg.data.evaluation_samples:
        raise ValueError(
            "Expected callbacks.pass_at_k.ks to hold a k of at most data.evaluation_samples = "
            f"{cfg.data.evaluation_samples}, but got {list(ks)}: pass@k needs k samples. Lower one or raise "
            "the other."
        )
    if trains and cfg.data.train is not None:
        _check_pools("advantage", cfg.advantage, cfg.data)


def _check_pools(path: str, advantage: DictConfig, data: DictConfig) -> None:
    """Raise a ValueError if pools of a strategy, or of one nested in it, are too small for advantages.

    All advantages of such pools would be zero.
    """
    for name, part in advantage.items():
        if isinstance(part, DictConfig):
            _check_pools(f"{path}." + str(name), part, data)
    pool, k = advantage.get("group_by") or "question", advantage.get("k")
    if advantage.get("baseline") == "none" and advantage.get("scale") == "none":
        return
    size, settings = data.samples_per_prompt, "data.samples_per_prompt"
    if pool != "prompt":
        if data.num_rephrasings is None:  # as many as there are
            return
        size, settings = size * (data.num_rephrasings + 1), f"{settings} · (data.num_rephrasings + 1)"
    if pool == "batch":
        size, settings = size * data.batch_size, f"{settings} · data.batch_size"
    if size < 2 or (k is not None and size <= k):
        raise ValueError(
            f"Expected pools of more than {1 if k is None else k} responses, but {path}.group_by={pool} "
            f"makes pools of {settings} = {size}: all advantages would be zero. Raise data.samples_per_prompt"
            + (f", or lower {path}.k." if k is not None else f", or set {path}.group_by=batch.")
        )


def exists(settings: str | None) -> bool:
    """Return whether the package or a user's configuration folder has the file `settings/<settings>.yaml`."""
    if not settings:
        return False
    sources = HydraConfig.get().runtime.config_sources
    folders = [configs(), *(Path(source.path) for source in sources if source.schema == "file")]
    return any((folder / "settings" / f"{settings}.yaml").is_file() for folder in folders)


class PrintableFormatter(logging.Formatter):
    """Log formatter that removes secrets and escapes control characters.

    Libraries also log errors of third-party parts, whose text is untrusted.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a message without secrets, and with control characters escaped."""
        return for_terminal(super().format(record))


class Ours(logging.Filter):
    """Filter that keeps library messages off the console, except errors.

    Messages of tagrpo come through Lightning's logger.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a message."""
        return record.name.startswith(("tagrpo", "lightning")) or record.levelno >= logging.ERROR


def quiet() -> None:
    """Silence routine messages of libraries, but not their warnings and errors, nor tagrpo's messages.

    Lightning's log handlers are removed: together with Hydra's handler, they would show each line twice.
    Warnings of tagrpo are shown without their line of code.
    """
    ours = str(Path(__file__).parents[1])

    def shown(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if filename.startswith(ours):
            return f"Warning: {message}\n"
        return USUAL_FORMAT(message, category, filename, lineno, line)

    warnings.formatwarning = shown
    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).handlers.clear()
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(
            lambda record: not CHATTER.match(record.getMessage())
        )
    for name in ("sentence_transformers", "httpx", "httpx2", "openai"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r"`?isinstance\(treespec, LeafSpec\)")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
