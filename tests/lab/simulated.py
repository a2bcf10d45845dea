"""Groups of each strategy, enumerated or simulated: means over questions against its exact weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tagrpo.contrib.grpo_lead.advantage import DifficultyWeightedAdvantage
from tagrpo.contrib.negative_reinforcement.advantage import VerdictAdvantage
from tagrpo.contrib.ngrpo.advantage import VirtualSuccessAdvantage
from tagrpo.contrib.pkpo.advantage import PKPOAdvantage
from tagrpo.contrib.rs_grpo.advantage import RiskSensitiveAdvantage
from tagrpo.lab.objectives import expected_weights
from tagrpo.modules.advantages import (
    CombinationAdvantage,
    ExceedingPassAtKAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
    WithoutEasyAdvantage,
)
from tagrpo.types import AdvantageStrategy, RewardGroups

DETERMINISTIC: dict[str, AdvantageStrategy] = {
    "GRPO": GroupAdvantage("prompt"),
    "TA-GRPO": GroupAdvantage("question"),
    "population std": GroupAdvantage("question", unbiased=False, epsilon=0.1),
    "Dr. GRPO": GroupAdvantage("prompt", scale="none"),
    "RLOO": GroupAdvantage("question", baseline="leave_one_out", scale="none"),
    "MaxRL": GroupAdvantage("question", scale="mean", epsilon=0.0),
    "W-REINFORCE": VerdictAdvantage(correct=0.1),
    "PKPO": PKPOAdvantage(3),
    "PKPO per prompt": PKPOAdvantage(2, "none", "prompt"),
    "RS-GRPO": RiskSensitiveAdvantage(2.0),
    "NGRPO": VirtualSuccessAdvantage(),
    "pass@3": PassAtKAdvantage(3),
    "pass@2 per prompt": PassAtKAdvantage(2, group_by="prompt"),
    "exceeding": ExceedingPassAtKAdvantage(2),
    "combination": CombinationAdvantage(3),
    "difficulty": DifficultyWeightedAdvantage(),
    "two pools": DifficultyWeightedAdvantage(base=GroupAdvantage("prompt")),
    "without easy": WithoutEasyAdvantage(GroupAdvantage()),
}
OVER_THE_BATCH: dict[str, AdvantageStrategy] = {
    "REINFORCE": GroupAdvantage("batch", scale="none"),
    "no baseline": GroupAdvantage("batch", baseline="none"),
    "std of the batch": GroupAdvantage("prompt", scale="batch"),
}
RANDOM: dict[str, AdvantageStrategy] = {
    "bootstrap": PassAtKAdvantage(2, "bootstrap"),
    "full": PassAtKAdvantage(3, "full"),
    "few groups": PassAtKAdvantage(3, "bootstrap", num_groups=5),
}
SAMPLES = torch.tensor([4, 2, 5])


def pools(count: int = 10) -> Tensor:
    """[count, 3] float64, unequal success rates of three prompts."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, len(SAMPLES), generator=generator, dtype=torch.float64) * 0.96 + 0.02


def simulated(
    advantages: Callable[[Tensor], Tensor], rates: Tensor, groups: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """[P] means over `groups` questions of what has the expectation w_n, and their standard errors.

    It is A · score / (P · G), summed over the responses to prompt n; score = ∂ log P(verdict) / ∂p.
    """
    prompt = torch.arange(len(rates)).repeat_interleave(SAMPLES)
    p = rates[prompt]
    correct = torch.rand(groups, len(prompt), generator=generator, dtype=torch.float64) < p
    values = advantages(correct) * torch.where(correct, 1 / p, -1 / (1 - p)) / SAMPLES[prompt] / len(rates)
    by_prompt = torch.zeros(groups, len(rates), dtype=torch.float64).index_add_(1, prompt, values)
    return by_prompt.mean(0), by_prompt.std(0) / groups**0.5


def each_a_question(correct: Tensor, draw: int = 0) -> RewardGroups:
    """Every row of `correct` [M, R] as a question of its own; `draw` changes what random strategies draw."""
    row = torch.arange(len(correct))[:, None].expand_as(correct)
    prompt = torch.arange(len(SAMPLES)).repeat_interleave(SAMPLES)
    return RewardGroups(
        rewards=correct.flatten().double(),
        correct=correct.flatten(),
        question=row.flatten(),
        prompt=(row * len(SAMPLES) + prompt).flatten(),
        progress=draw / 2**20,
    )


def enumerated(name: str) -> Tensor:
    """[P] weights of a deterministic strategy at the first rates of `pools`: the sum over all vectors of verdicts.

    It is the expectation of A · score / (P · G), summed over the responses to prompt n, which `simulated` averages.
    """
    rates = pools(1)[0]
    prompt = torch.arange(len(rates)).repeat_interleave(SAMPLES)
    place = 2 ** torch.arange(len(prompt) - 1, -1, -1)
    verdicts = torch.arange(2 ** len(prompt))[:, None] // place % 2 == 1
    parts = verdicts.split(1) if name in OVER_THE_BATCH else [verdicts]
    strategy = (DETERMINISTIC | OVER_THE_BATCH)[name]
    advantages = torch.cat([strategy(each_a_question(part)).view_as(part) for part in parts])
    p = rates[prompt]
    chance = torch.where(verdicts, p, 1 - p).prod(1)
    values = advantages * torch.where(verdicts, 1 / p, -1 / (1 - p)) / SAMPLES[prompt] / len(rates)
    return torch.zeros_like(rates).index_add_(0, prompt, chance @ values)


def deviations(name: str, groups: int, count: int) -> Tensor:
    """[count, P] differences of the simulated from the exact weights of a random strategy, in standard errors."""
    strategy = RANDOM[name]
    generator = torch.Generator().manual_seed(1)
    found = []
    for draw, rates in enumerate(pools(count)):

        def drawn(correct: Tensor, draw: int = draw) -> Tensor:
            # A strategy that loops over questions looks through all responses for each of them.
            parts = enumerate(correct.split(100), start=draw * 10_000)
            return torch.cat(
                [strategy(each_a_question(part, number)).view_as(part) for number, part in parts]
            )

        mean, error = simulated(drawn, rates, groups, generator)
        difference = mean - expected_weights(strategy, rates, SAMPLES)
        found.append((difference / error).where(difference != 0, 0.0))
    return torch.stack(found)
