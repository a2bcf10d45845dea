"""`tagrpo-eval`: pass@k of a model folder, a hub model or a Lightning checkpoint, without training."""

from __future__ import annotations

import hydra
from lightning.pytorch import Trainer
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from .config import build, save_resolved
from .datamodules.questions import QuestionDataModule
from .modules.policy import PolicyModule


def evaluate(
    module: PolicyModule, datamodule: QuestionDataModule, trainer: Trainer, *, checkpoint: str | None = None
) -> dict[str, float]:
    """Sample and score the evaluation splits.

    Args:
        module: The policy.
        datamodule: Its `evaluation` sources are used.
        trainer: With `RolloutCallback` and `PassAtKEvaluator`, which writes `test.json`.
        checkpoint: Lightning checkpoint whose weights replace those that the module loads.

    Returns:
        Everything that was logged: `pass@k/<split>/<k>` and more.
    """
    trainer.test(
        module,
        datamodule=datamodule,
        ckpt_path=checkpoint,
        verbose=False,
        weights_only=True if checkpoint else None,
    )
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def print_table(metrics: dict[str, float]) -> None:
    """Print pass@k by split."""
    curves: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        if name.startswith("pass@k/"):
            _, split, k = name.split("/")
            curves.setdefault(split, {})[int(k)] = value
    ks = sorted({k for points in curves.values() for k in points})
    table = Table("split", *(f"pass@{k}" for k in ks))
    for split, points in curves.items():
        table.add_row(split, *(f"{100 * points[k]:.1f}" for k in ks))
    Console().print(table)


@hydra.main(config_path="pkg://tagrpo.configs", config_name="evaluate", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Console entry point."""
    run = build(cfg)
    save_resolved(cfg, run.directory)
    try:
        print_table(evaluate(run.module, run.datamodule, run.trainer, checkpoint=cfg.checkpoint))
    finally:
        run.close()
    print(f"Counts of every question and intervals: {run.directory / 'test.json'}")


if __name__ == "__main__":
    main()
