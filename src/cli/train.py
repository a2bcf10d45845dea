"""`tagrpo-train`: compose, build, train, test. Only `main` knows Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ..runs.directory import begin, end, folders_of_options, held, is_first_rank, write_provenance
from ..runs.secrets import redacted, refuse_secrets, save_resolved
from ..settings.checks import check_run, given_overrides, read_questions
from ..settings.config import Run, build
from .console import entry_point, explained, note_command
from .summary import conclude

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from ..datamodules.questions import QuestionDataModule
    from ..modules.policy_module import PolicyModule


def train(
    module: PolicyModule,
    datamodule: QuestionDataModule,
    trainer: Trainer,
    *,
    test: bool = True,
    resume: str | Path | None = None,
    export: str | Path | None = None,
) -> dict[str, float]:
    """Fit, unless the trainer has `max_steps=0`, export, and evaluate on the test splits.

    Args:
        module: The policy and its update.
        datamodule: Questions.
        trainer: With the rollout callback and the diagnostics.
        test: Whether to evaluate, where there are test splits.
        resume: Checkpoint to continue from, see `resolve`; None starts anew.
        export: Folder to write the trained policy to in Hugging Face format; None writes none.

    Returns:
        The last value of everything that was logged.
    """
    from ..runs.checkpoints import resolve

    metrics = {}
    if trainer.max_steps != 0:
        checkpoint = resolve(resume, Path(trainer.default_root_dir) / "checkpoints")
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
        metrics = dict(trainer.callback_metrics)
        if export is not None:
            module.export(export, datamodule.tokenizer)
    if test and datamodule.evaluation_sources:
        trainer.test(module, datamodule=datamodule, verbose=False)
        metrics |= trainer.callback_metrics
    return {name: float(value) for name, value in metrics.items()}


def record(cfg: DictConfig, run: Run, directory: Path) -> None:
    """Write settings, commit and versions of packages to files, and to every logger as hyperparameters."""
    save_resolved(cfg, directory)
    facts = redacted(OmegaConf.to_container(cfg, resolve=True)) | write_provenance(directory)
    for logger in run.trainer.loggers:
        logger.log_hyperparams(facts)


def objective_of(metrics: Mapping[str, float], name: str | None) -> float | None:
    """The metric that a sweeper optimises; None where the setting `objective` names none."""
    if name is not None and name not in metrics:
        raise ValueError(
            f"Expected `objective` to name a metric that the run logs, but it does not log {name!r}. It has logged: "
            f"{', '.join(sorted(metrics))}."
        )
    return None if name is None else metrics[name]


@entry_point("train")
def main(cfg: DictConfig) -> float | None:
    """Console entry point; returns the objective to Hydra, for a sweeper that searches for its best value."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    trains = cfg.iterations != 0
    with ExitStack() as stack:
        with explained():
            refuse_secrets(cfg, directory)
            check_run(cfg, trains=trains)
            stack.enter_context(held(directory))
            begin(cfg, directory)
            run = build(cfg)
            stack.callback(run.close)
            read_questions(cfg, run, trains=trains)
        if is_first_rank():
            record(cfg, run, directory)
            note_command(directory)
        export = directory / "model" if cfg.export else None
        metrics = train(run.module, run.datamodule, run.trainer, test=cfg.test, resume=cfg.resume, export=export)
        if is_first_rank():
            end(directory)
            given = [*folders_of_options(HydraConfig.get()), *given_overrides()]
            conclude(metrics, directory, given, f"{cfg.name}-seed{cfg.seed}", cfg.iterations)
    return objective_of(metrics, cfg.objective)


if __name__ == "__main__":
    main()
