"""An exhausted GPU is followed by settings that need less memory."""

from __future__ import annotations

import re

import pytest
import torch

from tagrpo.cli.memory import advised_on_memory


def test_settings_that_need_less_memory_are_told_in_order_and_the_error_passes():
    with (
        pytest.warns(UserWarning, match="policy.token_budget=16384") as told,
        pytest.raises(torch.OutOfMemoryError),
        advised_on_memory(32768),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    text = str(told[0].message)
    settings = re.findall(r"^  ([\w.]+)=", text, re.MULTILINE)
    assert settings == [
        "model.load.gradient_checkpointing", "policy.token_budget", "rollout.engine.gpu_memory_utilization", "strategy",
    ]  # fmt: skip


def test_other_errors_get_no_advice(recwarn):
    with pytest.raises(RuntimeError, match="something else"), advised_on_memory(8):
        raise RuntimeError("something else")
    assert not recwarn
