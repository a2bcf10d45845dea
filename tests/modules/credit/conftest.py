"""Hand-made mini-batches for credit per token."""

from __future__ import annotations

import pytest
import torch

from tagrpo.types import CreditInputs, RewardGroups


@pytest.fixture
def make_inputs():
    """Four responses to two questions; `rewards` and `counted` say what they earn and which are in the loss."""

    def make(
        rewards=(1.0, 0.0, 1.0, 0.0), seed=0, counted=(True, True, True, True), advantages=None, scale=1.0
    ):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.tensor([5, 3, 8, 4])
        response = torch.repeat_interleave(torch.where(torch.tensor(counted), lengths, 0))
        rewards = torch.tensor(rewards)

        def draw():
            return torch.rand(len(response), generator=generator) * scale

        return CreditInputs(
            groups=RewardGroups(
                rewards=rewards, correct=rewards > 0.5, question=torch.tensor([0, 0, 1, 1]),
                prompt=torch.tensor([0, 1, 2, 3]), lengths=lengths,
            ),
            advantages=rewards - 0.25 if advantages is None else torch.tensor(advantages),
            prompts=[torch.tensor([7, row // 2]) for row in range(4)],
            responses=[torch.arange(length) + row for row, length in enumerate(lengths.tolist())],
            response=response,
            logprobs=-4 * draw(),
            entropy=draw(),
        )  # fmt: skip

    return make
