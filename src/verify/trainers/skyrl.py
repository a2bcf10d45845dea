"""SkyRL: advantages and policy losses by its registries, divergence and entropy as its worker adds them.

SkyRL scales advantages, once for the whole mini-batch, so that a sum over tokens gives the mean that is asked
for (skyrl 0.4.0: skyrl/train/trainer.py:1496). The sum of the three terms is written out here, since the
worker that has it needs a GPU (skyrl/backends/skyrl_train/workers/worker.py:1217).
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from skyrl.backends.skyrl_train.utils.ppo_utils import (
    PolicyLossRegistry,
    apply_loss_reduction_to_advantages_minibatch,
    compute_advantages_and_returns,
    compute_approx_kl,
)
from skyrl.backends.skyrl_train.utils.torch_utils import (
    chunked_entropy_from_logits,
    logprobs_from_logits,
    masked_mean,
)
from skyrl.backends.skyrl_train.workers.worker_utils import reduce_metrics
from skyrl.train.config import AlgorithmConfig
from skyrl.train.config.config import CISPOConfig, ClipCovConfig, KLCovConfig
from torch import Tensor

from .protocol import Exchange, Method, MethodSettings, MicroBatch


def method(exchange: Exchange, settings: MethodSettings, **choice: Any) -> Method:
    """Build a method from SkyRL's options: its defaults, the method's `choice`, and the settings."""
    low, high = settings.clip_range
    defaults: dict[str, Any] = {
        "advantage_estimator": "grpo",
        "grpo_norm_by_std": True,
        "advantage_batch_normalize": False,
        "policy_loss_type": "regular",
        "loss_reduction": "token_mean",
        "max_seq_len": exchange.settings.max_response_tokens,
        "eps_clip_low": low,
        "eps_clip_high": high,
        "clip_ratio_c": 3.0,
        "use_kl_loss": settings.kl_coefficient > 0,
        "kl_loss_coef": settings.kl_coefficient,
        "kl_estimator_type": "k3",
        "use_entropy_loss": settings.entropy_coefficient != 0,
        "entropy_loss_coef": settings.entropy_coefficient,
    }
    options = settings.with_defaults(**{**defaults, **choice})
    if options["use_kl_loss"]:
        exchange.batch.require_reference()
    config = AlgorithmConfig(
        **options,
        cispo=CISPOConfig(cispo_eps_clip_low=low, cispo_eps_clip_high=high),
        clip_cov=ClipCovConfig(
            clip_ratio=settings.share, clip_cov_lb=settings.low, clip_cov_ub=settings.high
        ),
        kl_cov=KLCovConfig(kl_cov_frac=settings.share, ppo_kl_coef=settings.coefficient),
    )
    advantages = advantages_of(exchange, config)
    scaled = apply_loss_reduction_to_advantages_minibatch(
        advantages=advantages,
        loss_mask=exchange.batch.mask.to(exchange.dtype),
        loss_reduction=config.loss_reduction,
        micro_batch_size=exchange.micro_batch_rows,
        max_seq_len=config.max_seq_len,
    )
    return Method(
        advantages=advantages,
        loss=lambda micro: worker_loss(micro, scaled, config),
        options=options,
        logprobs=logprobs_from_logits,
        reduce=reduced,
    )


def advantages_of(exchange: Exchange, config: AlgorithmConfig) -> Tensor:
    """Return [R, T] advantages; the reward stands at the last token of each response."""
    batch = exchange.batch
    values: Tensor = compute_advantages_and_returns(
        token_level_rewards=batch.token_rewards(exchange.dtype),
        response_mask=batch.mask.to(exchange.dtype),
        index=np.array(batch.prompts, dtype=object),
        adv_estimator=config.advantage_estimator,
        config=config,
        grpo_norm_by_std=config.grpo_norm_by_std,
    )[0]
    return values


def worker_loss(
    micro: MicroBatch, scaled: Tensor, config: AlgorithmConfig
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of a micro-batch as the worker computes it, with its metrics."""
    rows = micro.rows
    mask = rows.mask.to(scaled.dtype)
    policy_loss = PolicyLossRegistry.get(config.policy_loss_type)
    loss, loss_metrics = policy_loss(
        micro.scores.logprobs,
        rows.old_logprobs,
        scaled[micro.start : micro.start + len(rows)],
        config=config,
        loss_mask=mask,
        rollout_logprobs=None,
    )
    metrics = {"policy_loss": loss.item()}
    entropies = chunked_entropy_from_logits(micro.scores.logits, requires_grad=bool(config.use_entropy_loss))
    entropy = masked_mean(entropies, mask)
    metrics["policy_entropy"] = entropy.item()
    weight = len(rows) / len(micro.whole)
    if config.use_entropy_loss:
        loss = loss - config.entropy_loss_coef * entropy * weight
    if config.use_kl_loss:
        divergences = compute_approx_kl(
            micro.scores.logprobs,
            rows.reference_logprobs,
            loss_mask=mask,
            kl_estimator_type=config.kl_estimator_type,
        )
        divergence = masked_mean(divergences, mask, dim=-1).mean()
        metrics["policy_kl"] = divergence.item()
        loss = loss + config.kl_loss_coef * divergence * weight
    metrics["final_loss"] = loss.item()
    return loss, metrics | {f"loss_metrics/{name}": value for name, value in loss_metrics.items()}


def reduced(parts: list[Mapping[str, float]]) -> dict[str, float]:
    """Return metrics as SkyRL logs them: losses are sums over micro-batches, most others means."""
    lists = {name: [part[name] for part in parts] for name in parts[0]}
    metrics: dict[str, float] = reduce_metrics(lists, sum_loss_metrics=True)
    return metrics


def grpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GRPO, with SkyRL's default of a mean over tokens."""
    return method(exchange, settings)


def dr_grpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build Dr. GRPO: no standard deviation, sums over tokens divided by the limit of tokens."""
    return method(exchange, settings, grpo_norm_by_std=False, loss_reduction="seq_mean_token_sum_norm")


def dapo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build DAPO as SkyRL's documentation does, with its mean over the tokens of the mini-batch.

    The example scripts take `loss_reduction=token_mean_legacy`, a mean of the micro-batches' means.
    """
    return method(exchange, settings, policy_loss_type="dual_clip", clip_ratio_c=10.0)


def gspo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build GSPO, with the mean over responses that SkyRL asks for."""
    return method(exchange, settings, policy_loss_type="gspo", loss_reduction="sequence_mean")


def cispo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build CISPO."""
    return method(exchange, settings, policy_loss_type="cispo")


def rloo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build RLOO: leave-one-out advantages in the clipped loss."""
    return method(exchange, settings, advantage_estimator="rloo")


def clip_cov(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build Clip-Cov. Its bounds meet covariances of scaled advantages."""
    return method(exchange, settings, policy_loss_type="clip_cov")


def kl_cov(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build KL-Cov. Its penalty is a sum over tokens, not scaled as the policy term is."""
    return method(exchange, settings, policy_loss_type="kl_cov")


METHODS = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}
"""Method → builder."""


def run(exchange: Exchange) -> None:
    """Run the methods in SkyRL."""
    exchange.run("SkyRL", version("skyrl"), METHODS)
