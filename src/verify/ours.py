"""The batch through the update of this package, as in training.

Departure from training: the old log-probs of the ratio are the sampled ones of the batch, since a batch from
outside comes without the weights that sampled it.
"""

import copy
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from transformers import PreTrainedModel

from ..modules.experience import Experience, reward_groups
from ..modules.policy.logprobs import Scorer
from ..modules.update import PolicyUpdate, UpdateOptions
from ..modules.update_stats import UpdateResult
from ..packing.batch import PackedBatch
from ..packing.head import TokenScores
from ..packing.policy import CausalPolicy
from ..types import Rollouts
from .batch import Batch
from .models import Models
from .outcome import Outcome


class RecordedUpdate(PolicyUpdate):
    """Update whose ratios are to the policy that sampled the batch, by its recorded log-probs."""

    def _experience(self, rollouts: Rollouts, num_questions: int, progress: float) -> Experience:
        experience = super()._experience(rollouts, num_questions, progress)
        experience.columns.old_logprobs = experience.columns.engine_logprobs
        experience.columns.old_known = torch.ones_like(experience.columns.old_known)
        return experience


@dataclass
class WeightRecorder:
    """Recorder of the derivative of the loss by each log-prob, from the forwards of a policy."""

    forwards: list[tuple[PackedBatch, TokenScores]]

    def __call__(self, _: Any, arguments: tuple[Any, ...], scores: TokenScores) -> None:
        """Keep a forward whose log-probs have a gradient."""
        if scores.logprobs.requires_grad:
            scores.logprobs.retain_grad()
            self.forwards.append((arguments[0], scores))

    def weights(self, lengths: list[int]) -> list[Tensor]:
        """Return [R] of [T_r] float64 weights; zeros for responses without a forward."""
        found = [torch.zeros(length, dtype=torch.float64) for length in lengths]
        for packed, scores in self.forwards:
            if scores.logprobs.grad is None:
                continue
            parts = scores.logprobs.grad.double().split(packed.lengths.tolist())
            for row, values in zip(packed.rows.tolist(), parts, strict=True):
                found[row] = values
        return found


def run_ours(cfg: DictConfig, batch: Batch, models: Models, micro_batch_tokens: int = 64) -> Outcome:
    """Return what one update of this package computes from the batch.

    Args:
        cfg: Composed settings of a run; `advantage`, `loss`, `credit`, `mismatch` and `policy` are read.
        batch: Responses, with the log-probs of the policy that sampled them.
        models: Policy and reference.
        micro_batch_tokens: Tokens of a forward. The outcome does not depend on it.
    """
    policy = CausalPolicy(_copied(models.policy), cfg.policy.temperature).train()
    reference = CausalPolicy(_copied(models.reference), cfg.policy.temperature).eval()
    recorder = WeightRecorder([])
    policy.register_forward_hook(recorder)
    loss = instantiate(cfg.loss)
    loss.by_token = False  # the loss is taken after the forward, so that log-probs have a gradient
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    gradient: dict[str, Tensor] = {}
    optimizer.register_step_pre_hook(lambda *_: gradient.update(_gradient(policy.model)))
    update = RecordedUpdate(
        Scorer(policy, reference, token_budget=micro_batch_tokens),
        instantiate(cfg.advantage),
        loss,
        optimizer,
        _options(cfg),
        credit=instantiate(cfg.credit) if cfg.get("credit") else None,
        mismatch=instantiate(cfg.mismatch) if cfg.get("mismatch") else None,
    )
    rollouts = batch.rollouts()
    result = update(rollouts, int(rollouts.question.max()) + 1)
    return Outcome(
        advantages=_advantages(update, result),
        token_weights=recorder.weights(batch.lengths),
        loss=result.loss,
        gradient=gradient,
        metrics=result.metrics(),
        options=cast("dict[str, object]", OmegaConf.to_container(cfg.loss, resolve=True)),
    )


def _copied(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model)


def _options(cfg: DictConfig) -> UpdateOptions:
    """Return the options of the update: one optimizer step whose gradient is left as it is."""
    given = {field.name: cfg.policy[field.name] for field in fields(UpdateOptions)}
    return UpdateOptions(**{**given, "mini_batches": 1, "max_grad_norm": None, "skip_grad_norm": None})


def _gradient(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the float64 gradient of each parameter, zeros for a parameter without one."""
    found = {}
    for name, parameter in model.named_parameters():
        value = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = value.detach().double().clone()
    return found


def _advantages(update: PolicyUpdate, result: UpdateResult) -> list[Tensor]:
    """Return [R] of [T_r] advantages by the strategy, before any credit per token."""
    experience = result.experience
    values = experience.advantages
    if update.credit is not None:
        values = update.advantage(reward_groups(experience.rollouts, None, 0.0))
    lengths = experience.lengths.tolist()
    return [value.double().expand(count) for value, count in zip(values, lengths, strict=True)]
