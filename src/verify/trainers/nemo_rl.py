"""NeMo RL: advantages by `GRPOAdvantageEstimator`, loss by `ClippedPGLossFn`.

NeMo RL's sources are its only distribution (the package of that name on PyPI is empty). It takes the
advantages in float32.
"""

from collections.abc import Mapping
from typing import Any

import nemo_rl
import torch
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator
from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch import Tensor

from .protocol import Exchange, Method, MethodSettings, MicroBatch, UnsupportedMethodError

ESTIMATOR = ("normalize_rewards", "use_leave_one_out_baseline")
"""Options of `AdvEstimatorConfig`; the others are those of `ClippedPGLossConfig`."""


def method(exchange: Exchange, settings: MethodSettings, **choice: Any) -> Method:
    """Build a method from NeMo RL's options: its defaults, the method's `choice`, and the settings."""
    if settings.entropy_coefficient:
        raise UnsupportedMethodError("has no entropy bonus: set entropy_coefficient to 0")
    low, high = settings.clip_range
    defaults: dict[str, Any] = {
        "normalize_rewards": True,
        "use_leave_one_out_baseline": True,
        "token_level_loss": True,
        "sequence_level_importance_ratios": False,
        "disable_ppo_ratio": False,
        "use_cispo": False,
        "ratio_clip_min": low,
        "ratio_clip_max": high,
        "ratio_clip_c": None,
        "reference_policy_kl_penalty": settings.kl_coefficient,
        "reference_policy_kl_type": "k3",
    }
    options = settings.with_defaults(**{**defaults, **choice})
    if options["reference_policy_kl_penalty"]:
        exchange.batch.require_reference()
    estimator = {name: options[name] for name in ESTIMATOR}
    config = ClippedPGLossConfig(**{name: value for name, value in options.items() if name not in estimator})
    loss = ClippedPGLossFn(config)
    return Method(
        advantages=advantages(exchange, AdvEstimatorConfig(**estimator), config),
        loss=lambda micro: loss_of(micro, loss),
        options=options,
        reduce=reduced,
    )


def advantages(exchange: Exchange, estimator: AdvEstimatorConfig, config: ClippedPGLossConfig) -> Tensor:
    """Return [R, T] advantages; prompts are told apart by question and wording."""
    batch = exchange.batch
    values: Tensor = GRPOAdvantageEstimator(estimator, config).compute_advantage(
        prompt_ids=torch.tensor([[row.question, row.wording] for row in batch.rows]),
        rewards=batch.rewards(torch.float32),
        mask=batch.mask,
    )
    return torch.where(batch.mask, values.to(exchange.dtype), 0.0)


def loss_of(micro: MicroBatch, loss: ClippedPGLossFn) -> tuple[Tensor, Mapping[str, Any]]:
    """Return the loss of a micro-batch, normalised by the counts of the whole batch, and its metrics.

    NeMo RL's tensors are of whole sequences, whose first token is never predicted: one column stands for the
    prompt.
    """
    rows = micro.rows
    reference = rows.old_logprobs if rows.reference_logprobs is None else rows.reference_logprobs
    data = {
        "input_ids": after_prompt(rows.response_ids),
        "advantages": after_prompt(micro.advantages),
        "prev_logprobs": after_prompt(rows.old_logprobs),
        "generation_logprobs": after_prompt(rows.old_logprobs),
        "reference_policy_logprobs": after_prompt(reference),
        "token_mask": after_prompt(rows.mask.to(micro.advantages.dtype)),
        "sample_mask": torch.ones(len(rows), dtype=micro.advantages.dtype),
    }
    value, metrics = loss(
        micro.scores.logprobs,
        BatchedDataDict(data),
        global_valid_seqs=torch.tensor(float(len(micro.whole))),
        global_valid_toks=micro.whole.mask.sum().to(micro.advantages.dtype),
    )
    return value, metrics


def after_prompt(values: Tensor) -> Tensor:
    """Return [B, 1 + T] values with a column of zeros before them."""
    return torch.cat([values.new_zeros(len(values), 1), values], 1)


def reduced(parts: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return metrics as NeMo RL's documentation says: sums over micro-batches, or extrema."""
    metrics = {}
    for name in parts[0]:
        values = [float(part[name]) for part in parts]
        if name.endswith("_min"):
            metrics[name] = min(values)
        elif name.endswith("_max"):
            metrics[name] = max(values)
        else:
            metrics[name] = sum(values)
    return metrics


def grpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GRPO, with NeMo RL's defaults: a leave-one-out baseline and scale, a mean over tokens."""
    return method(exchange, settings)


def gspo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GSPO."""
    return method(exchange, settings, sequence_level_importance_ratios=True, token_level_loss=False)


def cispo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build CISPO."""
    return method(exchange, settings, use_cispo=True)


def rloo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build RLOO as NeMo RL's documentation does: log-probs in the place of ratios."""
    return method(exchange, settings, normalize_rewards=False, disable_ppo_ratio=True)


METHODS = {"grpo": grpo, "dapo": grpo, "gspo": gspo, "cispo": cispo, "rloo": rloo}
"""Method → builder. DAPO's loss is NeMo RL's default, with the clip range of the settings."""


def run(exchange: Exchange) -> None:
    """Run the methods in NeMo RL."""
    exchange.run("NeMo RL", nemo_rl.__version__, METHODS)
