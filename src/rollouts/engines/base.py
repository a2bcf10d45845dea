"""Parts that engines share: an error, threads, checks of requests and responses, settings, stop tokens."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from ...types import Completion, Engine, Request, SamplingConfig
from ...types.checks import found, name_of

T = TypeVar("T")
NO_PROBABILITIES = (
    "Expected the policy to give probabilities, but its logits are not finite after {} of {} sequences."
)

FLOAT32_HEAD = {"head_dtype": "float32"}
"""For vLLM's `hf_overrides`: logits in float32, as the trainer has them, whatever the type of the weights."""


class EngineError(RuntimeError):
    """Error for an engine that is gone, hangs or refuses a request, even after retries."""


class ServerEngine(Engine):
    """Engine that samples on servers or by an API, so that its responses have been paid for.

    A run with checkpoints keeps such responses on disk until a checkpoint contains them (`CachedEngine`).
    """


def in_thread(task: Callable[..., T], *arguments: Any) -> Callable[[], T]:
    """Start `task(*arguments)` in a thread, on the same device; return a function that waits for its result.

    >>> in_thread(sum, [1, 2])()
    3
    """
    threads = torch.get_num_threads()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> T:
        torch.set_num_threads(threads)  # OpenMP and CUDA keep these settings per thread
        if device is not None:
            torch.cuda.set_device(device)
        return task(*arguments)

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return future.result


def check_context(request: Request, context: int) -> None:
    """Raise a ValueError if a prompt with its longest response does not fit in `context` tokens."""
    longest = max((len(prompt) for prompt in request.prompts), default=0)
    if longest + request.sampling.max_new_tokens > context:
        raise ValueError(
            f"Expected prompts and responses of at most {context} tokens, the context of model or engine, "
            f"but a prompt has {longest} and max_new_tokens is {request.sampling.max_new_tokens}. Raise the "
            "engine's limit (rollout.engine.max_model_len, --max-model-len of a server), or lower "
            "rollout.sampling.max_new_tokens or data.max_prompt_tokens (for tests evaluation_sampling, "
            "data.max_evaluation_prompt_tokens)."
        )


def check_completions(completions: object, engine: object) -> list[list[Completion]]:
    """Check that an engine has returned lists of `Completion`, with tensors on the CPU.

    Raises:
        TypeError: if the engine has returned anything else.
    """
    expected = (
        f"Expected {name_of(engine)} (rollout.engine) to return a list of Completion for each prompt, but got"
    )
    if not isinstance(completions, list | tuple):
        raise TypeError(f"{expected} {found(completions)}.")
    for prompt, samples in enumerate(completions):
        if not isinstance(samples, list | tuple):
            raise TypeError(f"{expected} {found(samples)} for prompt {prompt}.")
        for sample in samples:
            if not isinstance(sample, Completion):
                raise TypeError(f"{expected} {found(sample)} for prompt {prompt}.")
            for tensor in (sample.token_ids, sample.logprobs):
                if tensor.device.type != "cpu":
                    raise TypeError(
                        f"Expected {name_of(engine)} (rollout.engine) to return tensors on the CPU, but got "
                        f"{found(tensor)} for prompt {prompt}."
                    )
    return [list(samples) for samples in completions]


def check_responses(completions: object, request: Request, engine: object) -> list[list[Completion]]:
    """Check that an engine has returned the responses that a request asks for.

    Raises:
        TypeError: if the engine has returned something else than lists of `Completion`.
        EngineError: if the number of responses differs from the request's, or a response is too long.
        FloatingPointError: if a log-prob is not finite.
    """
    checked = check_completions(completions, engine)
    logprobs = [sample.logprobs for samples in checked for sample in samples]
    if broken := sum(not bool(values.isfinite().all()) for values in logprobs):
        raise FloatingPointError(NO_PROBABILITIES.format(broken, len(logprobs)))
    counts = [len(samples) for samples in checked]
    if counts != list(request.num_samples):
        raise EngineError(
            f"Expected {sum(request.num_samples)} responses of the engine, {list(request.num_samples)[:8]} "
            f"to the first prompts, but got {sum(counts)}, {counts[:8]}. Correct rollout.engine."
        )
    longest = max(map(len, logprobs), default=0)
    limit = request.sampling.max_new_tokens
    if longest > limit:
        raise EngineError(
            f"Expected responses of at most {limit} tokens (rollout.sampling.max_new_tokens), but "
            f"{name_of(engine)} (rollout.engine) returned one of {longest}."
        )
    return checked


def vllm_sampling(sampling: SamplingConfig, num_samples: int, stop_ids: list[int]) -> dict[str, Any]:
    """Return the arguments of vLLM's `SamplingParams`, for the samples of one prompt."""
    return {
        "n": num_samples if sampling.temperature else 1,  # vLLM refuses copies of the greedy response
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k,
        "max_tokens": sampling.max_new_tokens, "stop_token_ids": stop_ids, "logprobs": 0, "detokenize": False,
    }  # fmt: skip


def stop_token_ids(model_path: str) -> list[int]:
    """Return the end-of-sequence ids of a model and its tokenizer, ascending.

    The model's ids are those of its generation config or, without one, of its config. The tokenizer's id is
    needed because a chat model's turn often ends with a token that its generation config, taken over from the
    base model, does not name. vLLM stops at this token too.

    Raises:
        ValueError: if the model has no end-of-sequence id.
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
            f"Expected an eos_token_id in the generation_config.json or config.json of {model_path}, but "
            "found none. Add it: without one, responses never end."
        )
    return sorted(ids)


def vocabulary_size(model_path: str) -> int:
    """Return the vocabulary size of a model, including the padding of its embeddings."""
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
    return int(config.get_text_config().vocab_size)
