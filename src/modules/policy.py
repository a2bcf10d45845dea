"""The policy and its update: advantages, log-probs under the score prompt, loss, step. Nothing else.

One training step takes one batch of scored rollouts and makes several optimizer steps on it (manual
optimisation). Two departures from the papers' code: responses that can have no gradient are left out of the
forward, which changes no gradient; the first mini-batch takes its own log-probs as the old ones, which makes its
ratio exactly 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, get_scheduler

from ..distributed import gather_objects, max_over_ranks, sum_over_ranks, world_size
from ..scalars import log_scalars
from ..types import LossInputs, LossOutputs, Prompt, QuestionBatch, RewardGroups, Rollouts
from .experience import Anchor, Experience, cat_rows, join_reward_groups, split_by_question
from .head import EntropyMode, TokenLoss, TokenScores
from .logprobs import CausalPolicy
from .lora import adapters_off, has_adapters
from .model import resolve_model_path
from .packing import PackedBatch, pack, plan_micro_batches
from .sharding import full_tensors, gradient_sync, shard
from .tally import Tally


class PolicyModule(LightningModule):
    """A causal language model, and the update that an advantage strategy and a loss make of it.

    Reads from the batch: `groups` and `rollouts` (see `tagrpo.types`).

    Responses with `rollouts.staleness` > 0 come from μ, weights from before the last update. The policy term of each of
    their tokens is multiplied by min(π(o_t|q, o_<t) / μ(o_t|q, o_<t), `staleness_cap`). π is the policy before this
    update, to which the policy ratio remains (decoupled PPO, arXiv 2505.24298); q is the prompt that was sampled,
    whatever the score prompt, so that nothing but the update is corrected for. The engine's log-probs are taken as μ,
    with its rounding. As in the literature, weights by token leave a bias by the tokens before, advantages are those of
    the groups as they were sampled, and KL and entropy terms have no weights. Where the score prompt was sampled no
    further forward is needed; responses to rephrasings, under `anchor=original`, need one without gradient, which
    `prompt_correction` makes anyway. With top-p or top-k, π and μ are not the distributions that they would have to be:
    neither is cut off (transformers), or only μ (vLLM).

    `training_step` returns a mapping for callbacks:
        `loss`: [] float32, this rank's share of the loss, mean over the mini-batches;
        `advantages`: [R] float32 on the CPU, in the order of the rollouts;
        `entropy`, `ratio`, `kl`, `clipped`: [R] float32 on the CPU, means per token under the score prompt at the
        update: policy entropy in nats, policy ratio, estimated divergence from the reference in nats (NaN without
        one), share of tokens whose gradient was clipped away; NaN for responses that needed no forward;
        `score_logprob`: [R] float32 on the CPU, old log-prob of the whole response under the score prompt, likewise;
        `masked`: [R] bool on the CPU, responses that are left out of the loss;
        `seconds_update`: wall seconds of the step.

    Args:
        load_model: Returns the policy, on the CPU; called when the trainer configures the model.
        model_path: Folder or hub name of the policy; checked at once, so that a wrong path fails early.
        advantage: Strategy, `RewardGroups` → [R] advantages.
        loss: `LossInputs` → `LossOutputs`; where its `by_token` is true, called on parts of a micro-batch's tokens.
        optimizer: Parameters → optimizer.
        anchor: Score prompt: `original` (TA-GRPO, Eq. 4) or `own` (GRPO, Eq. 2).
        mini_batches: Optimizer steps per batch of rollouts.
        token_budget: Tokens per forward on one rank: distinct prompt tokens plus response tokens, or the tokens of
            a padded batch for models that can't share prompts.
        schedule: Learning-rate schedule by its name in transformers: `cosine`, `linear`, `constant_with_warmup`, …
        warmup: Fraction of all optimizer steps spent warming up, 0..1.
        max_grad_norm: Gradients are scaled down to this global L2 norm.
        temperature: Sampling temperature; log-probs are taken at it.
        compute_dtype: `bfloat16` computes in it while master weights stay float32; None computes in theirs.
        mask_truncated: Leave truncated responses out of the loss and its normalisers (DAPO, overlong filtering).
        prompt_correction: Truncate at this value the token weights π(o|q0)/π(o|qn) that correct for sampling from
            a rephrasing while scoring under the original. None leaves it uncorrected, as the paper does.
        staleness_cap: Truncate the weights of stale responses at this value, at least 1.
        cpu_offload: Under FSDP2, keep shards and optimizer state in host memory.
        skip_grad_norm: Gradients of a larger norm are not scaled down but skipped, as those are that are not finite;
            None skips only the latter.
        max_skipped: Optimizer steps in a row that may be skipped; one more ends the run.

    Raises:
        FileNotFoundError: `model_path` leads nowhere.
        ValueError: an option is out of its range, or options contradict each other.
    """

    def __init__(
        self,
        load_model: Callable[[], PreTrainedModel],
        model_path: str,
        advantage: Callable[[RewardGroups], Tensor],
        loss: Callable[[LossInputs], LossOutputs],
        optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizer],
        *,
        anchor: Anchor = "original",
        mini_batches: int = 2,
        token_budget: int = 16384,
        schedule: str = "cosine",
        warmup: float = 0.1,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        compute_dtype: Literal["bfloat16"] | None = None,
        mask_truncated: bool = False,
        prompt_correction: float | None = None,
        staleness_cap: float = 2.0,
        cpu_offload: bool = False,
        skip_grad_norm: float | None = None,
        max_skipped: int = 5,
    ) -> None:
        super().__init__()
        if anchor not in ("original", "own"):
            raise ValueError(f"Expected policy.anchor to be `original` or `own`, but got `{anchor}`.")
        if mini_batches < 1 or token_budget < 1:
            raise ValueError(
                "Expected policy.mini_batches and policy.token_budget to be at least 1, "
                f"but got {mini_batches} and {token_budget}."
            )
        if not 0 <= warmup <= 1:
            raise ValueError(f"Expected policy.warmup to be a fraction between 0 and 1, but got {warmup}.")
        if prompt_correction is not None and anchor == "own":
            raise ValueError(
                "Expected policy.prompt_correction to be null with policy.anchor=own: responses are scored under the "
                "prompt that they were sampled from, so there is nothing to correct. Use anchor=original or drop it."
            )
        if staleness_cap < 1:
            raise ValueError(f"Expected policy.staleness_cap to be at least 1, but got {staleness_cap}.")
        resolve_model_path(model_path)
        self.automatic_optimization = False
        self.load_model = load_model
        self.advantage = advantage
        self.loss = loss
        self.make_optimizer = optimizer
        self.anchor: Anchor = anchor
        self.mini_batches = mini_batches
        self.token_budget = token_budget
        self.schedule = schedule
        self.warmup = warmup
        self.max_grad_norm = max_grad_norm
        self.temperature = temperature
        self.compute_dtype = torch.bfloat16 if compute_dtype == "bfloat16" else None
        self.mask_truncated = mask_truncated
        self.prompt_correction = prompt_correction
        self.staleness_cap = math.log(staleness_cap)
        self.cpu_offload = cpu_offload
        self.skip_grad_norm = math.inf if skip_grad_norm is None else skip_grad_norm
        self.max_skipped = max_skipped
        self.kl_coef: float = getattr(loss, "kl_coef", 0.0)
        self.entropy_coef: float = getattr(loss, "entropy_coef", 0.0)
        self.skipped_in_a_row = 0
        self.policy: CausalPolicy
        self.reference: CausalPolicy | None

    # ------------------------------------------------------------------ set-up

    def configure_model(self) -> None:
        """Load the policy, and a frozen reference when the loss has a KL term; shard both under FSDP2.

        With adapters the policy is its own reference, with them off.
        """
        if hasattr(self, "policy"):
            return
        # Training mode switches gradient checkpointing on; dropout is off (see load_causal_lm).
        self.policy = self._build().train()
        second_copy = self.kl_coef and not has_adapters(self.policy)
        reference = self._build().eval().requires_grad_(False) if second_copy else None
        # Kept out of the module tree: the reference is neither trained nor checkpointed.
        object.__setattr__(self, "reference", reference)

    def _build(self) -> CausalPolicy:
        policy = CausalPolicy(self.load_model(), temperature=self.temperature)
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            assert self.device_mesh is not None
            mesh = self.device_mesh["data_parallel"]
            if mesh.size() != self.trainer.world_size:
                raise ValueError(
                    f"Expected the data-parallel mesh to hold all {self.trainer.world_size} ranks, but it holds "
                    f"{mesh.size()}. Use strategy=fsdp2, which sets data_parallel_size to the world size."
                )
            shard(policy, mesh, self.compute_dtype, self.cpu_offload)
        return policy

    def on_fit_start(self) -> None:
        """Move the reference beside the policy; shards are placed by FSDP2 itself."""
        if self.reference is not None and not isinstance(self.trainer.strategy, ModelParallelStrategy):
            self.reference.to(self.device)

    def configure_optimizers(self) -> Any:
        """The optimizer, and a schedule over optimizer steps that `training_step` advances itself."""
        optimizer = self.make_optimizer(p for p in self.policy.parameters() if p.requires_grad)
        total = self.total_updates
        warmup = math.ceil(self.warmup * total)
        scheduler = get_scheduler(self.schedule, optimizer, num_warmup_steps=warmup, num_training_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the whole run: `trainer.max_steps`, or epochs × iterations × mini-batches."""
        if self.trainer.max_steps > 0:
            return self.trainer.max_steps
        if not self.trainer.max_epochs or self.trainer.max_epochs < 0:
            raise ValueError(
                "Expected trainer.max_steps (optimizer steps) or trainer.max_epochs to be positive, but neither is: "
                "the learning-rate schedule needs an end. Set one of them."
            )
        # Lightning's estimated_stepping_batches would reload the loader and lose its state (its issue 20550).
        iterations: int = self.trainer.datamodule.iterations_per_epoch  # type: ignore[attr-defined]
        return self.trainer.max_epochs * iterations * self.mini_batches

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """`(Hugging Face name, full tensor)` of each parameter. Collective: every rank must exhaust it."""
        return full_tensors(self.policy.model)

    def export(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the policy as a Hugging Face folder (safetensors, full tensors). Collective."""
        tensors = {name: tensor.cpu() for name, tensor in self.full_parameters()}
        if self.global_rank == 0:
            self.policy.model.save_pretrained(folder, state_dict=tensors)
            tokenizer.save_pretrained(folder)

    # ------------------------------------------------------------------ the step

    def training_step(self, batch: QuestionBatch, batch_idx: int) -> dict[str, Any]:  # noqa: ARG002
        """Make `mini_batches` optimizer steps on the rollouts of one batch.

        Raises:
            ValueError: the batch carries no rollouts.
            FloatingPointError: the strategy returns non-finite advantages, or too many steps were skipped.
        """
        start = time.perf_counter()
        if batch.rollouts is None:
            raise ValueError("Expected batch.rollouts before the training step, but it is None. Add RolloutCallback.")
        experience = self._experience(batch.rollouts)
        mini_batches = split_by_question(experience.question, len(batch.groups), self.mini_batches)
        if self.mini_batches > 1 and not experience.old_logprobs:
            # The policy changes with the first update: what the later ones need of the old policy is taken now.
            later = torch.cat(mini_batches[1:])
            later = later[experience.learn[later] & ~experience.replayed[later]]
            experience.old_logprobs = self._score(experience, later)[0]
        for row in mini_batches[0].tolist():
            experience.old_logprobs.pop(row, None)
        for row in experience.replayed.nonzero()[:, 0].tolist():
            experience.old_logprobs[row] = experience.engine_logprobs[row].to(self.device)
        tally = Tally()
        for rows in mini_batches:
            self._update(experience, rows, tally)
        self._log(tally)
        return {
            "loss": torch.tensor(tally.loss / self.mini_batches),
            "advantages": experience.advantages,
            **{name: tally.mean_of(name, experience.lengths) for name in ("entropy", "ratio", "kl", "clipped")},
            "score_logprob": tally.sum_of("old_logprob", len(batch.rollouts)),
            "masked": ~experience.counted,
            "seconds_update": time.perf_counter() - start,
        }

    def _experience(self, rollouts: Rollouts) -> Experience:
        """Rollouts under their score prompts, with advantages and the choice of what to learn from."""
        experience = Experience.from_rollouts(rollouts, self.anchor)
        entropy = None
        if getattr(self.advantage, "needs_entropy", False):
            experience.old_logprobs, entropy = self._score(experience, torch.arange(len(rollouts)))
        experience.advantages = self._advantages(rollouts, entropy)
        if self.mask_truncated:
            experience.counted = ~rollouts.truncated
        has_gradient = (experience.advantages != 0) | bool(self.kl_coef or self.entropy_coef)
        experience.learn = experience.counted & has_gradient
        self._correct_moved(experience, rollouts)
        return experience

    def _correct_moved(self, experience: Experience, rollouts: Rollouts) -> None:
        """Compare what was sampled from another prompt than its score prompt under both, before the first update."""
        moved = experience.learn & ~experience.sampled_here & ~experience.replayed
        if self.prompt_correction is None:
            if not max_over_ranks(bool(experience.stale.any())):
                return
            moved = moved & experience.stale
        rows = moved.nonzero()[:, 0]
        sampled, _ = self._score(Experience.from_rollouts(rollouts, "own"), rows)
        if self.prompt_correction is not None:
            anchored, _ = self._score(experience, rows)
            cap = math.log(self.prompt_correction)
            experience.weights = {row: (anchored[row] - sampled[row]).clamp(max=cap).exp() for row in anchored}
        for row in rows[experience.stale[rows]].tolist():
            experience.drift[row] = sampled[row] - experience.engine_logprobs[row].to(self.device)

    def _advantages(self, rollouts: Rollouts, entropy: Tensor | None) -> Tensor:
        """[R] float32 advantages of this rank's responses, computed from the rewards of all ranks."""
        parts = gather_objects(
            RewardGroups(
                rewards=rollouts.rewards,
                correct=rollouts.correct,
                question=rollouts.question,
                prompt=rollouts.prompt,
                entropy=entropy,
                answers=rollouts.answers,
                progress=min(self.trainer.global_step / self.total_updates, 1.0),
            )
        )
        advantages = self.advantage(join_reward_groups(parts)).float()
        if not torch.isfinite(advantages).all():
            raise FloatingPointError(
                f"Expected finite advantages, but {type(self.advantage).__name__} returned "
                f"{int((~torch.isfinite(advantages)).sum())} others. Check the rewards of this batch."
            )
        start = sum(len(part.rewards) for part in parts[: self.global_rank])
        return advantages[start : start + len(rollouts)]

    def _update(self, experience: Experience, rows: Tensor, tally: Tally) -> None:
        """One optimizer step on the responses `rows`, normalised over all ranks' shares of the mini-batch."""
        counted = rows[experience.counted[rows]]
        learned = rows[experience.learn[rows]]
        totals = sum_over_ranks({"responses": len(counted), "tokens": float(experience.lengths[counted].sum())})
        micro_batches = self._plan(experience, learned)
        optimizer = self.optimizers()
        optimizer.zero_grad()  # type: ignore[union-attr]
        for index, micro_batch in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            with gradient_sync(self.policy, self.trainer.strategy, enabled=last):
                if len(micro_batch):
                    self._backward(experience, micro_batch, totals, tally)
                else:
                    # FSDP2 gathers in the forward and reduces in the backward: ranks without work do both.
                    first = torch.zeros(1, dtype=torch.long)
                    if self.kl_coef:
                        self._forward(experience, first, reference=True)
                    scores, _ = self._forward(experience, first)
                    self.manual_backward(scores.logprobs.sum() * 0)
        tally.dropped += len(rows) - len(learned)
        self._step(optimizer, tally)

    def _backward(self, experience: Experience, rows: Tensor, totals: dict[str, float], tally: Tally) -> None:
        """Forward, loss and backward of one micro-batch."""
        reference = self._forward(experience, rows, reference=True)[0].logprobs if self.kl_coef else None
        packed = self._pack(experience, rows)
        rows = packed.rows
        sizes, response = packed.lengths.tolist(), packed.response.to(self.device)
        nothing = torch.zeros(len(response), device=self.device)
        old = cat_rows(experience.old_logprobs, rows, nothing, sizes)
        known = torch.tensor([row in experience.old_logprobs for row in rows.tolist()], device=self.device)[response]
        weights = cat_rows(experience.weights, rows, torch.ones_like(nothing), sizes)
        engine = torch.cat([experience.engine_logprobs[row] for row in rows.tolist()]).to(self.device)
        drift = cat_rows(experience.drift, rows, nothing, sizes)
        here, stale = (flag[rows].to(self.device)[response] for flag in (experience.sampled_here, experience.stale))
        of_responses: dict[str, Any] = {
            "advantages": experience.advantages[rows].to(self.device),
            "lengths": packed.lengths.to(self.device),
            "replayed": experience.replayed[rows].to(self.device),
            "num_responses": totals["responses"],
            "num_tokens": totals["tokens"],
        }
        outputs: list[LossOutputs] = []

        def loss(part: slice, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            before = torch.where(known[part], old[part], logprobs.detach())
            since = torch.where((here & stale)[part], before - engine[part], drift[part])
            inputs = LossInputs(
                logprobs=logprobs,
                old_logprobs=before,
                reference_logprobs=None if reference is None else reference[part],
                entropy=entropy,
                response=response[part],
                weights=weights[part] * since.clamp(max=self.staleness_cap).exp(),
                **of_responses,
            )
            outputs.append(self.loss(inputs))
            return outputs[-1].loss

        by_token = getattr(self.loss, "by_token", False)
        scores = self._scores(packed, "grad" if self.entropy_coef else "detached", loss if by_token else None)
        value = scores.loss
        if value is None:
            value = loss(slice(0, len(response)), scores.logprobs, scores.entropy)
        # Gradients are averaged over ranks, losses add up over them.
        self.manual_backward(value * world_size())
        tally.add(outputs, rows)
        difference = torch.where(known, old, scores.logprobs.detach()) - engine
        tally.compare_engine(difference[here & ~stale])
        tally.compare_stale(torch.where(here, difference, drift)[stale], self.staleness_cap)

    def _step(self, optimizer: Any, tally: Tally) -> None:
        """Clip, step, advance the schedule; a gradient that is not finite or too large is skipped and counted."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        norm_value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        tally.grad_norms.append(norm_value)
        tally.lr = optimizer.param_groups[0]["lr"]
        if math.isfinite(norm_value) and norm_value <= self.skip_grad_norm:
            self.skipped_in_a_row = 0
            optimizer.step()
        else:
            self.skipped_in_a_row += 1
            tally.skipped += 1
            rank_zero_warn(f"Skipped an optimizer step: its gradient norm was {norm_value}.")
            if self.skipped_in_a_row > self.max_skipped:
                raise FloatingPointError(
                    f"Expected finite gradients with a norm of at most {self.skip_grad_norm} (policy.skip_grad_norm), "
                    f"but those of {self.skipped_in_a_row} optimizer steps in a row were not; the last norm was "
                    f"{norm_value}. Lower optimizer.lr, or resume from an earlier checkpoint."
                )
        self.lr_schedulers().step()  # type: ignore[union-attr]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save how many steps in a row were skipped."""
        checkpoint["skipped_in_a_row"] = self.skipped_in_a_row

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on counting them."""
        self.skipped_in_a_row = checkpoint.get("skipped_in_a_row", 0)

    # ------------------------------------------------------------------ forwards

    def _plan(self, experience: Experience, rows: Tensor) -> list[Tensor]:
        """Cut `rows` into micro-batches within the token budget; every rank gets the same number, at least one."""
        local = plan_micro_batches(
            experience.prompt_lengths,
            experience.prompt[rows],
            experience.lengths[rows],
            self.token_budget,
            share_prefix=self.policy.shares_prefix,
        )
        count = max(int(max_over_ranks(len(local))), 1)
        return [rows[part] for part in local] + [rows[:0]] * (count - len(local))

    def _pack(self, experience: Experience, rows: Tensor) -> PackedBatch:
        share_prefix = self.policy.shares_prefix
        return pack(experience.prompts, experience.prompt, experience.responses, rows, share_prefix=share_prefix)

    def _scores(
        self, packed: PackedBatch, entropy: EntropyMode, loss: TokenLoss | None = None, reference: bool = False
    ) -> TokenScores:
        """Token scores of the policy, or without gradient of the reference."""
        policy = self.reference if reference and self.reference is not None else self.policy
        adapters = adapters_off(policy) if reference and policy is self.policy else nullcontext()
        with adapters, torch.no_grad() if reference else nullcontext(), self._autocast():
            return policy(packed.to(self.device), entropy=entropy, loss=loss)

    def _forward(
        self, experience: Experience, rows: Tensor, entropy: EntropyMode = "none", reference: bool = False
    ) -> tuple[TokenScores, Tensor]:
        """Token scores of the responses `rows`, and those rows in the order of their scores."""
        packed = self._pack(experience, rows)
        return self._scores(packed, entropy, reference=reference), packed.rows

    def _autocast(self) -> AbstractContextManager[Any]:
        """Compute in `compute_dtype`; FSDP2 has its own mixed precision."""
        if self.compute_dtype is None or isinstance(self.trainer.strategy, ModelParallelStrategy):
            return nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    @torch.no_grad()
    def _score(self, experience: Experience, rows: Tensor) -> tuple[dict[int, Tensor], Tensor]:
        """Response → [T_r] log-probs under the current policy, and [R] mean entropies (zero where not in `rows`)."""
        logprobs: dict[int, Tensor] = {}
        entropy = torch.zeros(len(experience.responses))
        for part in self._plan(experience, rows):
            # An empty part keeps the ranks in step; its scores are thrown away.
            scores, order = self._forward(experience, part if len(part) else torch.tensor([0]), "detached")
            assert scores.entropy is not None
            sizes = experience.lengths[order].tolist()
            parts = zip(order.tolist(), scores.logprobs.split(sizes), scores.entropy.split(sizes), strict=True)
            for row, row_logprobs, row_entropy in parts if len(part) else ():
                logprobs[row] = row_logprobs
                entropy[row] = row_entropy.mean().cpu()
        return logprobs, entropy

    def response_entropy(self, prompts: Sequence[Prompt], responses: Sequence[Tensor]) -> Tensor:
        """[n] float32, mean entropy per token of each response under the current policy and its score prompt, nats.

        Collective: every rank calls it, with as many responses as it has.
        """
        scored = [p.anchor_ids if self.anchor == "original" else p.token_ids for p in prompts]
        nothing = torch.zeros(1, dtype=torch.long)  # keeps ranks without responses in step
        experience = Experience.of(scored or [nothing], responses or [nothing])
        return self._score(experience, torch.arange(len(responses)))[1][: len(responses)]

    # ------------------------------------------------------------------ metrics

    def _log(self, tally: Tally) -> None:
        """Log means over the tokens of all ranks, each summed once and divided once."""
        sums = sum_over_ranks(tally.sums())
        loss, dropped = sums.pop("loss"), sums.pop("dropped")
        mismatch, compared = sums.pop("mismatch"), sums.pop("compared")
        tokens = sums.pop("tokens", 0.0)
        stale = {name: sums.pop(f"stale_{name}") for name in ("tokens", "weight", "truncated", "kl")}
        # The engine's own rounding shows only in what the present weights have sampled.
        rounding = {
            "rollout/engine_mismatch_kl": mismatch / max(compared, 1),
            "rollout/engine_mismatch_max": max_over_ranks(tally.largest_mismatch),
        }
        log_scalars(
            self,
            {
                **{f"train/{name}": value / tokens for name, value in sums.items() if tokens},
                "train/loss": loss / self.mini_batches,
                "train/dropped_responses": dropped,
                "train/grad_norm": sum(tally.grad_norms) / len(tally.grad_norms),
                "train/skipped_updates": float(tally.skipped),
                "train/lr": tally.lr,
                **(rounding if compared or not stale["tokens"] else {}),
                **{
                    f"rollout/staleness_{name}": value / stale["tokens"]
                    for name, value in stale.items()
                    if stale["tokens"] and name != "tokens"
                },
            },
        )

    def validation_step(self, batch: QuestionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Nothing: the rollout callback samples, and metric callbacks read what it attached."""

    def test_step(self, batch: QuestionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Nothing, as in `validation_step`."""
