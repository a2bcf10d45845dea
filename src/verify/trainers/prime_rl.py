"""prime-rl: its algorithm `grpo` with its default loss, which is not GRPO's clipped one.

The advantage is the reward minus the mean of its group. The loss drops tokens whose probability moved by more
than a threshold in the direction of the advantage, has no clip, and adds a multiple of the squared log ratio
(prime_rl/trainer/rl/loss.py, `default_loss_fn`). prime-rl's sources are its only distribution.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prime_rl.trainer.rl.loss as prime_loss
import torch
from prime_rl.configs.algorithm import GRPOAlgoConfig
from prime_rl.configs.trainer import DefaultLossConfig
from prime_rl.orchestrator.algo.grpo import GRPOAlgorithm
from torch import Tensor

from .protocol import Exchange, Method, MethodSettings, MicroBatch, UnsupportedMethodError


def grpo(exchange: Exchange, settings: MethodSettings) -> Method:
    """Build prime-rl's algorithm `grpo` with its default loss; the clip range of the settings is not used.

    Raises:
        UnsupportedMethodError: if the settings ask for an entropy bonus or a divergence from a reference.
    """
    if settings.entropy_coefficient or settings.kl_coefficient:
        raise UnsupportedMethodError("has no entropy bonus and no divergence from a reference")
    options = settings.with_defaults(dppo_mask_low=0.2, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=1e-3)
    loss = prime_loss.setup_rl_loss_fn(DefaultLossConfig(**options))
    return Method(
        advantages=advantages(exchange),
        loss=lambda micro: loss_of(micro, loss),
        options=options,
        reduce=reduced,
    )


def advantages(exchange: Exchange) -> Tensor:
    """Return [R, T] advantages of prime-rl's algorithm, a group for each prompt."""
    batch = exchange.batch
    rewards = batch.rewards(exchange.dtype).tolist()
    traces = []
    groups = defaultdict(list)
    for prompt, row, reward in zip(batch.prompts, batch.rows, rewards, strict=True):
        length = len(row.response_ids)
        node = SimpleNamespace(mask=[True] * length, token_ids=row.response_ids, advantages=None)
        trace = SimpleNamespace(
            nodes=[node], reward=reward, has_error=False, agent=SimpleNamespace(trainable=True)
        )
        traces.append(trace)
        groups[prompt].append(SimpleNamespace(traces=[trace]))
    algorithm = GRPOAlgorithm(GRPOAlgoConfig(), None)
    for episodes in groups.values():
        asyncio.run(algorithm.score_group(episodes))
    values = torch.zeros_like(batch.old_logprobs)
    for number, trace in enumerate(traces):
        given = torch.tensor(trace.nodes[0].advantages, dtype=exchange.dtype)
        values[number, : len(given)] = given
    return values


def loss_of(micro: MicroBatch, loss: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return the loss of a micro-batch, over the tokens of the whole batch, and its metrics."""
    rows = micro.rows
    lengths = rows.lengths.tolist()
    masks = [torch.ones(length, dtype=torch.bool) for length in lengths]
    value, metrics = prime_loss.compute_loss(
        trainer_logprobs=in_pieces(micro.scores.logprobs, lengths),
        inference_logprobs=in_pieces(rows.old_logprobs, lengths),
        ref_logprobs=None,
        advantages=in_pieces(micro.advantages, lengths),
        loss_mask=masks,
        rl_weights=None,
        ce_weights=None,
        ref_kl_weights=None,
        rl_loss_fn=loss,
        rl_scale=int(micro.whole.mask.sum()),
        ce_scale=1,
        ref_kl_scale=1,
    )
    return value, metrics


def in_pieces(values: Tensor, lengths: list[int]) -> list[Tensor]:
    """Return the values at each response's tokens."""
    return [row[:length] for row, length in zip(values, lengths, strict=True)]


def reduced(parts: list[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return the mean of each metric over responses."""
    means = {}
    for name in parts[0]:
        values = torch.cat([part[name].detach() for part in parts])
        means[name] = float(values.double().mean())
    return means


def commit() -> str:
    """Return the commit of the sources, or `sources` if they are no clone."""
    for folder in Path(prime_loss.__file__).parents:
        head = folder / ".git" / "HEAD"
        if head.exists():
            return head.read_text().strip()[:12]
    return "sources"


def run(exchange: Exchange) -> None:
    """Run the methods in prime-rl."""
    exchange.run("prime-rl", commit(), {"grpo": grpo})
