"""What engines share: their error, a thread for sampling beside an update, the check of prompt lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...types import SamplingConfig

T = TypeVar("T")


class EngineError(RuntimeError):
    """An engine is gone, hangs, or refuses; what could be tried again was."""


def in_thread(task: Callable[..., T], *arguments: Any) -> Callable[[], T]:
    """Run `task(*arguments)` in a thread with this one's device and number of threads; returns what waits for it.

    >>> in_thread(sum, [1, 2])()
    3
    """
    threads = torch.get_num_threads()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> T:
        torch.set_num_threads(threads)  # OpenMP and CUDA keep these by thread
        if device is not None:
            torch.cuda.set_device(device)
        return task(*arguments)

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return future.result


def check_context(prompts: Sequence[Tensor], sampling: SamplingConfig, context: int) -> None:
    """Raise when a prompt with its longest response does not fit in `context` tokens."""
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest + sampling.max_new_tokens > context:
        raise ValueError(
            f"Expected prompts and responses of at most {context} tokens, the model's context, but a prompt has "
            f"{longest} and rollout.sampling.max_new_tokens is {sampling.max_new_tokens}. Lower that or "
            "data.max_prompt_tokens (data.max_evaluation_prompt_tokens for tests)."
        )
