"""Exact pass@k and Cover@τ of each evaluation split, where correct responses can be listed. Nothing is sampled."""

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
"""split → question id → probability that a response is correct."""


class ExactCallback(Callback):
    """Base class of callbacks that compute the exact success probability of every prompt of a batch.

    They need a module with `make_scorer` and a datamodule with `val_dataloader`, `tokenizer` and `tokenizer_path`, as
    `PolicyModule` and `QuestionDataModule` have. Log-probs are the trainer's: an engine that computes in another
    precision samples from a slightly different distribution.

    Args:
        verifier: Lists the correct responses; `ShortestPathReward` and `CountdownReward` do.
        sampling: How responses are, or would be, drawn.

    Raises:
        TypeError: the verifier can't list correct responses.
        ValueError: sampling leaves tokens out, so that probabilities are not those of the policy.
    """

    shapes_learning = False

    def __init__(self, verifier: EnumeratingVerifier, sampling: SamplingConfig) -> None:
        require(verifier, EnumeratingVerifier, "reward")
        if sampling.temperature == 0 or sampling.top_p < 1 or sampling.top_k:
            raise ValueError(
                f"Expected sampling from the whole distribution for exact pass@k, but got {sampling}. Set temperature "
                "above 0, top_p=1 and top_k=0 in rollout.evaluation_sampling."
            )
        self.verifier, self.sampling = verifier, sampling

    def batch_success(self, trainer: Trainer) -> BatchSuccess:
        """Return a function that computes the success of batches of the trainer's datamodule."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        return BatchSuccess(self.verifier, data.tokenizer, stop_token_ids(data.tokenizer_path), self.sampling)


class ExactPassAtK(ExactCallback):
    """Sums the probabilities of all correct responses to each evaluation question, in validation and test.

    Logs for each split, as means over its questions,
    - `exact_pass@k/<split>/<k>`: 1 − (1 − p)^k;
    - `exact_cover@tau/<split>/<tau>`: Cover@τ, the share of the questions with p ≥ τ (arXiv 2510.08325);
    - `support_gained/<split>/<k>`: share of the questions whose pass@k is above one half, and was not with the
      untrained policy;
    - `support_lost/<split>/<k>`: share of the questions whose pass@k was above one half with the untrained policy, and
      is not now.

    Writes `exact.json` into the run directory, and the same to `evaluations/exact-<iterations trained>.json`: p of
    every question, and pass@k and Cover@τ with 95 % t-intervals over questions.

    The untrained policy is the one that training starts from: it is evaluated before the first batch, and its p are
    part of checkpoints.

    Args:
        ks: The k of interest.
        taus: The τ of interest, 0..1.

    Raises:
        TypeError, ValueError: see `ExactCallback`; a τ is outside its range.
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
        """Evaluate the untrained policy, unless a checkpoint has."""
        if not self.untrained:
            self.untrained = self.success(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
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
        """Return the success of all evaluation questions under the current policy. Collective."""
        scorer, success = cast(PolicyModule, pl_module).make_scorer(), self.batch_success(trainer)
        found: Success = defaultdict(dict)
        for loader in trainer.datamodule.val_dataloader():  # type: ignore[attr-defined]
            for batch in loader:
                if len(batch.prompts) != len(batch.groups):
                    raise ValueError(
                        f"Expected one prompt for each evaluation question, but got {len(batch.prompts)} prompts for "
                        f"{len(batch.groups)} questions. Evaluate in one template: set data.evaluation_template."
                    )
                p = success(scorer, batch)
                ids = [batch.groups[prompt.question].id for prompt in batch.prompts]
                found[batch.split].update(zip(ids, p.tolist(), strict=True))
        parts = gather_objects(dict(found))
        return {split: {id: p for part in parts for id, p in part.get(split, {}).items()} for split in chain(*parts)}

    def state_dict(self) -> dict[str, Any]:
        """Return the success of the untrained policy, which a resumed run no longer has."""
        return {"untrained": self.untrained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.untrained = state_dict["untrained"]
