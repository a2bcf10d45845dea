"""Optimizer and schedule before a model is loaded, and their learning rates against formulas written anew."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from tagrpo.modules.policy.schedule import SCHEDULES, learning_rate_schedule, try_optimizer

ADAMW = partial(torch.optim.AdamW, lr=1e-2)


def rates(name, warmup=0.1, total=20, options=None, lr=1e-2):
    """The learning rate of each of `total` optimizer steps."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = learning_rate_schedule(name, optimizer, warmup, total, options)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_a_cosine_ends_at_the_share_that_is_asked_for():
    found = rates("cosine_with_min_lr", options={"min_lr_rate": 0.1})
    warm = [1e-2 * step / 2 for step in range(2)]
    cosine = [0.5 * (1 + math.cos(math.pi * step / 18)) for step in range(18)]
    assert found == pytest.approx([*warm, *(1e-2 * (0.1 + 0.9 * factor) for factor in cosine)])


@pytest.mark.parametrize(("warmup", "steps"), [(0.1, 2), (0.01, 1), (0, 0), (5, 5), (0.5, 10)])
def test_a_warm_up_is_a_share_rounded_up_or_a_number_of_steps(warmup, steps):
    found = rates("constant_with_warmup", warmup)
    assert found == pytest.approx([1e-2 * min(1, step / steps if steps else 1) for step in range(20)])


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_that_is_named_can_be_built(name):
    options = (
        {"min_lr_rate": 0.1} if "min_lr" in name else {"num_decay_steps": 3} if "decay" in name else None
    )
    try_optimizer(ADAMW, name, 0.1, options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cosin", None, "policy.schedule .*cosine_with_min_lr"),
        (None, None, "policy.schedule "),
        ("reduce_lr_on_plateau", None, "policy.schedule "),
        ("greedy", None, "policy.schedule "),
        ("cosine_with_min_lr", None, "policy.schedule_options .*min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr_rat": 0.1}, "policy.schedule_options .*min_lr_rate.*got min_lr_rat"),
        ("cosine_with_min_lr", {"min_lr_rate": "a"}, "policy.schedule_options "),
        ("cosine_with_min_lr", {"min_lr_rate": math.nan}, "policy.schedule_options.min_lr_rate "),
        ("cosine", [1], "policy.schedule_options "),
        ("cosine", {"num_training_steps": 3}, "policy.schedule_options .*num_cycles"),
        ("constant", {"num_cycles": 1}, "policy.schedule_options .*no options"),
        ("warmup_stable_decay", {}, "policy.schedule_options .*num_decay_steps"),
        ("polynomial", {"power": -1}, "policy.schedule_options "),
        ("polynomial", {"lr_end": 1.0}, "policy.schedule_options "),
        ("linear", {"last_epoch": 5}, "policy.schedule_options "),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_name(name, options, said):
    with pytest.raises(ValueError, match=said):
        try_optimizer(ADAMW, name, 0.1, options)


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("AdamW", {"lr": -1}, "optimizer.lr"),
        ("AdamW", {"lr": math.inf}, "optimizer.lr"),
        ("AdamW", {"lr": math.nan}, "optimizer.lr"),
        ("AdamW", {"lr": "fast"}, "optimizer.lr"),
        ("AdamW", {"betas": [2, 0]}, "optimizer.betas"),
        ("AdamW", {"betas": [0.9]}, "optimizer.betas"),
        ("AdamW", {"betas": None}, "optimizer.betas"),
        ("AdamW", {"weight_decay": math.nan}, "optimizer.weight_decay"),
        ("AdamW", {"weight_decay": math.inf}, "optimizer.weight_decay"),
        ("AdamW", {"lr": 1.0, "weight_dcay": 0.1}, "optimizer.weight_dcay.* weight_decay"),
        ("SGD", {"lr": 0.1, "momentum": 0.0, "nesterov": True}, "optimizer.nesterov"),
        ("LBFGS", {"lr": 1.0}, "optimizer._target_"),
        ("Muon", {"lr": 1.0}, "optimizer._target_"),
        ("SparseAdam", {"lr": 1.0}, "optimizer._target_"),
    ],
)
def test_arguments_that_an_optimizer_refuses_are_named(kind, arguments, said):
    with pytest.raises(ValueError, match=said):
        try_optimizer(partial(getattr(torch.optim, kind), **arguments), "cosine", 0.1)


def test_an_optimizer_of_ones_own_is_tried_too():
    class Halving(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        def step(self):
            raise RuntimeError("it needs a GPU")

    try_optimizer(lambda parameters: Halving(parameters, 0.1), "cosine", 0.1)

    def broken(_):
        raise RuntimeError("out of order")

    with pytest.raises(ValueError, match="`optimizer` .*out of order"):
        try_optimizer(broken, "cosine", 0.1)
