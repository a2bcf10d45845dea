"""From a composed configuration to built objects. No model is loaded yet, so that wrong settings fail at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
import transformers
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint
from omegaconf import DictConfig, OmegaConf

from .callbacks import RolloutCallback
from .datamodules.questions import QuestionDataModule
from .loggers import wandb_run_id
from .modules.policy import PolicyModule
from .redaction import refuse_secrets
from .scalars import ScalarLog
from .stages import in_order
from .starter import starter_path

OmegaConf.register_new_resolver("starter", lambda: str(starter_path()))
OmegaConf.register_new_resolver("updates", lambda iterations, mini_batches: int(iterations) * int(mini_batches))
OmegaConf.register_new_resolver("questions", lambda rows, rephrasings: int(rows) // (1 + int(rephrasings)))
OmegaConf.register_new_resolver("wandb_offline", lambda: "WANDB_API_KEY" not in os.environ)
OmegaConf.register_new_resolver("wandb_run_id", wandb_run_id, use_cache=True)


@dataclass(frozen=True)
class Run:
    """The objects of one run."""

    module: PolicyModule
    datamodule: QuestionDataModule
    trainer: Trainer
    directory: Path

    def close(self) -> None:
        """Give back engines and worker processes."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RolloutCallback):
                callback.close()


def build(cfg: DictConfig) -> Run:
    """Check the configuration and instantiate every part of it.

    Raises:
        ValueError: settings contradict each other; the message says what to change.
        SystemExit: there is a secret among the settings.
    """
    refuse_secrets(cfg, HydraConfig.get().runtime.output_dir)
    check(cfg)
    transformers.utils.logging.disable_progress_bar()
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    seed_everything(cfg.seed, workers=True, verbose=False)
    configured = [instantiate(callback) for callback in (cfg.callbacks or {}).values() if callback]
    callbacks = in_order([*configured, instantiate(cfg.rollout), ScalarLog()])
    loggers = [instantiate(logger) for logger in (cfg.logger or {}).values() if logger]
    return Run(
        module=instantiate(cfg.policy),
        datamodule=instantiate(cfg.data),
        trainer=instantiate(
            cfg.trainer,
            callbacks=callbacks,
            logger=loggers,
            # Otherwise Lightning adds a ModelCheckpoint of its own where none is configured.
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        ),
        directory=Path(HydraConfig.get().runtime.output_dir),
    )


def check(cfg: DictConfig) -> None:
    """Refuse settings that would fail only later, or would train something else than they say.

    Raises:
        ValueError: naming the settings and what to change.
    """
    if cfg.recipe == "authors" and not exists(settings := HydraConfig.get().runtime.choices.get("settings")):
        raise ValueError(
            f"Expected an experiment whose authors ran something else than their paper says, since recipe=authors, but "
            f"there are no settings {settings} for {cfg.name}. Use recipe=paper."
        )
    if cfg.data.batch_size < cfg.policy.mini_batches:
        raise ValueError(
            f"Expected data.batch_size ≥ policy.mini_batches, but got {cfg.data.batch_size} and "
            f"{cfg.policy.mini_batches}: each optimizer step learns from whole questions. Raise data.batch_size."
        )
    made_by = cfg.model.get("made_by")
    if made_by and not (Path(cfg.model.path) / "config.json").is_file():
        raise ValueError(
            f"Expected the starter policy of this task at {cfg.model.path}, but it has not been made yet. Make it in "
            f"minutes with `{made_by}`, or set model.path to another policy."
        )
    asked = f"{cfg.template.get('instruction', '')}{cfg.template.get('format', '')}"
    if "boxed" in asked and cfg.reward._target_.endswith("FinalAnswerReward"):
        raise ValueError(
            "Expected a reward that reads boxes, since the template asks for \\boxed{}, but reward=final_answer reads "
            f"what follows {cfg.reward.marker!r}. Use reward=mixed or reward=math."
        )
    temperature = cfg.rollout.sampling.temperature
    if temperature <= 0:
        raise ValueError(
            f"Expected rollout.sampling.temperature > 0 in training, but got {temperature}: greedy responses to a "
            "prompt are all the same. Use rollout.evaluation_sampling.temperature=0 for greedy evaluation."
        )


def exists(settings: str | None) -> bool:
    """Whether an option of the group `settings` is a file."""
    if not settings:
        return False
    sources = [source.path for source in HydraConfig.get().runtime.config_sources if source.schema == "file"]
    folders = [Path(str(files("tagrpo.configs"))), *map(Path, sources)]
    return any((folder / "settings" / f"{settings}.yaml").is_file() for folder in folders)
