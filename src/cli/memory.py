"""Advice when a GPU runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch.utilities import rank_zero_warn

ADVICE = """The GPU's memory was exhausted. Each of these helps, the cheapest first:
  model.load.gradient_checkpointing=true
  policy.token_budget={budget}
  rollout.engine.gpu_memory_utilization=0.3    (vLLM in the training process)
  strategy=fsdp2 strategy.cpu_offload=true     (steps take several times longer)
`tagrpo-plan` with the settings of this run says what fits. resume=auto continues from the newest checkpoint."""


@contextmanager
def advised_on_memory(token_budget: int) -> Iterator[None]:
    """Warn if the block exhausts a GPU's memory, and name settings that need less; re-raise the error.

    Args:
        token_budget: `policy.token_budget` of the run; the warning recommends half of this value.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        rank_zero_warn(ADVICE.format(budget=max(token_budget // 2, 1)))
        raise
