"""`tagrpo-train`: compose, build, train and test a run. Only `main` uses Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ..runs.directory import admit, begin, end, folders_of_options, held, is_first_rank, note_changes
from ..runs.secrets import refuse_secrets
from ..settings.checks import check_run, given_overrides, read_questions
from ..settings.config import Run, build, quiet
from ..settings.schema import Train, check_fields
from .console import conclude, entry_point, explained, explained_in_training, record
from .resume import check_resume, iterations_done, log_held_back, restoring, when_it_begins

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from ..datamodules.lightning.questions import QuestionDataModule
    from ..modules.lightning.policy_module import PolicyModule


def train(
    module: PolicyModule,
    datamodule: QuestionDataModule,
    trainer: Trainer,
    *,
    test: bool = True,
    resume: str | Path | None = None,
    checkpoint: Path | None = None,
    export: str | Path | None = None,
) -> dict[str, float]:
    """Train the policy, export it, and evaluate it on the test splits, if there are any.

    If the trainer has `max_steps=0`, the policy is only evaluated.

    Args:
        module: The policy.
        datamodule: The questions.
        trainer: A trainer with the rollout callback and the diagnostics.
        test: Whether to evaluate on the test splits.
        resume: `auto`, or the path of a checkpoint or run to continue; `resolve` checks it.
        checkpoint: Path of a checkpoint to continue from, already checked; it replaces `resume`.
        export: Folder for the trained policy in Hugging Face format; None exports nothing.

    Returns:
        Last logged value of each metric, by name.
    """
    from ..runs.checkpoints import resolve

    metrics = {}
    if trainer.max_steps != 0:
        if checkpoint is None:
            checkpoint = resolve(resume, Path(trainer.default_root_dir) / "checkpoints")
        trainer.fit(
            module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True if checkpoint else None
        )
        metrics = dict(trainer.callback_metrics)
        if export is not None:
            module.export(export, datamodule.tokenizer)
    if test and datamodule.evaluation_sources:
        trainer.test(module, datamodule=datamodule, verbose=False)
        metrics |= trainer.callback_metrics
    return {name: float(value) for name, value in metrics.items()}


def objective_of(metrics: Mapping[str, float], name: str | None) -> float | None:
    """Return the value of the metric that a sweeper optimises; None if `name` is None.

    Raises:
        ValueError: if the run logged no metric `name`, the value of the setting `objective`.
    """
    if name is not None and name not in metrics:
        raise ValueError(
            f"Expected `objective` to name a metric that the run logs, but it does not log {name!r}. It has "
            f"logged: {', '.join(sorted(metrics))}."
        )
    return None if name is None else metrics[name]


@entry_point("train")
def main(cfg: DictConfig) -> float | None:
    """Run `tagrpo-train`; return the value of the metric `objective`, which a sweeper of Hydra optimises."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    trains = cfg.iterations != 0
    with ExitStack() as stack:
        with explained():
            refuse_secrets(cfg, directory)
            check_fields(cfg, Train)
            check_run(cfg, trains=trains)
            quiet()
            stack.enter_context(held(directory))
            release_log = stack.enter_context(log_held_back())
            changed = admit(cfg, directory)
            checkpoint = _checkpoint_of(cfg, directory) if trains else None
            run = build(cfg)
            stack.callback(run.close)
            read_questions(cfg, run, trains=trains)
            done = 0 if checkpoint is None else _checked_iterations(run, checkpoint)
        if cfg.iterations is not None and done > cfg.iterations:
            print(
                f"Nothing is left to train: {checkpoint} has {done} iterations, and "
                f"iterations={cfg.iterations}. Nothing was changed. To train on, set iterations above {done}."
            )
            return None
        note_changes(cfg, changed, checkpoint)

        @cache
        def commit() -> None:
            release_log()
            if is_first_rank():
                begin(directory)
                record(cfg, run, run.trainer.loggers)

        when_it_begins(run.trainer, commit)
        from .memory import advised_on_memory  # imports Lightning

        export = directory / "model" if cfg.export else None

        def begun() -> bool:
            return commit.cache_info().currsize > 0

        with (
            explained_in_training(begun),
            restoring(checkpoint, begun),
            advised_on_memory(cfg.policy.token_budget),
        ):
            metrics = train(
                run.module, run.datamodule, run.trainer, test=cfg.test, checkpoint=checkpoint, export=export
            )
        commit()
        if is_first_rank():
            end(directory)
            given = [*folders_of_options(HydraConfig.get()), *given_overrides()]
            conclude(metrics, directory, given, f"{cfg.name}-seed{cfg.seed}", cfg.iterations)
    with explained():
        return objective_of(metrics, cfg.objective)


def _checkpoint_of(cfg: DictConfig, directory: Path) -> Path | None:
    """Return the checkpoint to resume from, after checking its content; None if a new run starts.

    Lightning is imported only if there is a checkpoint.
    """
    from ..runs.checkpoints import resolve

    return None if cfg.resume is None else resolve(cfg.resume, directory / "checkpoints")


def _checked_iterations(run: Run, checkpoint: Path) -> int:
    """Check on rank 0 that the run can continue from a checkpoint; return the iterations done there."""
    from ..runs.checkpoints import content_of

    content = content_of(checkpoint)
    done = iterations_done(content)
    if is_first_rank():
        check_resume(run, checkpoint, content)
    return done


if __name__ == "__main__":
    main()
