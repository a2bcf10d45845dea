"""`tagrpo-eval`: pass@k of a model folder, a hub model or a Lightning checkpoint, without training.

Counts are kept as they come in: the same command continues an evaluation that was interrupted. `exact=true` samples
nothing and adds up the probabilities of all correct responses; `diagnose=<run>` is in `diagnose.py`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ..runs.directory import existing, held, is_first_rank, write_provenance
from ..runs.files import write_text
from ..runs.secrets import refuse_secrets, save_resolved
from ..settings.checks import check_run, read_questions
from ..settings.config import Run, build
from .console import entry_point, explained, note_command
from .diagnose import ask_training_questions, diagnose
from .summary import show

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from ..datamodules.questions import QuestionDataModule
    from ..modules.policy_module import PolicyModule


def evaluate(
    module: PolicyModule, datamodule: QuestionDataModule, trainer: Trainer, *, checkpoint: str | Path | None = None
) -> dict[str, float]:
    """Sample and score the evaluation splits; return everything that was logged, `pass@k/<split>/<k>` and more.

    The trainer has `RolloutCallback` and `PassAtKEvaluator`, which writes `test.json`. The weights of a Lightning
    `checkpoint` replace those that the module loads.
    """
    safely = True if checkpoint else None
    trainer.test(module, datamodule=datamodule, ckpt_path=checkpoint, verbose=False, weights_only=safely)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@entry_point("evaluate")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    with ExitStack() as stack:
        with explained():
            refuse_secrets(cfg, directory)
            if cfg.diagnose is not None:
                ask_training_questions(cfg)
            check_run(cfg, trains=False)
            if cfg.checkpoint is not None:
                existing(cfg.checkpoint, "checkpoint")
            stack.enter_context(held(directory))
            run = build(cfg)
            stack.callback(run.close)
            from ..runs.checkpoints import checkpoint_at

            checkpoint = None if cfg.checkpoint is None else checkpoint_at(cfg.checkpoint, "checkpoint")
            read_questions(cfg, run, trains=False)
            if cfg.diagnose is None:  # a diagnosis asks them on purpose
                trained = Path(checkpoint.parent if checkpoint else cfg.model.path).absolute().parent
                run.datamodule.warn_of_seen(Path(os.path.relpath(trained)))
            prepare(cfg, run, checkpoint)
        if is_first_rank():
            if not cfg.exact:
                (directory / "test.json").unlink(missing_ok=True)  # perhaps of another policy
            save_resolved(cfg, directory)
            write_provenance(directory)
            note_command(directory)
        if cfg.diagnose is not None:
            files = diagnose(cfg, run)
        else:
            metrics = evaluate(run.module, run.datamodule, run.trainer, checkpoint=checkpoint)
        if is_first_rank():
            if cfg.diagnose is None:
                show(metrics)
                files = ["exact.json"] if cfg.exact else write(cfg, directory)
            print("Written: " + ", ".join(str(directory / name) for name in files))


def prepare(cfg: DictConfig, run: Run, checkpoint: Path | None) -> None:
    """Replace the callbacks for `exact=true`; else have counts stored under the identity of what they depend on."""
    from hydra.utils import instantiate

    from ..callbacks import PassAtKEvaluator
    from ..runs.identity import identity_of

    if cfg.exact:
        run.trainer.callbacks = [instantiate(cfg.exact_evaluator)]  # type: ignore[attr-defined]
    identify = cache(partial(identity_of, cfg, run.module, run.datamodule, checkpoint))
    counting = [callback for callback in run.trainer.callbacks if isinstance(callback, PassAtKEvaluator)]  # type: ignore[attr-defined]
    if not (counting or cfg.exact or cfg.diagnose):
        raise ValueError(
            "Expected callbacks.pass_at_k, which counts correct responses, but it is not among the callbacks. Use "
            "callbacks=pass_at_k, or leave `callbacks` out."
        )
    for callback in counting:
        if callback.store is not None:
            callback.store.identify = identify


def write(cfg: DictConfig, directory: Path) -> list[str]:
    """Write the evaluation as Markdown; return the names of all files."""
    from ..analysis.comparison import Methods
    from ..analysis.runs import RunFiles
    from ..analysis.sections import markdown

    runs = {str(cfg.name): [RunFiles(str(cfg.name), 0, directory)]}
    write_text(directory / "test.md", markdown(Methods(runs)))
    return ["test.json", "test.md"]
