"""What engines share: their error, a thread for sampling beside an update, prompt lengths, settings, stop tokens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from ...types import Request, SamplingConfig

T = TypeVar("T")


class EngineError(RuntimeError):
    """An engine is gone, hangs or refuses, and trying again did not help."""


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


def check_context(request: Request, context: int) -> None:
    """Raise when a prompt with its longest response does not fit in `context` tokens."""
    longest = max((len(prompt) for prompt in request.prompts), default=0)
    if longest + request.sampling.max_new_tokens > context:
        raise ValueError(
            f"Expected prompts and responses of at most {context} tokens, the model's context, but a prompt has "
            f"{longest} and rollout.sampling.max_new_tokens is {request.sampling.max_new_tokens}. Lower that or "
            "data.max_prompt_tokens (data.max_evaluation_prompt_tokens for tests)."
        )


def vllm_sampling(sampling: SamplingConfig, num_samples: int, stop_ids: list[int]) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams`, for the samples of one prompt."""
    return {
        "n": num_samples if sampling.temperature else 1,  # vLLM refuses copies of the greedy response
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": stop_ids,
        "logprobs": 0,
        "detokenize": False,
    }


def stop_token_ids(model_path: str) -> list[int]:
    """The end-of-sequence ids of a model, ascending: of its generation config, else its config, and of its tokenizer.

    vLLM stops at the tokenizer's too: a chat model's turn often ends with a token that its generation config, taken
    over from the base model, does not name.

    Raises:
        ValueError: it has none.
    """
    try:
        stop = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        stop = AutoConfig.from_pretrained(model_path, trust_remote_code=False).eos_token_id
    ids = {stop} if isinstance(stop, int) else set(stop or ())
    if get_tokenizer_config(model_path):
        ids |= {AutoTokenizer.from_pretrained(model_path, trust_remote_code=False).eos_token_id} - {None}
    if not ids:
        raise ValueError(
            f"Expected an eos_token_id in the generation_config.json or config.json of {model_path}, but found none. "
            "Add it: without one, responses never end."
        )
    return sorted(ids)
