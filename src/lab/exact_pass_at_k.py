"""Exact pass@k and Cover@τ, without sampling, of evaluation splits whose correct responses can be listed."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ..callbacks.shared import write_evaluation
from ..distributed import gather_objects
from ..metrics.functional import cover_at_tau, exact_pass_at_k, support_change, t_intervals
from ..modules.lightning.policy_module import PolicyModule
from ..rollouts.engines.base import stop_token_ids
from ..runs.scalars import log_scalars
from ..types import EnumeratingVerifier, SamplingConfig, require
from .exact import BatchSuccess

Success = dict[str, dict[str, float]]
"""Split → question id → probability of a correct response."""


class ExactCallback(Callback):
    """Base class of callbacks that compute the exact success probability of every prompt of a batch.

    A callback needs a module with `make_scorer`, such as `PolicyModule`, and a datamodule with
    `val_dataloader`, `tokenizer` and `tokenizer_path`, such as `QuestionDataModule`. Log-probs are computed
    by the trainer; an engine of another precision samples from a slightly different distribution.

    Args:
        verifier: Verifier that lists the correct responses, such as `ShortestPathReward` and
            `CountdownReward`.
        sampling: Options with which responses are sampled, or would be sampled.

    Raises:
        TypeError: if the verifier can't list correct responses.
        ValueError: if sampling excludes tokens, so that probabilities are not the policy's.
    """

    shapes_learning = False

    def __init__(self, verifier: EnumeratingVerifier, sampling: SamplingConfig) -> None:
        require(verifier, EnumeratingVerifier, "reward")
        if sampling.temperature == 0 or sampling.top_p < 1 or sampling.top_k:
            raise ValueError(
                f"Expected sampling from the whole distribution for exact pass@k, but got {sampling}. Set "
                "temperature above 0, top_p=1 and top_k=0 in rollout.evaluation_sampling."
            )
        self.verifier, self.sampling = verifier, sampling

    def batch_success(self, trainer: Trainer) -> BatchSuccess:
        """Return a function that computes the success probabilities of the datamodule's batches."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        return BatchSuccess(self.verifier, data.tokenizer, stop_token_ids(data.tokenizer_path), self.sampling)


class ExactPassAtK(ExactCallback):
    """Callback that sums the probabilities of all correct responses to each evaluation question.

    It runs in validation and test, and logs for each split, as means over the split's questions:

    - `exact_pass@k/<split>/<k>`: 1 − (1 − p)^k;
    - `exact_cover@tau/<split>/<tau>`: Cover@τ, the share of the questions with p ≥ τ (arXiv 2510.08325);
    - `support_gained/<split>/<k>`: share of the questions whose pass@k is at least one half, but was below
      one half with the untrained policy;
    - `support_lost/<split>/<k>`: share of the questions whose pass@k was at least one half with the untrained
      policy, but is below one half now.

    Writes `exact.json` to the run directory, and to `evaluations/exact-<iterations trained>.json`: p of every
    question, and pass@k and Cover@τ with 95 % t-intervals over questions.

    The untrained policy is the policy that training starts from. It is evaluated before the first batch, and
    its success probabilities are part of checkpoints.

    Args:
        ks: Values of k.
        taus: Values of τ, from 0 to 1.

    Raises:
        TypeError: see `ExactCallback`.
        ValueError: see `ExactCallback`; also if a τ is out of range.
    """

    def __init__(
        self,
        verifier: EnumeratingVerifier,
        sampling: SamplingConfig,
        ks: Sequence[int] = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000),
        taus: Sequence[float] = (),
    ) -> None:
        super().__init__(verifier, sampling)
        cover_at_tau(torch.zeros(0), taus)  # raises on an invalid τ before anything is computed
        self.ks, self.taus = tuple(ks), tuple(taus)
        self.untrained: Success = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the untrained policy, unless its results were loaded from a checkpoint."""
        if not self.untrained:
            self.untrained = self.success(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log exact pass@k and Cover@τ of all splits, and write them to files."""
        if trainer.sanity_checking:
            return
        splits = {}
        for name, questions in self.success(trainer, pl_module).items():
            p = torch.tensor(list(questions.values()), dtype=torch.float64)
            curve, shares = exact_pass_at_k(p, self.ks), dict[str, dict[int, float]]()
            before = self.untrained.get(name, {})
            if questions.keys() <= before.keys():
                start = torch.tensor([before[id] for id in questions], dtype=torch.float64)
                changes = support_change(exact_pass_at_k(start, self.ks), curve)
                for change, by_k in zip(("support_gained", "support_lost"), changes, strict=True):
                    shares[change] = dict(zip(self.ks, by_k.tolist(), strict=True))
            intervals = dict(zip(self.ks, t_intervals(curve), strict=True))
            covered = dict(zip(self.taus, t_intervals(cover_at_tau(p, self.taus)), strict=True))
            metrics = {f"exact_pass@k/{name}/{k}": interval.value for k, interval in intervals.items()}
            metrics |= {f"exact_cover@tau/{name}/{tau}": interval.value for tau, interval in covered.items()}
            metrics |= {f"{change}/{name}/{k}": x for change, by_k in shares.items() for k, x in by_k.items()}
            log_scalars(pl_module, metrics)
            splits[name] = {
                "num_questions": len(questions),
                "pass_at_k": {k: interval._asdict() for k, interval in intervals.items()},
                **({"cover_at_tau": {tau: x._asdict() for tau, x in covered.items()}} if covered else {}),
                **shares,
                "questions": [{"id": id, "success": p} for id, p in questions.items()],
            }
        write_evaluation(trainer, "exact", {}, {"splits": splits})

    on_test_epoch_end = on_validation_epoch_end

    def success(self, trainer: Trainer, pl_module: LightningModule) -> Success:
        """Return the current policy's success probabilities on all evaluation questions. Collective."""
        scorer, success = cast(PolicyModule, pl_module).make_scorer(), self.batch_success(trainer)
        found: Success = defaultdict(dict)
        for loader in trainer.datamodule.val_dataloader():  # type: ignore[attr-defined]
            for batch in loader:
                if len(batch.prompts) != len(batch.groups):
                    raise ValueError(
                        f"Expected one prompt for each evaluation question, but got {len(batch.prompts)} "
                        f"prompts for {len(batch.groups)} questions. Evaluate in one template: set "
                        "data.evaluation_template."
                    )
                p = success(scorer, batch)
                ids = [batch.groups[prompt.question].id for prompt in batch.prompts]
                found[batch.split].update(zip(ids, p.tolist(), strict=True))
        parts = gather_objects(dict(found))
        return {
            split: {id: p for part in parts for id, p in part.get(split, {}).items()}
            for split in chain(*parts)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the success probabilities of the untrained policy, which a resumed run can't recompute."""
        return {"untrained": self.untrained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the success probabilities of the untrained policy."""
        self.untrained = state_dict["untrained"]
