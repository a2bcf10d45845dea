"""The outcome of an update: sums over micro-batches and ranks, divided only once."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..distributed import max_over_ranks, sum_over_ranks
from ..packing.batch import Work
from ..packing.head import TokenScores
from .experience import Experience, MicroBatch
from .losses import KL_ESTIMATORS


@dataclass(frozen=True, kw_only=True)
class GradientStep:
    """One optimizer step, made or skipped."""

    norm: float
    """Global L2 norm of the gradient before clipping."""
    lr: float
    """Learning rate."""
    skipped: bool
    """Whether the step was skipped because of its gradient."""


@dataclass(eq=False)
class UpdateResult:
    """Outcome of an update: sums over micro-batches on one rank."""

    experience: Experience
    """The responses that were learned from."""
    seconds: float = 0.0
    """Wall seconds of the update."""
    steps: list[GradientStep] = field(default_factory=list)
    """Optimizer steps, one for each mini-batch."""
    loss: float = 0.0
    """Sum of the loss."""
    work: Work = field(default_factory=lambda: Work(0, 0, 0))
    """Sums of `PackedBatch.work`."""
    flop: float = 0.0
    """Useful FLOP, see `UsefulFlop`."""
    dropped: int = 0
    """Responses that could have no gradient, left out of the forward."""
    largest_mismatch: float = 0.0
    """Largest difference of a token's log-probs between engine and trainer, nats."""
    token_sums: Counter[str] = field(default_factory=Counter)
    """Name → sum over tokens."""
    fresh: Counter[str] = field(default_factory=Counter)
    """Name → sum over tokens that the weights before this update sampled under their score prompt."""
    stale: Counter[str] = field(default_factory=Counter)
    """Name → sum over stale tokens."""

    def __post_init__(self) -> None:
        count = len(self.experience.responses)
        self.response_sums: defaultdict[str, Tensor] = defaultdict(lambda: torch.full((count,), torch.nan))
        self.token_entropies: list[Tensor | None] = [None] * count

    @property
    def grad_norms(self) -> list[float]:
        """Norms of the gradients of all steps before clipping."""
        return [step.norm for step in self.steps]

    @property
    def skipped(self) -> int:
        """Number of steps that were skipped."""
        return sum(step.skipped for step in self.steps)

    def add(self, batch: MicroBatch, scores: TokenScores) -> None:
        """Add a micro-batch after its forward; its loss may have been computed at once or part by part."""
        parts, rows = batch.outputs, batch.packed.rows
        scalars = [torch.stack([outputs.loss.detach(), *outputs.sums.values()]) for outputs in parts]
        for loss, *sums in torch.stack(scalars).tolist():  # one wait for the device, not one for each number
            self.loss += loss
            self.token_sums.update(dict(zip(parts[0].sums, sums, strict=True)))
        for name in parts[0].response_sums:
            values = torch.stack([outputs.response_sums[name] for outputs in parts]).sum(0)
            self.response_sums[name][rows] = values.float().cpu()
        if scores.entropy is not None:  # half precision keeps three digits
            entropies = scores.entropy.detach().half().cpu().split(batch.packed.lengths.tolist())
            for row, values in zip(rows.tolist(), entropies, strict=True):
                self.token_entropies[row] = values
        columns = batch.columns
        fresh = columns.on_score_prompt & ~columns.stale
        k3 = KL_ESTIMATORS["k3"]
        # [t] log π_trainer − log π_engine of tokens under their sampled prompt; k3 estimates KL(π_engine ‖
        # π_trainer).
        if len(log_ratio := (batch.old_logprobs - columns.engine_logprobs)[fresh]):
            kl, largest = torch.stack([k3(log_ratio).sum(), log_ratio.abs().max()]).tolist()
            self.fresh.update({"tokens": len(log_ratio), "kl": kl})
            self.largest_mismatch = max(self.largest_mismatch, largest)
        # [t] log π − log μ of tokens that an earlier policy μ has sampled, under the sampled prompt.
        if len(log_ratio := batch.log_ratio[columns.stale]):
            weight = log_ratio.clamp(max=batch.staleness_log_cap).exp().sum()
            truncated = (log_ratio > batch.staleness_log_cap).sum()
            sums = torch.stack([weight, truncated, k3(log_ratio).sum()]).tolist()
            self.stale.update(
                {"tokens": len(log_ratio), **dict(zip(("weight", "truncated", "kl"), sums, strict=True))}
            )
        work = batch.packed.work
        self.work = Work(
            self.work.tokens + work.tokens, self.work.states + work.states, self.work.pairs + work.pairs
        )

    def metrics(self) -> dict[str, float]:
        """Return the scalars that describe the update in the log, over all ranks. Collective.

        Means over response tokens:

        - `train/{ratio,kl,entropy,old_logprob}`: policy ratio; estimated divergence from the reference,
          policy entropy and log-prob before the batch's first update, nats. `train/<name>`: any other sum
          that the loss returns.
        - `train/{clip_low,clip_high,clip_dual}`: shares of tokens beyond the bound; `train/clipped`: share of
          tokens whose gradient a bound removed.
        - `rollout/engine_mismatch_kl`: estimate k3 of KL(π_engine ‖ π_trainer) under the sampled prompt,
          nats; `rollout/engine_mismatch_max`: largest difference of a token's log-probs, nats.
        - `rollout/mismatch_{weight,truncated,rejected}`: importance weight between engine and trainer, shares
          of tokens whose weight is truncated or that are rejected; `rollout/mismatch_ess`: effective sample
          size per token.
        - `rollout/staleness_{weight,truncated,kl}`: importance weight of stale tokens, share of truncated
          weights, estimate k3 of the divergence, nats.

        Over the optimizer steps:

        - `train/loss`: value of the loss, mean over the mini-batches.
        - `train/grad_norm`: global L2 norm before clipping, mean over the mini-batches.
        - `train/lr`: learning rate of the last step.
        - `train/skipped_updates`: steps left out because of their gradient.
        - `train/dropped_responses`: responses that could have no gradient, left out of the forward.
        """
        sums, fresh, stale = (sum_over_ranks(own) for own in (self.token_sums, self.fresh, self.stale))
        of_steps = sum_over_ranks({"loss": self.loss, "dropped": self.dropped})
        tokens = sums.pop("tokens", 0.0)
        stale_tokens = stale.pop("tokens", 0.0)
        steps = len(self.steps)
        metrics = {f"train/{name}": value / tokens for name, value in sums.items() if tokens} | {
            "train/loss": of_steps["loss"] / steps,
            "train/dropped_responses": of_steps["dropped"],
            "train/grad_norm": sum(self.grad_norms) / steps,
            "train/skipped_updates": float(self.skipped),
            "train/lr": self.steps[-1].lr,
        }
        largest_mismatch = max_over_ranks(self.largest_mismatch)
        # The engine's own rounding shows only in what the present weights have sampled.
        if fresh or not stale_tokens:
            metrics["rollout/engine_mismatch_kl"] = fresh.get("kl", 0.0) / fresh.get("tokens", 1)
            metrics["rollout/engine_mismatch_max"] = largest_mismatch
        if (own := self.experience.mismatch) is not None:
            corrected = replace(own, sums=sum_over_ranks(own.sums)).metrics()
            metrics |= {f"rollout/mismatch_{name}": value for name, value in corrected.items()}
        return metrics | {f"rollout/staleness_{name}": value / stale_tokens for name, value in stale.items()}

    def outputs(self) -> dict[str, Any]:
        """Return the update as a mapping, for diagnostics, in the order of the rollouts.

        - `loss`: [] float32, this rank's share of the loss, mean over the mini-batches.
        - `advantages`: [R] float32.
        - `entropy`, `ratio`, `kl`, `clipped`: [R] float32, means per token under the score prompt at the
          update: policy entropy in nats, policy ratio, estimated divergence from the reference in nats (NaN
          without a reference), share of tokens whose gradient was clipped away; NaN for responses that needed
          no forward.
        - `score_logprob`: [R] float32, old log-prob of the whole response under the score prompt; NaN for
          responses that needed no forward.
        - `token_entropies`: [R] of [T_r] float16, entropies with the mean `entropy`; None without a forward.
        - `masked`: [R] bool, responses that are left out of the loss.
        - `seconds_update`: wall seconds; `flop_update`: FLOP of this rank, see `UsefulFlop`.
        """
        sums, means = self.response_sums, ("entropy", "ratio", "kl", "clipped")
        return {
            "loss": torch.tensor(self.loss / len(self.steps)),
            "advantages": self.experience.advantages,
            **{name: sums[name] / self.experience.lengths for name in means},
            "score_logprob": sums["old_logprob"],
            "token_entropies": self.token_entropies,
            "masked": ~self.experience.in_loss,
            "seconds_update": self.seconds,
            "flop_update": self.flop,
        }
