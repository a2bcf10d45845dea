"""`tagrpo-eval`: pass@k of a model folder, a hub model or a Lightning checkpoint, without training.

Counts are stored after each batch, so that the same command continues an interrupted evaluation. With
`exact=true`, nothing is sampled: the probabilities of all correct responses are added up.

`diagnose=<run>` measures how much a run could learn from its training questions (TA-GRPO, Figs. 3 and 4). The
initial policy, and the kept checkpoints nearest to each quarter of training, answer the training questions
and their rephrasings again, sampled as in training. Nothing is trained, and the files of training are not
changed. A checkpoint that was measured before, on the same questions, is not measured again.
"""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from ..cli.console import entry_point, explained, explained_in_training, record, show
from ..files import write_json, write_text
from ..foreign import ForeignDataError, Message, read_json
from ..runs import directory as runs
from ..runs.secrets import refuse_secrets
from ..settings.checks import check_run, read_questions
from ..settings.config import Run, build
from ..settings.schema import Evaluate, check_fields

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from ..datamodules.lightning.questions import QuestionDataModule
    from ..modules.lightning.policy_module import PolicyModule

QUARTERS = (0.25, 0.5, 0.75, 1.0)
# callbacks for progress, an orderly end, and the encoder
NEEDED = ("progress", "checkpoint", "embedding_diversity")
AS_TRAINED = (
    "seed",
    "model",
    "lora",
    "template",
    "reward",
    "data.train",
    "data.max_prompt_tokens",
    "rollout.sampling",
)
"""Settings that must be equal to those of the run, including all settings below them."""
MAY_DIFFER = ("data.train.num_rephrasings", "data.train.rephrasings")
"""Exceptions from `AS_TRAINED`: a run of GRPO, without rephrasings, can be diagnosed with rephrasings."""


def evaluate(
    module: PolicyModule,
    datamodule: QuestionDataModule,
    trainer: Trainer,
    *,
    checkpoint: str | Path | None = None,
) -> dict[str, float]:
    """Sample and score responses to the evaluation splits; return all logged values, such as pass@k, by name.

    The trainer needs `RolloutCallback` and `PassAtKEvaluator`, which writes `test.json`. If a Lightning
    `checkpoint` is given, its weights replace the weights that the module loads.
    """
    safely = True if checkpoint else None
    trainer.test(module, datamodule=datamodule, ckpt_path=checkpoint, verbose=False, weights_only=safely)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@entry_point("evaluate")
def main(cfg: DictConfig) -> None:
    """Run `tagrpo-eval`."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    with ExitStack() as stack:
        with explained():
            refuse_secrets(cfg, directory)
            check_fields(cfg, Evaluate)
            if cfg.diagnose is not None:
                ask_training_questions(cfg)
            check_run(cfg, trains=False)
            if cfg.checkpoint is not None:
                runs.existing(cfg.checkpoint, "checkpoint")
            stack.enter_context(runs.held(directory))
            if runs.is_first_rank():
                runs.check_kinds(directory)
                runs.keep_training(directory, "tagrpo-eval")
            run = build(cfg)
            stack.callback(run.close)
            from ..runs.checkpoints import checkpoint_at

            checkpoint = None if cfg.checkpoint is None else checkpoint_at(cfg.checkpoint, "checkpoint")
            read_questions(cfg, run, trains=False)
            if cfg.diagnose is None:  # a diagnosis asks them on purpose
                trained = Path(checkpoint.parent if checkpoint else cfg.model.path).absolute().parent
                run.datamodule.warn_of_seen(Path(os.path.relpath(trained)))
            prepare(cfg, run, checkpoint)
        if runs.is_first_rank():
            if not cfg.exact:
                (directory / "test.json").unlink(missing_ok=True)  # perhaps of another policy
            record(cfg, run)
        with explained_in_training(lambda: True):
            files = report(cfg, run, checkpoint) if cfg.diagnose is None else diagnose(cfg, run)
        if runs.is_first_rank():
            print("Written: " + ", ".join(str(directory / name) for name in files))


def prepare(cfg: DictConfig, run: Run, checkpoint: Path | None) -> None:
    """Prepare the callbacks for an evaluation.

    If `exact=true`, `exact_evaluator` replaces all callbacks. Otherwise, each `CountStore` gets a function
    that returns the identity of the evaluation.

    Raises:
        ValueError: if there is no `callbacks.pass_at_k` to count correct responses, and neither `exact` nor
            `diagnose` is set.
    """
    from hydra.utils import instantiate

    from ..callbacks import PassAtKEvaluator
    from ..settings.identity import identity_of

    if cfg.exact:
        run.trainer.callbacks = [instantiate(cfg.exact_evaluator)]  # type: ignore[attr-defined]
        return
    counting = [callback for callback in run.trainer.callbacks if isinstance(callback, PassAtKEvaluator)]  # type: ignore[attr-defined]
    if not (counting or cfg.diagnose):
        raise ValueError(
            "Expected callbacks.pass_at_k, which counts correct responses, but it is not among the "
            "callbacks. Use callbacks=pass_at_k, or leave `callbacks` out."
        )
    for callback in counting:
        if callback.store is not None:
            callback.store.identify = cache(partial(identity_of, cfg, run.module, run.datamodule, checkpoint))


def report(cfg: DictConfig, run: Run, checkpoint: Path | None) -> list[str]:
    """Evaluate, print the results and write them as Markdown.

    Returns the names of the files in `run.directory`.
    """
    from ..analysis.comparison import Methods
    from ..analysis.runs import RunFiles
    from ..analysis.sections import markdown

    metrics = evaluate(run.module, run.datamodule, run.trainer, checkpoint=checkpoint)
    if not runs.is_first_rank():
        return []
    show(metrics)
    if cfg.exact:
        return ["exact.json"]
    evaluated = {str(cfg.name): [RunFiles(str(cfg.name), 0, run.directory)]}
    write_text(run.directory / "test.md", markdown(Methods(evaluated)))
    return ["test.json", "test.md"]


def ask_training_questions(cfg: DictConfig) -> None:
    """Change the settings of an evaluation, in place, so that it diagnoses the run `cfg.diagnose`.

    Raises:
        FileNotFoundError: if `cfg.diagnose` is not the directory of a run with checkpoints.
        ValueError: if the settings differ from those with which the run was trained, or exclude a diagnosis.
    """
    run = Path(cfg.diagnose)
    if not (run / "config.yaml").is_file() or not runs.checkpoints_in(run / "checkpoints"):
        raise FileNotFoundError(
            f"Expected `diagnose` to be the directory of a run with checkpoints, but {run} has no "
            "config.yaml or no checkpoints/iteration-….ckpt. Give the directory that tagrpo-train wrote."
        )
    if cfg.exact or cfg.checkpoint:
        raise ValueError("Expected `diagnose` without exact and checkpoint, but got one or both. Drop them.")
    names = tuple(f"{name}." for name in AS_TRAINED)
    now = runs.flat(OmegaConf.to_container(cfg, resolve=True))
    then = runs.read_config(run / "config.yaml")
    both = runs.changes(then, now)
    new = runs.added_in(both, then)
    asked = {
        name: values for name, values in both.items() if f"{name}.".startswith(names) and name not in new
    }
    same = {name for name in asked if name == "model.path" or not runs.may_change(name)}
    changed = {name: values for name, values in asked.items() if name in same and name not in MAY_DIFFER}
    if changed:
        raise ValueError(
            f"Expected the settings with which {run} was trained, but got "
            f"others:\n{runs.then_and_now(changed)}\nRepeat those of its command: experiment=…, data=…, "
            "model=…, seed=…."
        )
    with open_dict(cfg):
        cfg.rollout.evaluation_sampling = cfg.rollout.sampling
        cfg.data.evaluation = {"train": cfg.data.train}
        cfg.data.evaluation_samples = cfg.data.samples_per_prompt
        cfg.data.curriculum = None
        given = cfg.get("callbacks") or {}
        cfg.callbacks = {name: given[name] for name in NEEDED if given.get(name)}
        cfg.logger = None


def kept_checkpoints(run: Path) -> dict[int, Path]:
    """Return the checkpoints nearest to each quarter of training, by iteration.

    Raises:
        DamagedFileError: if one of these checkpoints is damaged.
    """
    from ..runs.checkpoints import checkpoint_at

    found = runs.checkpoints_in(run / "checkpoints")
    nearest = {share: min(found, key=lambda at: abs(at - share * max(found))) for share in QUARTERS}
    if far := [
        f"{100 * share:.0f} %" for share, at in nearest.items() if abs(at / max(found) - share) > 0.05
    ]:
        print(
            f"No checkpoint is left near {', '.join(far)} of training. Train with "
            "'callbacks.checkpoint.fractions=[0.25,0.5,0.75]' to keep them."
        )
    return {at: checkpoint_at(found[at], "diagnose") for at in sorted(set(nearest.values()))}


class Point(Message):
    """Diagnosed checkpoint in `diagnose.json`: the fields that the next diagnosis reads."""

    identity: dict[str, str]
    questions: list[dict[str, Any]]


class Diagnosis(Message):
    """Content of `diagnose.json`: the fields that the next diagnosis reads."""

    checkpoints: list[Point]


def measured_in(path: Path) -> list[Point]:
    """Return the checkpoints of an earlier diagnosis; empty, with a warning, if the file is damaged."""
    if not path.exists():
        return []
    try:
        found = read_json(
            Diagnosis, path.read_bytes(), source=str(path), remedy="All checkpoints are measured again."
        )
    except ForeignDataError as damage:
        warnings.warn(str(damage), stacklevel=2)
        return []
    return found.checkpoints


def diagnose(cfg: DictConfig, run: Run) -> list[str]:
    """Measure the untrained policy and checkpoints, print the table, and return the names of written files.

    The files are in `run.directory`. `ask_training_questions` must have changed `cfg`, and the questions of
    `run` must have been read.
    """
    from ..analysis.diagnosis import summarised, table_of
    from ..analysis.sections import table
    from ..callbacks import EmbeddingDiversityMonitor, TrainingSignal
    from ..digests import json_digest
    from ..runs.scalars import in_order
    from ..settings.identity import identity_of

    kept, trained = run.directory / "diagnose.json", Path(cfg.diagnose)
    if cfg.diagnose_questions is not None:
        run.datamodule.keep_some("train", cfg.diagnose_questions)
    callbacks = run.trainer.callbacks  # type: ignore[attr-defined]
    diversity = next((c for c in callbacks if isinstance(c, EmbeddingDiversityMonitor)), None)
    if diversity is not None:
        diversity.max_questions = None
    before = {json_digest(dict(point.identity)): point.questions for point in measured_in(kept)}
    encoder = json_digest(OmegaConf.select(cfg, "callbacks.embedding_diversity.encoder"))
    facts = {"run": str(trained), "finished": (trained / runs.FINISHED).exists()}
    checkpoints = kept_checkpoints(trained)
    points: list[dict[str, Any]] = []
    for iteration, checkpoint in {0: None, **checkpoints}.items():

        @cache
        def identify(checkpoint: Path | None = checkpoint) -> dict[str, str]:
            return identity_of(cfg, run.module, run.datamodule, checkpoint) | {"encoder": encoder}

        signal = TrainingSignal(diversity, lambda: before.get(json_digest(identify()), []))
        run.trainer.callbacks = in_order([*callbacks, signal])  # type: ignore[attr-defined]
        evaluate(run.module, run.datamodule, run.trainer, checkpoint=checkpoint)
        if runs.is_first_rank():
            point = {"iteration": iteration, "share": iteration / max(checkpoints), "identity": identify()}
            points.append({**point, "metrics": summarised(signal.questions), "questions": signal.questions})
            write_json(kept, {**facts, "checkpoints": points})
    if runs.is_first_rank():
        header, rows = table_of({"checkpoints": points})
        stages, *across = zip(header, *rows, strict=True)  # transposed: the stages fit side by side
        print("\n".join(table(stages, across)) + f"\ntagrpo-report {trained} has the figures.")
    return [kept.name]
