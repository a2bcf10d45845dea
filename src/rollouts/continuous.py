"""Sampling with transformers' continuous batching: a finished response makes room for the next prompt at once.

It is meant for GPUs with flash attention, and for lengths that differ much. On a CPU the engine in `transformers.py` is
the one to take: on the embedded task it samples 4 to 7 times as many tokens per CPU second.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig

from ..types import Completion
from .base import Deliver, EngineError, SamplingConfig, check_context, ignore
from .transformers import TransformersEngine

PAGE = 32
"""Tokens of one page of the cache."""


class ContinuousBatchingEngine(TransformersEngine):
    """Holds its own copy of the policy, as `TransformersEngine`; the cache lives during `generate` alone.

    Args:
        model_path: Folder or hub name, for the configuration and the stop tokens; weights come from `sync`.
        dtype: Of the copy, by its name in torch.
        device: Where to sample; None takes the first CUDA device of the process if there is one.
        cache_tokens: Size of the cache: tokens of all responses that are being sampled, prompts included.
        batch_tokens: Tokens of one forward, prompts and responses together.
        max_rows: Responses sampled at one time.
        timeout: Seconds without a finished response after which the engine counts as hanging.
        options: Further arguments of transformers' `ContinuousBatchingConfig`.

    Raises:
        ValueError: the model has recurrent layers.
    """

    def __init__(
        self,
        model_path: str,
        dtype: str = "bfloat16",
        device: str | None = None,
        cache_tokens: int = 262144,
        batch_tokens: int = 2048,
        max_rows: int = 512,
        timeout: float = 1800.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model_path, dtype, device, max_rows)
        if not self.attends_only:
            raise ValueError(
                f"Expected a model whose layers all attend, but {type(self.model).__name__} has recurrent ones. "
                "Use rollout=transformers."
            )
        self.model.requires_grad_(False)  # the sampling thread has gradients switched on
        self.cache_tokens = cache_tokens
        self.batch_tokens = batch_tokens
        self.timeout = timeout
        self.options = options or {}

    begin = None  # type: ignore[assignment]  # `generate` sets torch's random state, which the update uses

    def generate(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver = ignore,
    ) -> list[list[Completion]]:
        """See `RolloutEngine.generate`. Log-probs are those of the truncated distribution under top-p or top-k.

        Raises:
            EngineError: the sampling thread has died or hangs.
        """
        longest = max((len(p) for p in prompts), default=0) + sampling.max_new_tokens
        check_context(prompts, sampling, min(self.context, self.cache_tokens))
        prompt_of = {f"{p}-{i}": p for p, count in enumerate(num_samples) for i in range(count)}
        if not prompt_of:
            return [[] for _ in prompts]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # the manager seeds torch's own generators
            manager = self.model.init_continuous_batching(
                generation_config=self._generation_config(sampling),
                continuous_batching_config=ContinuousBatchingConfig(
                    page_size=PAGE,
                    num_blocks=-(-max(self.cache_tokens, longest) // PAGE),
                    max_batch_tokens=self.batch_tokens,
                    max_requests_per_batch=self.max_rows,
                    return_logprobs=True,
                    seed=seed % 2**32,
                    **({"use_cuda_graph": False} if self.device.type == "cpu" else {}) | self.options,
                ),
            )
            # All are there before the thread starts, so that its batches follow from the arguments alone.
            for name, p in prompt_of.items():
                manager.add_request(prompts[p].tolist(), request_id=name, max_new_tokens=sampling.max_new_tokens)
            manager.start()
            try:
                return self._collect(manager, prompt_of, len(prompts), deliver)
            finally:
                manager.stop(timeout=60, hard_stop=True)
                manager.destroy()

    def _generation_config(self, sampling: SamplingConfig) -> GenerationConfig:
        drawn = sampling.temperature > 0
        how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k} if drawn else {}
        stop = self.stop_ids.tolist()
        return GenerationConfig(do_sample=drawn, eos_token_id=stop, pad_token_id=stop[0], use_cache=True, **how)

    def _collect(
        self, manager: Any, prompt_of: dict[str, int], num_prompts: int, deliver: Deliver
    ) -> list[list[Completion]]:
        """Responses by prompt, each prompt's in the order in which they were asked for."""
        samples: list[dict[int, Completion]] = [{} for _ in range(num_prompts)]
        missing = torch.bincount(torch.tensor(list(prompt_of.values())), minlength=num_prompts).tolist()
        stop = set(self.stop_ids.tolist())
        results: list[list[Completion]] = [[] for _ in range(num_prompts)]
        for _ in prompt_of:
            try:
                output = manager.get_result(timeout=self.timeout)
            except queue.Empty:
                output = None
            if output is None or output.error is not None:
                said = f"it said: {output.error}" if output else f"there was none for {self.timeout:.0f} s"
                raise EngineError(f"Expected a response from continuous batching, but {said}.")
            p = prompt_of[output.request_id]
            samples[p][int(output.request_id.partition("-")[2])] = Completion(
                token_ids=torch.tensor(output.generated_tokens, dtype=torch.long),
                logprobs=torch.tensor(output.logprobs, dtype=torch.float32),
                truncated=output.generated_tokens[-1] not in stop,
            )
            missing[p] -= 1
            if not missing[p]:
                results[p] = [samples[p][i] for i in sorted(samples[p])]
                deliver(p, results[p])
        return results
