"""One update of the policy: rollouts → advantages → mini-batches → micro-batches → loss → optimizer steps.

Departures from the papers' code: responses that can have no gradient are left out of the forward, which
changes no gradient; the first mini-batch uses its current log-probs as the old ones, which makes its ratio
exactly 1.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..distributed import rank, sum_over_ranks, world_size
from ..packing.batch import PackedBatch, Work
from ..types import AdvantageStrategy, Loss, Rollouts, TokenCredit, require
from ..types.checks import found, own_code
from .credit.assign import assign_credit
from .experience import Anchor, Experience, MicroBatch, split_by_question
from .mismatch import MismatchCorrection
from .policy.logprobs import Scorer
from .policy.lora import full_tensor
from .update_stats import GradientStep, UpdateResult


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Options of an update.

    Raises:
        ValueError: if options are out of their range or contradict each other.
    """

    anchor: Anchor = "original"
    """Score prompt: `original` (TA-GRPO, Eq. 4) or `own` (GRPO, Eq. 2)."""
    mini_batches: int = 2
    """Optimizer steps per batch of rollouts."""
    max_grad_norm: float | None = 1.0
    """Global L2 norm that gradients are scaled down to; None leaves gradients as they are."""
    mask_truncated: bool = False
    """Leave truncated responses out of the loss and its normalisers (DAPO, overlong filtering)."""
    prompt_correction: float | None = None
    """Cap of the importance weights that correct for sampling from a rephrasing; None corrects nothing.

    The weights are π(o|q0)/π(o|qn) per token, since responses to a rephrasing are scored under the original.
    The paper does not correct for this."""
    staleness_cap: float = 2.0
    """Cap of the importance weights of stale responses, at least 1. See `PolicyUpdate`."""
    skip_grad_norm: float | None = None
    """Largest gradient norm; optimizer steps with a larger norm are skipped. None sets no limit.

    Steps whose gradient is not finite are always skipped."""
    max_skipped: int = 5
    """Largest number of optimizer steps in a row that may be skipped; one more ends the run."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            uncapped = name == "staleness_cap" and value == math.inf
            if isinstance(value, float) and not math.isfinite(value) and not uncapped:
                raise ValueError(f"Expected policy.{name} to be a finite number, but got {value}.")
        if self.anchor not in ("original", "own"):
            raise ValueError(f"Expected policy.anchor to be `original` or `own`, but got `{self.anchor}`.")
        if self.mini_batches < 1:
            raise ValueError(f"Expected policy.mini_batches to be at least 1, but got {self.mini_batches}.")
        if self.prompt_correction is not None and self.anchor == "own":
            raise ValueError(
                "Expected policy.prompt_correction to be null with policy.anchor=own: responses are scored "
                "under the prompt that they were sampled from, so there is nothing to correct. Use "
                "policy.anchor=original or policy.prompt_correction=null."
            )
        if self.staleness_cap < 1:
            raise ValueError(f"Expected policy.staleness_cap to be at least 1, but got {self.staleness_cap}.")
        limits = {"max_grad_norm": self.max_grad_norm, "skip_grad_norm": self.skip_grad_norm}
        for name, value in {**limits, "prompt_correction": self.prompt_correction}.items():
            if value is not None and value <= 0:
                raise ValueError(f"Expected policy.{name} to be greater than 0, but got {value}.")


@dataclass(eq=False)
class PolicyUpdate:
    """Update of the policy: `mini_batches` optimizer steps on one batch of rollouts.

    Responses with `rollouts.staleness` > 0 come from μ, the weights before an earlier update. The policy term
    of each of their tokens is multiplied by the truncated importance weight min(π(o_t|q, o_<t) / μ(o_t|q,
    o_<t), cap) (decoupled PPO, arXiv 2505.24298). π is the policy before this update, which is also the
    denominator of the policy ratio, and q is the sampled prompt. Weights per token leave a bias, since the
    prefix of each token was sampled from μ too.

    Args:
        scorer: The policy and, if the loss has a KL term, its reference.
        advantage: Strategy, `RewardGroups` → [R] advantages.
        loss: Loss of a micro-batch, `LossInputs` → `LossOutputs`.
        optimizer: Optimizer of the policy's parameters.
        options: Options of the update.
        credit: Credit per token, `CreditInputs` → [T] advantages; None gives each token its response's
            advantage.
        mismatch: Correction of the engine mismatch, stale responses included; replaces the weights above.
        scheduler: Learning-rate schedule over optimizer steps; None keeps the rate.
        backward: Function that runs the backward of a loss, such as Lightning's `manual_backward`.
        gradient_sync: Function that returns a context for a backward, given whether the backward reduces
            gradients over ranks.
        useful_flop: Function that returns the least FLOP of an update, for the share of peak performance; see
            `UsefulFlop.of`.

    Raises:
        TypeError: if `advantage`, `loss` or `credit` lacks a member that the update needs.
        ValueError: if the loss can't take credit per token.
    """

    scorer: Scorer
    advantage: AdvantageStrategy
    loss: Loss
    optimizer: Optimizer
    options: UpdateOptions
    _: KW_ONLY
    credit: TokenCredit | None = None
    mismatch: MismatchCorrection | None = None
    scheduler: Any = None
    backward: Callable[[Tensor], None] = Tensor.backward
    gradient_sync: Callable[[bool], AbstractContextManager[Any]] = nullcontext
    useful_flop: Callable[[Work], float] = lambda _: 0.0

    def __post_init__(self) -> None:
        check_parts(self.advantage, self.loss, self.credit, self.mismatch)
        self.staleness_log_cap = math.log(self.options.staleness_cap)
        self.skipped_in_a_row = 0

    def __call__(self, rollouts: Rollouts, num_questions: int, progress: float = 0.0) -> UpdateResult:
        """Learn from the rollouts of this rank's batch of `num_questions`. Collective.

        `progress` is the fraction of training done, 0..1, for strategies that depend on it.

        Raises:
            TypeError: if the strategy, the credit or the loss returns something other than its protocol says.
            ValueError: if one of the returned tensors has a wrong shape or device.
            FloatingPointError: if the strategy returns advantages that are not finite, or too many steps in a
                row were skipped.
        """
        start = time.perf_counter()
        experience = self._experience(rollouts, num_questions, progress)
        result = UpdateResult(experience)
        entropy = "grad" if self.loss.entropy_coef else "detached"
        for rows in experience.mini_batches:
            for packed, batch, last in self._micro_batches(result, rows):
                with self.gradient_sync(last):
                    with self.scorer.autocast():
                        scores = self.scorer.policy(packed, entropy, batch if self.loss.by_token else None)
                    # A rank without a micro-batch takes part in the backward.
                    loss = scores.logprobs.sum() * 0 if batch is None else batch.loss_of(scores)
                    # Gradients are averaged over ranks, losses add up over them.
                    self.backward(loss * world_size())
                if batch is not None:
                    result.add(batch, scores)
            result.steps.append(self._apply_gradient())
            # now, not before the next step: the engine needs the memory while it samples
            self.optimizer.zero_grad()
        result.flop = self.useful_flop(result.work)
        result.seconds = time.perf_counter() - start
        return result

    def _experience(self, rollouts: Rollouts, num_questions: int, progress: float) -> Experience:
        """Prepare rollouts under score prompts: advantages, importance weights, choice of responses."""
        experience = Experience(rollouts, self.options.anchor)
        experience.mini_batches = split_by_question(
            rollouts.question, num_questions, self.options.mini_batches
        )
        if self.options.mask_truncated:
            experience.in_loss = ~rollouts.truncated
        if self.advantage.needs_entropy or self.advantage.needs_logprobs:
            experience.scores = self.scorer.score(experience, torch.arange(len(rollouts)))
        experience.take_advantages(self.advantage, progress)
        if self.credit is not None:
            if experience.scores is None:
                experience.scores = self.scorer.score(experience, experience.in_loss.nonzero()[:, 0])
            assign_credit(self.credit, experience, progress)
        every_response = bool(self.loss.kl_coef or self.loss.entropy_coef)
        experience.has_gradient = experience.in_loss & (experience.learns() | every_response)
        if self.mismatch is not None:
            kept = experience.correct_mismatch(self.scorer, self.mismatch)
            experience.has_gradient &= kept | every_response
        experience.correct_prompts(self.scorer, self.options.prompt_correction)
        experience.take_old_logprobs(self.scorer)
        return experience

    def _micro_batches(
        self, result: UpdateResult, rows: Tensor
    ) -> Iterator[tuple[PackedBatch, MicroBatch | None, bool]]:
        """Yield the micro-batches of the mini-batch `rows`, each with whether it is the last one. Collective.

        FSDP2 gathers in the forward and reduces in the backward. Therefore a rank without responses gets None
        and a micro-batch of dummy tokens for both passes.
        """
        experience = result.experience
        in_loss, learned = (rows[flags[rows]] for flags in (experience.in_loss, experience.has_gradient))
        tokens = float(experience.lengths[in_loss].sum())
        totals = sum_over_ranks({"responses": len(in_loss), "tokens": tokens})
        result.dropped += len(rows) - len(learned)
        for packed, last in self.scorer.pack(experience, learned):
            reference = self.scorer.reference_logprobs(packed) if self.loss.kl_coef else None
            given = (experience, packed, self.loss, totals, reference, self.staleness_log_cap)
            yield packed, MicroBatch(*given) if len(packed.rows) else None, last

    def _apply_gradient(self) -> GradientStep:
        """Clip the gradient, make the optimizer step, and advance the schedule.

        Steps whose gradient is not finite or too large are skipped.
        """
        limit = self.options.skip_grad_norm or math.inf
        norm = clip_gradients(self.scorer.policy.parameters(), self.options.max_grad_norm)
        step = GradientStep(
            norm=norm,
            lr=self.optimizer.param_groups[0]["lr"],
            skipped=not (math.isfinite(norm) and norm <= limit),
        )
        if not step.skipped:
            self.skipped_in_a_row = 0
            with own_code(self.optimizer, "optimizer"):
                self.optimizer.step()
        else:
            self.skipped_in_a_row += 1
            if rank() == 0:
                warnings.warn(f"Skipped an optimizer step: its gradient norm was {norm}.", stacklevel=2)
            if self.skipped_in_a_row > self.options.max_skipped:
                raise FloatingPointError(
                    f"Expected finite gradients with a norm of at most {limit} (policy.skip_grad_norm), but "
                    f"those of {self.skipped_in_a_row} optimizer steps in a row were not; the last norm was "
                    f"{norm}. Lower optimizer.lr, or resume from an earlier checkpoint."
                )
        if self.scheduler is not None:
            self.scheduler.step()
        return step


def check_parts(
    advantage: AdvantageStrategy, loss: Loss, credit: TokenCredit | None, mismatch: MismatchCorrection | None
) -> None:
    """Check that the parts have the members that an update needs, and that the loss fits the credit.

    Raises:
        TypeError: if a part lacks a member of its protocol, or `mismatch` is no `MismatchCorrection`.
        ValueError: if `credit` is given, but the loss does not take credit per token.
    """
    if mismatch is not None and not isinstance(mismatch, MismatchCorrection):
        raise TypeError(
            "Expected mismatch to be a MismatchCorrection (tagrpo.modules.mismatch), but got "
            f"{found(mismatch)}. Derive its class from it."
        )
    require(advantage, AdvantageStrategy, "advantage")
    require(loss, Loss, "loss")
    if credit is not None:
        require(credit, TokenCredit, "credit")
        if not loss.takes_credit:
            raise ValueError(
                "Expected a loss that takes credit per token, as PolicyLoss with loss.ratio=token does, but "
                f"got {type(loss).__name__} with credit={type(credit).__name__}. Change one of the two."
            )


def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> float:
    """Scale gradients down to the global L2 norm `max_norm`; return the norm before scaling.

    If `max_norm` is None, only the norm is computed. Collective under FSDP2.
    """
    parameters = list(parameters)
    # On GPUs `foreach` handles all gradients in a few kernels; by default torch takes shards one by one.
    together = parameters[0].is_cuda or None
    if max_norm is None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=together)
    else:
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=together)
    return float(full_tensor(norm))
