"""`tagrpo-eval`: pass@k of a model folder, a hub model or a Lightning checkpoint, without training.

Counts are kept as they come in: the same command continues an evaluation that was interrupted. With `exact=true`
nothing is sampled: the probabilities of all correct responses are added up, for tasks where they can be listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from .analysis.evaluation import compare_evaluations, read_evaluation, statement, write_comparison, write_evaluation
from .callbacks import ExactPassAtK, PassAtKEvaluator
from .config import build
from .console import entry_point
from .datamodules.questions import QuestionDataModule
from .modules.policy import PolicyModule
from .redaction import save_resolved
from .run_directory import held


def evaluate(
    module: PolicyModule, datamodule: QuestionDataModule, trainer: Trainer, *, checkpoint: str | None = None
) -> dict[str, float]:
    """Sample and score the evaluation splits.

    Args:
        module: The policy.
        datamodule: Its `evaluation` sources are used.
        trainer: With `RolloutCallback` and `PassAtKEvaluator`, which writes `test.json`.
        checkpoint: Lightning checkpoint whose weights replace those that the module loads; None keeps them.

    Returns:
        Everything that was logged: `pass@k/<split>/<k>` and more.
    """
    trainer.test(
        module, datamodule=datamodule, ckpt_path=checkpoint, verbose=False, weights_only=True if checkpoint else None
    )
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def print_table(metrics: dict[str, float]) -> None:
    """Print pass@k by split."""
    curves: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        if name.startswith(("pass@k/", "exact_pass@k/")):
            _, split, k = name.split("/")
            curves.setdefault(split, {})[int(k)] = value
    ks = sorted({k for points in curves.values() for k in points})
    table = Table("split", *(f"@{k}" for k in ks), title="pass@k, in percent")
    for split, points in curves.items():
        table.add_row(split, *(f"{100 * points[k]:.1f}" for k in ks))
    Console().print(table)


def settings_of(cfg: DictConfig) -> dict[str, Any]:
    """What the counts of an evaluation depend on: those made with other settings must not be added to them."""
    sampling = {name: value for name, value in cfg.rollout.evaluation_sampling.items() if name != "_target_"}
    return {
        "model": str(cfg.model.path),
        "checkpoint": cfg.checkpoint,
        **sampling,
        "samples": cfg.data.evaluation_samples,
        "template": OmegaConf.to_container(cfg.data.evaluation_template or cfg.template, resolve=True),
        "engine": str(cfg.rollout.engine.get("_target_", "")).rpartition(".")[2],
        "seed": cfg.seed,
    }


@entry_point
@hydra.main(config_path="pkg://tagrpo.configs", config_name="evaluate", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    with held(Path(HydraConfig.get().runtime.output_dir)):
        run = build(cfg)
        if cfg.exact:
            sampling = instantiate(cfg.rollout.evaluation_sampling)
            run.trainer.callbacks = [  # type: ignore[attr-defined]
                ExactPassAtK(instantiate(cfg.reward), sampling, against=cfg.against)
            ]
        settings = settings_of(cfg)
        for callback in run.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, PassAtKEvaluator) and callback.store is not None:
                rank_zero_only(callback.store.check)(settings)
        rank_zero_only(save_resolved)(cfg, run.directory)
        try:
            print_table(evaluate(run.module, run.datamodule, run.trainer, checkpoint=cfg.checkpoint))
        finally:
            run.close()
        if not run.trainer.is_global_zero:
            return
        if cfg.exact:
            print(f"Written: {run.directory / 'exact.json'}")
            return
        files = [run.directory / "test.json", write_evaluation(run.directory, settings)]
        if cfg.against is not None:
            ours, theirs = read_evaluation(run.directory, str(cfg.name)), read_evaluation(cfg.against)
            files.append(write_comparison(ours, theirs, run.directory))
            print(statement(ours.method, theirs.method, compare_evaluations(ours, theirs)).replace("**", ""))
        print("Written: " + ", ".join(map(str, files)))


if __name__ == "__main__":
    main()
