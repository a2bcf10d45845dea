"""Options of Lightning's `Trainer` that a run passes on, and alternatives to the other options.

The update makes several manual optimizer steps per batch, and the data module draws the questions. Therefore
Lightning ignores some options of the trainer, and other options would silently change what is trained.
"""

from typing import Any

from omegaconf import DictConfig, OmegaConf

HANDED_ON = frozenset({
    "accelerator", "devices", "num_nodes", "strategy",  # where it runs
    "max_steps", "max_epochs",  # how long
    "limit_val_batches", "limit_test_batches", "val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps",
    "log_every_n_steps", "enable_progress_bar", "enable_model_summary", "enable_autolog_hparams", "profiler",
    # the same mathematics, checked or faster
    "deterministic", "benchmark", "detect_anomaly", "inference_mode",
    "default_root_dir",  # the directory of the run, and no other
})  # fmt: skip
"""Options that are passed on to Lightning."""
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "precision": ((None, "32-true", "32", 32), "Set policy.compute_dtype=bfloat16 or float32"),
    "gradient_clip_val": ((None,), "Set policy.max_grad_norm"),
    "gradient_clip_algorithm": ((None, "norm"), "Gradients are clipped to the norm policy.max_grad_norm"),
    "accumulate_grad_batches": (
        (1,),
        "Set policy.token_budget, the tokens of a micro-batch, and policy.mini_batches, the optimizer steps of a batch",
    ),
    "limit_train_batches": ((None, 1.0), "Set iterations"),
    "overfit_batches": ((0,), "Use debug=overfit"),
    "fast_dev_run": ((False,), "Use debug=smoke"),
    "min_epochs": ((None,), "Set trainer.max_epochs or iterations"),
    "min_steps": ((None,), "Set trainer.max_epochs or iterations"),
    "max_time": (
        (None,),
        "Set iterations; a run that gets SIGTERM saves a checkpoint, and resume=auto continues it",
    ),
    "reload_dataloaders_every_n_epochs": ((0,), "The loader keeps its place for a resume, so leave it out"),
    "use_distributed_sampler": ((False,), "The data module gives each rank its questions, so leave it out"),
    "sync_batchnorm": ((False,), "Language models have no batch norm, so leave it out"),
    "limit_predict_batches": ((None, 1.0), "No command predicts, so leave it out"),
    "barebones": ((False,), "Use callbacks=none and logger=none"),
    "callbacks": ((None,), "Add it to callbacks, as +callbacks.mine._target_=…"),
    "logger": ((None,), "Add it to logger, as +logger.mine._target_=…"),
    "plugins": ((None,), "Runs bring the one plugin that writes checkpoints, so leave it out"),
    "enable_checkpointing": ((None,), "Use callbacks.checkpoint, or leave it out with ~callbacks.checkpoint"),
    "model_registry": ((None,), "Runs upload nothing; export=true writes the policy to a folder"),
}
"""Other options → values without effect, and what to set instead."""


def check_trainer(trainer: DictConfig) -> None:
    """Check for trainer options that a run would ignore, or that would change what is trained.

    Raises:
        ValueError: if an option is refused, or `Trainer` has no such option. The message names the option.
    """
    written: Any = OmegaConf.to_container(trainer, resolve=False)
    if "${" not in str(written.get("default_root_dir", "${")):
        raise ValueError(
            "Expected trainer.default_root_dir to be the directory of the run, but got "
            f"{written['default_root_dir']!r}. Set hydra.run.dir, and leave trainer.default_root_dir out."
        )
    strategy = trainer.get("strategy", "auto")
    part = isinstance(strategy, DictConfig) and "_target_" in strategy
    if (
        strategy not in ("auto", "ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false")
        and not part
    ):
        raise ValueError(
            f"Expected trainer.strategy to be auto or ddp, but got {strategy!r}. Use strategy=ddp, or "
            "strategy=fsdp2 to shard."
        )
    for name in map(str, trainer):
        if name.startswith("_") or name in HANDED_ON:
            continue
        if name not in REFUSED:
            raise ValueError(
                f"Expected trainer.{name} to be an option of lightning.pytorch.Trainer, but it has none of "
                f"this name. It takes {', '.join(sorted(HANDED_ON))}."
            )
        neutral, advice = REFUSED[name]
        value = trainer[name]
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            leave = f"trainer.{name}={'null' if neutral[0] is None else str(neutral[0]).lower()}"
            raise ValueError(
                f"Expected {leave}, since runs do not pass this option on to Lightning, but got {value!r}. {advice}."
            )
