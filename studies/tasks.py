"""Effects over tasks: each task with its interval, and the mean of the tasks only if they agree on its sign.

A mean over tasks is refused as a finding if two things hold: the tasks differ by more than noise, which Cochran's Q
tests at 5 %, and their estimates do not all have the same sign. Such a mean says what one task does, not what the
method does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tagrpo.analysis.statistics import LEVEL, Estimate

from .third.verdicts import by_task, estimate_of, heterogeneity, moments_of

NOISE_FREE = 1e-12
"""Standard error that replaces 0 in Cochran's Q, so that tasks without noise can be compared."""


@dataclass(frozen=True, kw_only=True)
class OverTasks:
    """An effect in several tasks, as a page prints it."""

    tasks: Mapping[str, Estimate]
    """Task → effect with its 95 % interval, not corrected."""
    mean: Estimate | None
    """Mean of the tasks, each with the same weight; None if the tasks' signs differ beyond noise."""
    p: float | None
    """p-value of Cochran's Q, that the tasks have one effect; None of a single task."""
    seeds: np.ndarray
    """[seeds of all tasks] effect of each seed."""

    @property
    def by_task(self) -> str:
        """Each task with its interval, in points.

        >>> effect = {"a": Estimate(0.01, 0.005, 0.015), "b": Estimate(-0.02, -0.03, -0.01)}
        >>> OverTasks(tasks=effect, mean=None, p=0.001, seeds=np.zeros(4)).by_task
        'a +1.0 [+0.5, +1.5], b −2.0 [−3.0, −1.0]'
        """
        return ", ".join(f"{task} {estimate.signed}" for task, estimate in self.tasks.items())

    @property
    def short(self) -> str:
        """The mean with its interval, or "tasks differ" with the estimate of each task, in points.

        >>> effect = {"a": Estimate(0.01, 0.005, 0.015), "b": Estimate(-0.02, -0.03, -0.01)}
        >>> OverTasks(tasks=effect, mean=None, p=0.001, seeds=np.zeros(4)).short
        'tasks differ: a +1.0, b −2.0'
        """
        if self.mean is not None:
            return self.mean.signed
        estimates = (f"{task} {points(estimate.value)}" for task, estimate in self.tasks.items())
        return f"tasks differ: {', '.join(estimates)}"

    @property
    def full(self) -> str:
        """The mean and each task, all with their intervals; without the mean if it is refused."""
        head = "tasks differ" if self.mean is None else self.mean.signed
        return f"{head} ({self.by_task})"

    @property
    def positive(self) -> str:
        """How many seeds have a positive effect, as `<count> of <seeds>`."""
        return f"{int((self.seeds > 0).sum())} of {len(self.seeds)}"


def points(value: float) -> str:
    """Write a difference in points.

    >>> points(-0.0123)
    '−1.2'
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def over_tasks(by_setting: Mapping[str, pd.DataFrame], level: float = LEVEL / 2) -> OverTasks:
    """Compute an effect in each task, and its mean over tasks unless their signs differ beyond noise.

    Args:
        by_setting: `<task>/<regime>` → [seeds, questions] ours − theirs, paired by seed. The settings of a task are
            averaged.
        level: One-sided level of the mean's interval. Intervals of tasks are of 95 %.

    Raises:
        ValueError: If there is no setting.
    """
    if not by_setting:
        raise ValueError("Expected the differences of at least one setting in `by_setting`, but it is empty.")
    found = {task: moments_of(settings) for task, settings in by_task(by_setting).items()}
    seeds = np.concatenate([moments.shares / moments.weights for moments in found.values()])
    tasks = {task: estimate_of(moments) for task, moments in found.items()}
    differ = heterogeneity(
        [moments._replace(error=max(moments.error, NOISE_FREE)) for moments in found.values()]
    )
    signs = {float(np.sign(moments.mean)) for moments in found.values()}
    refused = differ is not None and differ.p < LEVEL and {-1.0, 1.0} <= signs
    mean = None if refused else estimate_of(moments_of(by_setting), level)
    return OverTasks(tasks=tasks, mean=mean, p=None if differ is None else differ.p, seeds=seeds)


def of_seeds(values: Mapping[str, pd.Series]) -> dict[str, pd.DataFrame]:
    """Convert task → [seeds], one number for each seed, to the argument of `over_tasks`."""
    return {f"{task}/all": numbers.to_frame() for task, numbers in values.items()}
