"""verl: advantages by the registry of estimators, loss by the actor's own `ppo_loss`.

A batch is laid out as verl's trainer v1 does, with nested tensors, one optimizer step per batch, and the
normalisers of the whole batch (verl 0.9.1: verl/workers/engine/fsdp/transformer_impl.py:730,
verl/trainer/ppo/v1/trainer_base.py:1851). Of verl, the model's pass, rollouts and workers are not run.
"""

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils import tensordict_utils
from verl.utils.metric import Metric, reduce_metrics
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from .protocol import Exchange, Method, MethodSettings, MicroBatch, UnsupportedMethodError

ALGORITHM = ("adv_estimator", "norm_adv_by_std_in_grpo")
"""Options of `AlgoConfig`; the others are those of the actor or of its policy loss."""
POLICY_LOSS = (
    "loss_mode",
    "clip_cov_ratio",
    "clip_cov_lb",
    "clip_cov_ub",
    "kl_cov_ratio",
    "ppo_kl_coef",
)
"""Options of `PolicyLossConfig`."""


def method(exchange: Exchange, settings: MethodSettings, **choice: Any) -> Method:
    """Build a method from verl's options: its defaults, the method's `choice`, and the settings."""
    low, high = settings.clip_range
    defaults: dict[str, Any] = {
        "adv_estimator": "grpo",
        "norm_adv_by_std_in_grpo": True,
        "loss_mode": "vanilla",
        "loss_agg_mode": "token-mean",
        "loss_scale_factor": None,
        "clip_ratio_low": low,
        "clip_ratio_high": high,
        "clip_ratio_c": 3.0,
        "use_kl_loss": settings.kl_coefficient > 0,
        "kl_loss_coef": settings.kl_coefficient,
        "kl_loss_type": "low_var_kl",
        "entropy_coeff": settings.entropy_coefficient,
    }
    options = settings.with_defaults(**{**defaults, **choice})
    if options["use_kl_loss"]:
        exchange.batch.require_reference()
    algorithm = {name: options[name] for name in ALGORITHM}
    policy_loss = {name: options[name] for name in POLICY_LOSS if name in options}
    actor = {name: value for name, value in options.items() if name not in algorithm | policy_loss}
    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=exchange.micro_batch_rows,
        policy_loss=PolicyLossConfig(**policy_loss),
        **actor,
    )
    return Method(
        advantages=advantages(exchange, AlgoConfig(**algorithm)),
        loss=lambda micro: actor_loss(micro, config),
        options=options,
        logprobs=logprobs_from_logits,
        reduce=reduce_parts,
    )


def advantages(exchange: Exchange, config: AlgoConfig) -> Tensor:
    """Return [R, T] advantages; the reward stands at the last token of each response."""
    batch = exchange.batch
    estimator = get_adv_estimator_fn(config.adv_estimator)
    given = {
        "token_level_rewards": batch.token_rewards(exchange.dtype),
        "response_mask": batch.mask.to(exchange.dtype),
        "index": np.array(batch.prompts, dtype=object),
        "config": config,
    }
    if config.adv_estimator.startswith("grpo"):
        # RLOO takes further arguments silently; only the GRPO estimators have this one.
        given["norm_adv_by_std_in_grpo"] = config.norm_adv_by_std_in_grpo
    values: Tensor = estimator(**given)[0]
    return values


def actor_loss(micro: MicroBatch, config: FSDPActorConfig) -> tuple[Tensor, dict[str, Any]]:
    """Return the actor's loss of a micro-batch: policy term, entropy and divergence, with verl's metrics."""
    rows = micro.rows
    output = {"log_probs": whole_sequences(micro.scores.logprobs, micro)}
    if config.entropy_coeff:
        output["entropy"] = whole_sequences(entropy_from_logits(micro.scores.logits), micro)
    tensors = {
        "prompts": nested(rows.prompt_ids, rows.prompt_mask),
        "responses": nested(rows.response_ids, rows.mask),
        "response_mask": nested(torch.ones_like(rows.response_ids), rows.mask),
        "old_log_probs": nested(rows.old_logprobs, rows.mask),
        "advantages": nested(micro.advantages, rows.mask),
    }
    if config.use_kl_loss and rows.reference_logprobs is not None:
        tensors["ref_log_prob"] = nested(rows.reference_logprobs, rows.mask)
    counts = {
        "dp_size": 1,
        "batch_num_tokens": int(micro.whole.mask.sum()),
        "global_batch_size": len(micro.whole),
    }
    loss, metrics = ppo_loss(config, output, tensordict_utils.get_tensordict(tensors, counts))
    return loss, metrics


def nested(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values at the mask's tokens as a nested tensor, a row for each response."""
    rows = [row[chosen] for row, chosen in zip(values, mask, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def whole_sequences(values: Tensor, micro: MicroBatch) -> Tensor:
    """Return [B, T] values of response tokens as verl's model output has them.

    The output is a nested tensor over prompt and response, whose place t belongs to token t + 1.
    """
    rows = []
    for row, prompt, response in zip(values, micro.rows.prompt_mask, micro.rows.mask, strict=True):
        before = row.new_zeros(int(prompt.sum()) - 1)
        rows.append(torch.cat([before, row[response], row.new_zeros(1)]))
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def reduce_parts(parts: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return metrics as verl logs them: sums or means over micro-batches, by the kind of the metric."""
    collected: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Metric):
                collected.setdefault(name, value.init_list()).append(value)
            else:
                collected.setdefault(name, []).append(value)
    return {name: float(value) for name, value in reduce_metrics(collected).items()}


def grpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GRPO, with verl's default of a mean over tokens."""
    return method(exchange, settings)


def dr_grpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build Dr. GRPO: no standard deviation, sums over tokens divided by the limit of tokens."""
    return method(
        exchange,
        settings,
        norm_adv_by_std_in_grpo=False,
        loss_agg_mode="seq-mean-token-sum-norm",
        loss_scale_factor=exchange.settings.max_response_tokens,
    )


def gspo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GSPO, with the mean over responses that verl recommends for it."""
    return method(exchange, settings, loss_mode="gspo", loss_agg_mode="seq-mean-token-mean")


def cispo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build CISPO."""
    return method(exchange, settings, loss_mode="cispo")


def rloo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build RLOO: leave-one-out advantages in the clipped loss."""
    return method(exchange, settings, adv_estimator="rloo")


def clip_cov(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build Clip-Cov."""
    return method(
        exchange,
        settings,
        loss_mode="clip_cov",
        clip_cov_ratio=settings.share,
        clip_cov_lb=settings.low,
        clip_cov_ub=settings.high,
    )


def kl_cov(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build KL-Cov."""
    return method(
        exchange,
        settings,
        loss_mode="kl_cov",
        kl_cov_ratio=settings.share,
        ppo_kl_coef=settings.coefficient,
    )


def gmpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GMPO, which verl calls `geo_mean`."""
    return method(exchange, settings, loss_mode="geo_mean")


def pass_at_k(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build `grpo_passk`: best minus second-best reward, for the best response alone (arXiv 2503.19595).

    Raises:
        UnsupportedMethodError: if a prompt has a single response.
    """
    alone = sorted(name for name, count in Counter(exchange.batch.prompts).items() if count == 1)
    if alone:
        raise UnsupportedMethodError(f"needs two responses to every prompt, but prompts {alone} have one")
    return method(exchange, settings, adv_estimator="grpo_passk")


METHODS = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": grpo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "gmpo": gmpo,
    "pass_at_k": pass_at_k,
}
"""Method → builder. DAPO's loss is verl's default, with the clip range of the settings."""


def run(exchange: Exchange) -> None:
    """Run the methods in verl."""
    exchange.run("verl", version("verl"), METHODS)
