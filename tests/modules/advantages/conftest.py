"""Pools of responses, written down as counts."""

from __future__ import annotations

import pytest
import torch

from tagrpo.types import RewardGroups


def pools_of(*counts, **fields):
    """One question per (correct, wrong) pair, correct responses first; rewards are 1 and 0."""
    correct = torch.tensor([flag for c, w in counts for flag in [True] * c + [False] * w])
    question = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor([c + w for c, w in counts]))
    return RewardGroups(
        **{"rewards": correct.float(), "correct": correct, "question": question, "prompt": question} | fields
    )


@pytest.fixture(scope="session")
def pools():
    return pools_of
