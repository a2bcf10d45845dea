"""The cost of training, and of a question with a gradient, one method against another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """When a method that costs more per question pays for itself in questions with a gradient."""

    cost_ratio: float
    """Cost of a question, over its cost with the baseline."""
    gradient_ratio: float
    """Share of questions with a gradient, over the baseline's."""
    threshold: float
    """Percentage of questions without gradient from which on the baseline would pay more for each with one."""
    pays: bool
    """Whether it gets more questions with a gradient for the same cost."""


def break_even(cost: float, zero_gradient: float, baseline_cost: float, baseline_zero_gradient: float) -> BreakEven:
    """Compare two methods by what they pay for a question with a gradient.

    A question costs r times as much as the baseline's and has a gradient with probability 1 − z. The baseline pays more
    for each gradient once its own share without gradient exceeds 1 − (1 − z) / r, the threshold. A count of gradients
    says nothing of how much is learned from each: compare pass@k at equal cost for that.

    Args:
        cost: Of one question to the method, in tokens, rollouts or seconds, positive.
        zero_gradient: Percentage of its questions without gradient, 0..100; a ValueError where it is not.
        baseline_cost: The same of the baseline.
        baseline_zero_gradient: The same of the baseline.

    >>> break_even(4.0, 0.0, 1.0, 80.0)  # four times the samples, five times the questions with a gradient
    BreakEven(cost_ratio=4.0, gradient_ratio=5.0, threshold=75.0, pays=True)
    """
    if cost <= 0 or baseline_cost <= 0:
        raise ValueError(f"Expected positive costs of a question, but got {cost} and {baseline_cost}.")
    if not (0 <= zero_gradient <= 100 and 0 <= baseline_zero_gradient <= 100):
        raise ValueError(f"Expected percentages in 0..100, but got {zero_gradient} and {baseline_zero_gradient}.")
    ratio, ours, theirs = cost / baseline_cost, 100 - zero_gradient, 100 - baseline_zero_gradient
    return BreakEven(
        cost_ratio=ratio,
        gradient_ratio=ours / theirs if theirs else float("inf"),
        threshold=max(100 - ours / ratio, 0.0),
        pays=ours > ratio * theirs,
    )
