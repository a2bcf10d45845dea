"""What every engine promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..types import Completion

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How responses are drawn."""

    temperature: float = 1.0
    """Logits are divided by it. Positive, or 0 for greedy decoding."""
    top_p: float = 1.0
    """Nucleus: the smallest set of tokens with this much probability; 1 keeps all."""
    top_k: int = 0
    """Keep this many tokens; 0 keeps all."""
    max_new_tokens: int = 256
    """Length limit of a response, stop token included."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_new_tokens < 1:
            raise ValueError(
                "Expected temperature ≥ 0, 0 < top_p ≤ 1, top_k ≥ 0 and max_new_tokens ≥ 1, "
                f"but got {self}. Correct rollout.sampling."
            )


Deliver = Callable[[int, list[Completion]], None]
"""Takes the number of a prompt and all its responses, as soon as the last of them is there."""


def ignore(prompt: int, completions: list[Completion]) -> None:
    """The `Deliver` of callers that wait for everything."""


class EngineError(RuntimeError):
    """An engine is gone, hangs, or refuses; what could be tried again was."""


class RolloutEngine(Protocol):
    """Samples from a copy of the policy that it holds itself."""

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the policy's weights.

        Args:
            parameters: Hugging Face names and full tensors, tied ones once. Consumed to the end.
        """
        ...

    def generate(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver = ignore,
    ) -> list[list[Completion]]:
        """Sample `num_samples[p]` responses to each prompt `p`.

        The same weights, arguments and seed give the same responses.

        Args:
            prompts: [P] of [L_p] long.
            num_samples: [P] responses per prompt.
            sampling: How to draw.
            seed: Of this call.
            deliver: Called once for each prompt that has samples, in any order and from any thread, though never from
                two at a time, so that responses can be scored while others are sampled.

        Returns:
            [P] of [num_samples[p]], in the order of the prompts.

        Raises:
            EngineError: the engine is gone or hangs, and trying again did not help.
            ValueError: a prompt and the length limit exceed the model's context.
        """
        ...

    def close(self) -> None:
        """Give memory and processes back."""
        ...


Finish = Callable[[], list[list[Completion]]]
"""Waits for responses that are being sampled and returns them as `generate` does. Called once, on every rank, by the
thread that trains."""


class AheadEngine(RolloutEngine, Protocol):
    """An engine that can also sample while the policy is updated that it has a copy of."""

    def begin(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver = ignore,
    ) -> Finish:
        """Start what `generate` does and return at once. Nothing else is asked of the engine until `Finish` has been.

        What runs meanwhile calls no collectives, leaves torch's random state alone and shares no weights with the
        trainer. `Finish` may be collective, and raises what `generate` does.
        """
        ...


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
