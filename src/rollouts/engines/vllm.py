"""vLLM in the training process: one engine per rank or team of ranks, weights streamed from the trainer."""

import logging
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoConfig

from ...distributed import gather_objects, rank, world_size
from ...seeds import derive_seed
from ...types import Completion, Deliver, Engine, Request, ignore
from .base import FLOAT32_HEAD, EngineError, check_context, stop_token_ids, vllm_sampling


class VLLMEngine(Engine):
    """Colocated vLLM engine, whose weights come from `sync` before the first sample, never from disk.

    With several ranks, create the engine on every rank, after the process group exists. Each engine samples
    the prompts of its rank on that rank's GPU. With `tensor_parallel_size`, a team of consecutive ranks
    shares one engine, which samples the prompts of all these ranks. Its methods are then collective over the
    team.

    Args:
        model_path: Folder or hub name, for configuration, tokenizer and stop tokens.
        dtype: Type of the engine's weights, by its name in torch; bfloat16 differs from a float32 trainer by
            about 0.02 nats per token, which `rollout/engine_mismatch_kl` shows.
        max_model_len: Longest sequence in tokens, at most the model's context; None uses the model's context,
            if the cache fits.
        gpu_memory_utilization: Share of the GPU's memory that the engine may take.
        kv_cache_memory_bytes: Size of the KV cache; None lets vLLM choose. Set it on CPUs.
        enforce_eager: Whether to run without CUDA graphs.
        sleep: Whether `sleep` frees the memory of weights and cache during the update; GPUs only.
        tensor_parallel_size: Number of ranks that share an engine, for models whose weights and cache do not
            fit on one GPU.
        step_seconds: How long a step of sampling may take. A longer step counts as hung, and the run ends;
            see `Watch`.
        options: Further arguments of `vllm.LLM`.

    Raises:
        ImportError: if vLLM is not installed.
        ValueError: if the ranks can't be cut into teams of `tensor_parallel_size`.
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
        tensor_parallel_size: int = 1,
        step_seconds: float = 60.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        if tensor_parallel_size < 1 or world_size() % tensor_parallel_size:
            raise ValueError(
                f"Expected rollout.engine.tensor_parallel_size to divide the {world_size()} ranks of this "
                f"run, but got {tensor_parallel_size}. Change it or trainer.devices, or use "
                "rollout=vllm_server, whose servers span GPUs of their own."
            )
        # Keeps the engine in this process, so that it gets tensors as they are; must be set before the
        # import.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        most = getattr(
            AutoConfig.from_pretrained(model_path, trust_remote_code=False), "max_position_embeddings", None
        )
        if max_model_len and most:
            max_model_len = min(max_model_len, most)
        with undisturbed(), errors_to_log():
            from vllm import LLM

            settings: dict[str, Any] = {
                "model": model_path, "dtype": dtype, "load_format": "dummy", "max_model_len": max_model_len,
                "gpu_memory_utilization": gpu_memory_utilization, "kv_cache_memory_bytes": kv_cache_memory_bytes,
                "enforce_eager": enforce_eager, "enable_sleep_mode": sleep, "trust_remote_code": False,
                "tensor_parallel_size": tensor_parallel_size, "disable_log_stats": True,
                "distributed_executor_backend": "external_launcher",  # reads the variables below
                # at the sampling temperature, of the tokens that were drawn
                "logprobs_mode": "processed_logprobs",
            }  # fmt: skip
            # vLLM has not launched this process: without its GPU, every process of a node would take the
            # first one. A
            # single process makes a group of its own at this address.
            device = torch.cuda.current_device() if torch.cuda.is_available() else 0
            place = {"RANK": rank(), "LOCAL_RANK": device, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
            with patch.dict(os.environ, {name: str(value) for name, value in place.items()}):
                self.llm = LLM(**settings, **{"hf_overrides": FLOAT32_HEAD, **(options or {})})
        self.stop_ids = stop_token_ids(model_path)
        self.context = int(self.llm.llm_engine.model_config.max_model_len)
        self.team: Any = None
        if tensor_parallel_size > 1:
            from vllm.distributed import get_tp_group

            self.team = get_tp_group().cpu_group
        self.watch = Watch(step_seconds)
        self.can_sleep = sleep
        self.asleep = False

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load the weights as they arrive, tie the output head again, and clear the cache of prefixes."""
        self._wake()
        with undisturbed():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(parameters)})
            self.llm.apply_model(retie_output_head)
            self.llm.reset_prefix_cache()

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Sample as `Engine.generate` does.

        Log-probs are those of the truncated distribution under top-p or top-k.
        """
        parts, place = [request], 0
        if self.team is not None:
            parts, place = gather_objects(request, self.team), dist.get_rank(self.team)
        first = sum(len(part.prompts) for part in parts[:place])
        # A team uses the seed of its first rank, so that all of its ranks draw the same tokens.
        prompts = [prompt for part in parts for prompt in part.prompts]
        everything = Request(
            prompts, [n for part in parts for n in part.num_samples], request.sampling, parts[0].seed
        )
        check_context(everything, self.context)
        self._wake()
        results: list[list[Completion]] = [[] for _ in request.prompts]

        def take(row: int, samples: list[Any]) -> None:
            p = row - first
            if 0 <= p < len(results):
                results[p] = [_completion(sample) for sample in sorted(samples, key=lambda s: s.index)]
                results[p] *= request.num_samples[p] // len(samples)
                deliver(p, results[p])

        self._sample(everything, take)
        return results

    def _sample(self, request: Request, take: Callable[[int, list[Any]], None]) -> None:
        """Sample, and call `take` with a prompt's row and outputs as soon as all the outputs are finished."""
        from vllm import SamplingParams, TokensPrompt

        wanted = [row for row, count in enumerate(request.num_samples) if count]
        # On GPUs vLLM draws requests without a seed from numpy's global state, which does not follow from our
        # seed. On
        # CPUs vLLM fails on requests with a seed when a prefill is cut; there `torch.manual_seed` is enough.
        seeds = [derive_seed(request.seed, row) if torch.cuda.is_available() else None for row in wanted]
        options = [vllm_sampling(request.sampling, request.num_samples[row], self.stop_ids) for row in wanted]
        params = [
            SamplingParams(**o, seed=s, flat_logprobs=True) for o, s in zip(options, seeds, strict=True)
        ]
        inputs = [TokensPrompt(prompt_token_ids=request.prompts[row].tolist()) for row in wanted]
        with undisturbed(), self.watch.over():
            torch.manual_seed(request.seed)
            # vLLM returns each name with a unique suffix, but its outputs carry the name without it.
            names = [name.partition("-")[0] for name in self.llm.enqueue(inputs, params, use_tqdm=False)]
            row_of = dict(zip(names, wanted, strict=True))
            while self.llm.llm_engine.has_unfinished_requests():
                for output in self.llm.llm_engine.step():
                    # ignore leftovers of an interrupted call
                    if output.finished and output.request_id in row_of:
                        take(row_of.pop(output.request_id), list(output.outputs))  # type: ignore[arg-type]
                self.watch.steps += 1
        if row_of:
            raise EngineError(
                f"Expected responses to all prompts, but vLLM dropped those to {len(row_of)} of them."
            )

    def sleep(self) -> None:
        """Free the GPU's memory until the next `sync` or `generate`, if the engine was made with `sleep`."""
        if self.can_sleep and not self.asleep:
            self.llm.sleep(level=1)  # weights wait in host memory: nothing is lost if no sync follows
            self.asleep = True

    def _wake(self) -> None:
        if self.asleep:
            torch.cuda.empty_cache()  # the engine takes back memory that torch has kept since the update
            self.llm.wake_up()
            self.asleep = False

    def close(self) -> None:
        """Shut the engine down."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm


class Watch:
    """Watchdog that ends the process if its engine hangs; nothing else can end vLLM's step from within.

    A step may take `seconds`, or 20 times as long as the slowest earlier step if that is longer. The first
    step, which may compile, may take 10 times `seconds`. Time in which the process is stopped does not count.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.slowest, self.steps = seconds, 0, 0

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch the block, which counts the engine's steps in `steps`."""
        done = threading.Event()
        threading.Thread(target=self._wait, args=(done, threading.get_ident()), daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def _wait(self, done: threading.Event, thread: int) -> None:
        seen, waited = self.steps, 0
        while not done.wait(1.0):
            if self.steps != seen:
                self.slowest, seen, waited = max(self.slowest, waited), self.steps, 0
            waited += 1
            allowed = max(self.seconds, 20 * self.slowest) if seen else 10 * self.seconds
            if waited > allowed:
                traceback.print_stack(sys._current_frames()[thread])
                hangs = (
                    f"Expected a step of vLLM within {allowed:.0f} s, but it hangs there, and the run ends."
                )
                advice = "Go on from the newest checkpoint: resume=auto. rollout.engine.step_seconds gives it longer."
                print(hangs, advice, file=sys.stderr, flush=True)
                os._exit(1)


def _completion(sample: Any) -> Completion:
    return Completion(
        token_ids=torch.tensor(list(sample.token_ids), dtype=torch.long),
        logprobs=torch.tensor(sample.logprobs.logprobs, dtype=torch.float32),  # flat: one per token
        truncated=sample.finish_reason == "length",
    )


def retie_output_head(model: Any) -> None:
    """Tie the output head to the embeddings again: on CPUs, reloading keeps a copy of the old head."""
    if getattr(model.config, "tie_word_embeddings", False):
        head = model.lm_head
        head.weight = model.model.embed_tokens.weight
        head.quant_method.process_weights_after_loading(head)


@contextmanager
def errors_to_log() -> Iterator[None]:
    """Redirect stderr of all libraries, C++ included, to the log file of the run, if there is one."""
    files = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.FileHandler)]
    if not files:
        yield
        return
    console = os.dup(2)
    with open(files[0].baseFilename, "ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(console, 2)
        os.close(console)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run the block, then restore the process state that vLLM changes.

    The state consists of the random states of torch, numpy and `random`, the number of torch's threads, and
    `torch.set_num_threads`, which vLLM replaces by a no-op on CPUs.
    """
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (vLLM uses the global one)
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):  # other GPUs belong to other ranks
            yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
