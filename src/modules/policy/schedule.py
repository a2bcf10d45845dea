"""Optimizers and learning-rate schedules of a policy, built by torch and transformers.

Both can be tried on two small parameters, so that wrong settings fail before a model is loaded.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import SchedulerType, get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from ...types.checks import check_choice

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

_NOT_BY_STEP = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
"""Schedules that follow a metric, which the update does not have."""
_FUNCTIONS: Any = TYPE_TO_SCHEDULER_FUNCTION
SCHEDULES: dict[str, Callable[..., Any]] = {
    str(kind.value): _FUNCTIONS[kind] for kind in _FUNCTIONS if kind not in _NOT_BY_STEP
}
"""Name → function of transformers that makes the schedule."""
_GIVEN = ("optimizer", "num_warmup_steps", "num_training_steps", "last_epoch")
"""Arguments of these functions that are not options."""
_REFUSALS = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,
    RuntimeError,
)
"""Errors by which optimizers and schedules refuse arguments."""
_TRIED_STEPS = 1000
"""Least number of steps of a schedule that is tried before the length of the run is known."""
_PROBES = 1000
"""Steps at which the factor of a schedule is computed beforehand, evenly spaced over a run."""


def try_optimizer(
    make: MakeOptimizer, schedule: str, warmup: float | int, options: Mapping[str, Any] | None = None
) -> None:
    """Build optimizer and schedule on two small parameters, and make one step if the optimizer is torch's.

    Args:
        make: Parameters → optimizer.
        schedule: Name of the schedule; see `learning_rate_schedule`.
        warmup: Share or number of steps; see `learning_rate_schedule`.
        options: Further arguments of the schedule; see `learning_rate_schedule`.

    Raises:
        ValueError: if the optimizer or the schedule refuses its settings, or a number among them is not
            finite. The message names the settings.
    """
    try:
        optimizer = _tried(make)
    except _REFUSALS as error:
        raise ValueError(_refused(make, error)) from error
    learning_rate_schedule(schedule, optimizer, warmup, max(_TRIED_STEPS, 2 * math.ceil(warmup)), options)


def learning_rate_schedule(
    name: str, optimizer: Optimizer, warmup: float | int, total: int, options: Mapping[str, Any] | None = None
) -> LambdaLR:
    """Return the schedule of a run of `total` optimizer steps, after a check of its factors over the run.

    Args:
        name: One of `SCHEDULES`.
        optimizer: Optimizer whose learning rates the schedule multiplies.
        optimizer: Optimizer whose learning rates the schedule multiplies.
        warmup: Length of the warm-up: a share of `total` if below 1, otherwise a number of steps.
        total: Optimizer steps of the run.
        options: Further arguments of the schedule, such as `min_lr_rate` of `cosine_with_min_lr`.

    Raises:
        ValueError: if there is no schedule `name`, the schedule lacks one of `options`, or a factor is
            negative or not finite.
    """
    check_choice("schedule", name, tuple(SCHEDULES), "policy")
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"Expected policy.schedule_options to be a mapping or null, but got {options!r}.")
    options = {} if options is None else dict(options)
    known = [
        parameter for parameter in inspect.signature(SCHEDULES[name]).parameters if parameter not in _GIVEN
    ]
    expected = f"Expected policy.schedule_options to suit policy.schedule={name}, which " + (
        f"has the options {', '.join(known)}" if known else "has no options"
    )
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"{expected}, but got {', '.join(map(str, unknown))}. Correct policy.schedule_options."
        )
    infinite = [
        option for option, value in options.items() if isinstance(value, float) and not math.isfinite(value)
    ]
    if infinite:
        raise ValueError(
            f"Expected policy.schedule_options.{infinite[0]} to be finite, but got {options[infinite[0]]}."
        )
    steps = int(warmup) if warmup >= 1 else math.ceil(warmup * total)
    try:
        made = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=steps,
            num_training_steps=total,
            scheduler_specific_kwargs=options,
        )
        scheduler = cast("LambdaLR", made)
        probed = [*range(0, total, max(total // _PROBES, 1)), steps, total]
        wrong = []
        for schedule in scheduler.lr_lambdas:
            factors = [schedule(step) for step in probed]
            wrong += [factor for factor in factors if not math.isfinite(factor) or factor < 0]
    except _REFUSALS as error:
        raise ValueError(
            f"{expected}, but got {options}: {_line(error)}. Correct policy.schedule_options."
        ) from error
    if wrong:
        raise ValueError(
            f"{expected}, but with {options} it multiplies the learning rate by {wrong[0]}. Correct "
            "policy.schedule_options."
        )
    return scheduler


def _tried(make: MakeOptimizer) -> Optimizer:
    """Return an optimizer of a matrix and a vector, since models have both."""
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    optimizer = make(iter(parameters))
    for group in optimizer.param_groups:
        for name, value in group.items():
            numbers = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise ValueError(f"{name}={value} is not finite")
        if "lr" not in group:
            raise ValueError("it has no learning rate lr")
    if type(optimizer).__module__.startswith("torch.optim"):  # others may need a GPU, or a group of processes
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return optimizer


def _refused(make: MakeOptimizer, error: BaseException) -> str:
    """Return the message for an optimizer that could not be built."""
    if not isinstance(make, partial):
        return f"Expected `optimizer` to make an optimizer of parameters, but it failed: {_line(error)}."
    kind = make.func
    given = make.keywords
    name = getattr(kind, "__name__", str(kind))
    parameters = inspect.signature(kind).parameters
    known = [one for one in list(parameters)[1:] if parameters[one].kind != inspect.Parameter.VAR_KEYWORD]
    takes_any = len(known) < len(parameters) - 1
    unknown = [one for one in given if one not in known and not takes_any]
    if unknown:
        wrong = unknown
        reason = f"{name} takes {', '.join(known)}"
    else:
        wrong = [one for one in given if _works_without(make, one)]
        reason = _line(error)
    if not wrong:
        return (
            f"Expected optimizer._target_ to be an optimizer of matrices and vectors, but {name} fails: "
            f"{_line(error)}. Choose another, such as torch.optim.AdamW."
        )
    got = ", ".join(f"optimizer.{one}={given[one]}" for one in wrong)
    left_out = " ".join(f"~optimizer.{one}" for one in wrong)
    return f"Expected arguments that {name} takes, but got {got}: {reason}. Correct it, or leave it out ({left_out})."


def _line(error: BaseException) -> str:
    """Return the first line of an error's message, without its last full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _works_without(make: partial[Optimizer], name: str) -> bool:
    """Return whether the optimizer can be built if the argument `name` is left at its default."""
    try:
        _tried(
            partial(
                make.func, *make.args, **{key: value for key, value in make.keywords.items() if key != name}
            )
        )
    except _REFUSALS:
        return False
    return True
