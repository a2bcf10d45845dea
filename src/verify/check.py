"""A check of one's own advantages or loss against a method's formula, for users of any trainer.

    from tagrpo.verify.check import check, problem

    given = problem("grpo")                       # a small batch, printed by print(given)
    check(given, advantages=my_advantages(given.rewards, given.prompt))
    check(given, loss=my_loss)                    # my_loss(logprobs, old_logprobs, advantages, mask) → scalar

Both return the findings, and print nothing; an empty list means that the formula is met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..settings.methods import experiments
from ..types.checks import check_choice
from .batch import Batch, small_batch
from .methods import composed
from .models import models_for
from .reference import Finding, Formula, Reference, explain

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""[R, T] log-probs with gradient, old log-probs, advantages and mask → [] loss."""
MICRO_BATCHES = (2, 3, 4, 6, 8, 12)
"""Sizes of micro-batches that a loss may have been normalised by."""


@dataclass(frozen=True)
class Problem:
    """A batch and the formula that one's own code is compared with."""

    reference: Reference
    formula: Formula

    @property
    def batch(self) -> Batch:
        """The responses."""
        return self.reference.batch

    @property
    def rewards(self) -> Tensor:
        """[R] float64 rewards; NaN if a response has none."""
        values = [float("nan") if row.reward is None else row.reward for row in self.batch.rows]
        return torch.tensor(values, dtype=torch.float64)

    @property
    def prompt(self) -> Tensor:
        """[R] long, number of each response's prompt."""
        places = {group: place for place, group in enumerate(self.batch.groups)}
        return torch.tensor([places[row.question, row.wording] for row in self.batch.rows])

    @property
    def mask(self) -> Tensor:
        """[R, T] float64, 1 at response tokens; responses are padded on the right."""
        return self._padded([torch.ones(length, dtype=torch.float64) for length in self.batch.lengths])

    @property
    def logprobs(self) -> Tensor:
        """[R, T] float64 log-probs under the policy, nats; 0 at padding."""
        return self._padded(self.reference.logprobs["own"])

    @property
    def old_logprobs(self) -> Tensor:
        """[R, T] float64 log-probs under the policy that sampled the responses, nats; 0 at padding."""
        rows = [torch.tensor(row.sampled_logprobs, dtype=torch.float64) for row in self.batch.rows]
        return self._padded(rows)

    @property
    def advantages(self) -> Tensor:
        """[R] float64 advantages by the formula."""
        return self.reference.advantages(self.formula)

    @staticmethod
    def _padded(rows: Sequence[Tensor]) -> Tensor:
        return pad_sequence(list(rows), batch_first=True)

    def __str__(self) -> str:
        """Print rewards, prompts, lengths and advantages, one response per line."""
        lines = ["response  prompt  tokens  reward  advantage"]
        columns = zip(
            self.prompt.tolist(),
            self.batch.lengths,
            self.rewards.tolist(),
            self.advantages.tolist(),
            strict=True,
        )
        for row, (prompt, length, reward, advantage) in enumerate(columns):
            lines.append(f"{row:8}  {prompt:6}  {length:6}  {reward:6.2f}  {advantage:9.6f}")
        return "\n".join(lines)


def problem(method: str = "grpo", conventions: str = "none", batch: Batch | None = None) -> Problem:
    """Return a problem for one's own code.

    Args:
        method: An experiment of this package whose formula is written in `reference.py`, such as `grpo`.
        conventions: `none` for ours, or the trainer whose conventions the formula has.
        batch: Responses; None takes the small batch.

    Raises:
        ValueError: if there is no such experiment, or its formula is not written.
    """
    check_choice("method", method, experiments(), "check")
    cfg = composed(method, conventions)
    formula = Formula.of(cfg)
    if formula is None:
        raise ValueError(
            f"Expected a method with a formula in tagrpo.verify.reference, but {method} has none. Use grpo, "
            "dr_grpo, dapo, gspo, cispo, rloo, clip_cov, kl_cov or gmpo."
        )
    batch, models = models_for(batch or small_batch(), None, cfg.policy.temperature)
    return Problem(Reference(batch, models, cfg.policy.temperature), formula)


def check(
    given: Problem, *, advantages: Sequence[Tensor] | Tensor | None = None, loss: Loss | None = None
) -> list[Finding]:
    """Compare one's own advantages or loss with the formula of a problem.

    Args:
        given: Batch and formula.
        advantages: [R] advantages, or a list of [T_r] of them per token.
        loss: Function of [R, T] log-probs, old log-probs, advantages and mask to the [] loss; it is compared by
            its derivative by the log-probs, so that constants do not matter. The divergence from the
            reference is left out.

    Returns:
        Where each part leaves the formula first, both values, and the likely cause; empty if nothing does.

    Raises:
        ValueError: if a part has another shape, or nothing is given.
    """
    if advantages is None and loss is None:
        raise ValueError("Expected advantages or a loss to check, but got neither. Pass one of the two.")
    findings = []
    if advantages is not None:
        rows = list(advantages)
        findings += explain(given.reference, given.formula, advantages=rows)
    if loss is not None:
        leaf = given.logprobs.clone().requires_grad_()
        mask = given.mask
        value = loss(leaf, given.old_logprobs, given.advantages[:, None] * mask, mask)
        (gradient,) = torch.autograd.grad(value, leaf)
        weights = [row[:length] for row, length in zip(gradient, given.batch.lengths, strict=True)]
        formula = replace(given.formula, kl_coef=0.0)
        findings += explain(given.reference, formula, token_weights=weights, micro_batch_rows=MICRO_BATCHES)
    return findings
