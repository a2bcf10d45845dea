"""An entropy bonus that is switched on if the policy's entropy falls below a target (Skywork-OR1)."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from ...distributed import sum_over_ranks
from ...runs.scalars import log_scalars


class AdaptiveEntropy(Callback):
    """Callback that sets the loss's `entropy_coef` for the next batch: γ if the entropy is low, else 0.

    The entropy is low if that of the current batch is below `target`. γ begins at 0. After every batch, γ
    grows by `step` if the entropy is low, and otherwise shrinks by `step`; it is kept between `least` and
    `most`. The rule follows the authors' code (SkyworkAI/Skywork-OR1, core_algos.py, EntController); the
    report, arXiv 2505.22312, was not read. As in this code, the entropy is estimated from the log-probs of
    the sampled tokens.

    - `adaptive_entropy/entropy`: minus the mean log-prob of the sampled tokens of all ranks, in nats.
    - `adaptive_entropy/coef`: the coefficient for the next batch.

    Args:
        target: Target of the entropy, nats per token.
        step: Change of γ after a batch, above 0.
        most: Largest γ.
        least: Smallest γ, at least 0.
    """

    shapes_learning = True

    def __init__(
        self, target: float = 0.2, step: float = 1e-4, most: float = 5e-3, least: float = 0.0
    ) -> None:
        if not 0 <= least <= most or step <= 0:
            raise ValueError(f"Expected 0 ≤ least ≤ most and step > 0, but got {least}, {most} and {step}.")
        self.target, self.step, self.most, self.least = target, step, most, least
        self.gamma, self.coef = 0.0, 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Set the loss's `entropy_coef` to the value in the checkpoint, or to 0 in a new run."""
        pl_module.loss.entropy_coef = self.coef

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Estimate the entropy, set the coefficient, and log both. Collective."""
        sums = {"logprobs": float(sum(part.double().sum() for part in batch.rollouts.logprobs))}
        sums = sum_over_ranks({**sums, "tokens": float(batch.rollouts.lengths.sum())})
        entropy = -sums["logprobs"] / sums["tokens"]
        low = entropy < self.target
        self.gamma = min(max(self.gamma + (self.step if low else -self.step), self.least), self.most)
        self.coef = pl_module.loss.entropy_coef = self.gamma if low else 0.0
        log_scalars(pl_module, {"adaptive_entropy/entropy": entropy, "adaptive_entropy/coef": self.coef})

    def state_dict(self) -> dict[str, Any]:
        """Return γ and the current coefficient."""
        return {"gamma": self.gamma, "coef": self.coef}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore γ and the current coefficient."""
        self.gamma, self.coef = state_dict["gamma"], state_dict["coef"]
