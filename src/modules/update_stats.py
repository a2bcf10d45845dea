"""The outcome of an update: sums over micro-batches and ranks, divided only once."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..distributed import max_over_ranks, sum_over_ranks
from ..packing.head import TokenScores
from .experience import Experience, MicroBatch
from .losses import KL_ESTIMATORS


class UpdateResult:
    """Outcome of an update: its `experience`, wall `seconds`, and sums over micro-batches on one rank."""

    def __init__(self, experience: Experience) -> None:
        num_responses = len(experience.responses)
        self.experience, self.seconds, self.loss = experience, 0.0, 0.0
        self.token_sums: Counter[str] = Counter()
        self.response_sums: defaultdict[str, Tensor] = defaultdict(
            lambda: torch.full((num_responses,), torch.nan)
        )
        self.token_entropies: list[Tensor | None] = [None] * num_responses
        self.grad_norms: list[float] = []
        self.lr = self.largest_mismatch = self.flop = 0.0
        self.dropped = self.skipped = 0
        self.fresh: Counter[str] = Counter()
        self.stale: Counter[str] = Counter()

    def add(self, batch: MicroBatch, scores: TokenScores, flop: float) -> None:
        """Add a micro-batch after its forward, whose loss was computed at once or part by part."""
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
        old, fresh = columns.old(scores.logprobs), columns.on_score_prompt & ~columns.stale
        k3 = KL_ESTIMATORS["k3"]
        # [t] log π_trainer − log π_engine of tokens under their sampled prompt; k3 estimates KL(π_engine ‖
        # π_trainer).
        if len(log_ratio := (old - columns.engine_logprobs)[fresh]):
            kl, largest = torch.stack([k3(log_ratio).sum(), log_ratio.abs().max()]).tolist()
            self.fresh.update({"tokens": len(log_ratio), "kl": kl})
            self.largest_mismatch = max(self.largest_mismatch, largest)
        # [t] log π − log μ of tokens that an earlier policy μ has sampled, under the sampled prompt.
        if len(log_ratio := columns.log_ratio(old)[columns.stale]):
            weight = log_ratio.clamp(max=batch.staleness_log_cap).exp().sum()
            truncated = (log_ratio > batch.staleness_log_cap).sum()
            sums = torch.stack([weight, truncated, k3(log_ratio).sum()]).tolist()
            self.stale.update(
                {"tokens": len(log_ratio), **dict(zip(("weight", "truncated", "kl"), sums, strict=True))}
            )
        self.flop += flop

    def metrics(self) -> dict[str, float]:
        """Return the scalars to log of an update, over all ranks. Collective.

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

        Of the optimizer steps:

        - `train/loss`: value of the loss, mean over the mini-batches.
        - `train/grad_norm`: global L2 norm before clipping, mean over the mini-batches.
        - `train/lr`: learning rate of the last step.
        - `train/skipped_updates`: steps left out because of their gradient.
        - `train/dropped_responses`: responses that could have no gradient, left out of the forward.
        """
        sums, fresh, stale = (sum_over_ranks(own) for own in (self.token_sums, self.fresh, self.stale))
        of_steps = sum_over_ranks({"loss": self.loss, "dropped": self.dropped})
        tokens, stale_tokens, steps = sums.pop("tokens", 0.0), stale.pop("tokens", 0.0), len(self.grad_norms)
        metrics = {f"train/{name}": value / tokens for name, value in sums.items() if tokens} | {
            "train/loss": of_steps["loss"] / steps,
            "train/dropped_responses": of_steps["dropped"],
            "train/grad_norm": sum(self.grad_norms) / steps,
            "train/skipped_updates": float(self.skipped),
            "train/lr": self.lr,
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

        Returns:
            `loss`: [] float32, this rank's share of the loss, mean over the mini-batches;
            `advantages`: [R] float32;
            `entropy`, `ratio`, `kl`, `clipped`: [R] float32, means per token under the score prompt at the
                update:
            policy entropy in nats, policy ratio, estimated divergence from the reference in nats (NaN without
                one),
            share of tokens whose gradient was clipped away; NaN for responses that needed no forward;
            `score_logprob`: [R] float32, old log-prob of the whole response under the score prompt, NaN
                likewise;
            `token_entropies`: [R] of [T_r] float16, the entropies whose mean `entropy` is; None without a
                forward;
            `masked`: [R] bool, responses that are left out of the loss;
            `seconds_update`: wall seconds; `flop_update`: this rank's, see `UsefulFlop`.
        """
        sums, means = self.response_sums, ("entropy", "ratio", "kl", "clipped")
        return {
            "loss": torch.tensor(self.loss / len(self.grad_norms)),
            "advantages": self.experience.advantages,
            **{name: sums[name] / self.experience.lengths for name in means},
            "score_logprob": sums["old_logprob"],
            "token_entropies": self.token_entropies,
            "masked": ~self.experience.in_loss,
            "seconds_update": self.seconds,
            "flop_update": self.flop,
        }
