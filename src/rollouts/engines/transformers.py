"""Sampling with transformers alone, for machines without vLLM. Reproducible bit for bit on a CPU.

Unlike transformers' `generate`, responses to a prompt are computed together for as long as their tokens agree, rows
leave the batch when they finish, and the seed is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ...types import Completion, Deliver, Engine, Finish, Request, SamplingConfig, ignore
from .base import NO_PROBABILITIES, check_context, in_thread, stop_token_ids

COMPACT_BELOW = 0.75
"""Finished rows leave the cache when less than this share of it is still being sampled."""
BELOW_1 = 1 - 2**-30
"""So that no point is rounded into the next interval."""


class TransformersEngine(Engine):
    """Holds its own copy of the policy and samples prompt by prompt, many rows at a time.

    Args:
        model_path: Folder or hub name, for the configuration and the stop tokens; weights come from `sync`.
        dtype: Of the copy, by its name in torch.
        device: Where to sample; None takes the first CUDA device of the process if there is one.
        max_rows: Responses sampled at one time.

    Raises:
        ValueError: the model has recurrent layers, whose state has no rows to choose from.
    """

    asynchronous = True

    def __init__(self, model_path: str, dtype: str = "float32", device: str | None = None, max_rows: int = 512) -> None:
        config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
        config._attn_implementation = None  # it could name code on the hub
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = getattr(torch, dtype)
        rng = torch.get_rng_state()
        self.model = AutoModelForCausalLM.from_config(config, dtype=self.dtype).to(self.device).eval()
        torch.set_rng_state(rng)
        if not attends_only(self.model):
            raise ValueError(
                f"Expected a model whose state is keys and values alone, but {model_path} has others. Use rollout=vllm."
            )
        self.stop_ids = torch.tensor(stop_token_ids(model_path), device=self.device)
        self.context = int(getattr(config, "max_position_embeddings", 0)) or 2**31
        self.max_rows = max_rows

    @torch.no_grad()
    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Copy the weights in; ValueError where names or shapes are not those of the model."""
        own = dict(self.model.named_parameters())
        for name, tensor in parameters:
            if name not in own or own[name].shape != tensor.shape:
                known = f"a tensor of shape {tuple(own[name].shape)}" if name in own else "no such parameter"
                advice = "Give the engine the model path of the policy."
                if suffix := next((other for other in own if name.endswith(f".{other}")), None):
                    prefix = name.removesuffix(f".{suffix}")
                    advice = f"Strip the prefix: RolloutCallback(…, policy={prefix!r})."
                raise ValueError(
                    f"Expected the policy's parameters, but the engine's model has {known} where it was given `{name}` "
                    f"of shape {tuple(tensor.shape)}. {advice}"
                )
            own.pop(name).copy_(tensor)
        if own:
            raise ValueError(f"Expected all parameters of the policy, but got none of {', '.join(sorted(own))}.")

    @torch.no_grad()
    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """See `Engine.generate`. Prompts of similar length are sampled together."""
        check_context(request, self.context)
        prompts, num_samples, sampling, seed = request
        generator = torch.Generator(self.device).manual_seed(seed)
        results: list[list[Completion]] = [[] for _ in prompts]
        for part in self._parts(prompts, num_samples):
            counts = [num_samples[p] for p in part]
            rows = iter(self._sample([prompts[p] for p in part], counts, sampling, generator))
            for p, count in zip(part, counts, strict=True):
                results[p] = list(islice(rows, count))
                deliver(p, results[p])
        return results

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """See `Engine.generate_async`."""
        return in_thread(self.generate, request, deliver)

    def _parts(self, prompts: Sequence[Tensor], num_samples: Sequence[int]) -> list[list[int]]:
        """Prompts sorted by length, cut so that each part samples at most `max_rows` (but one prompt at least)."""
        parts: list[list[int]] = []
        rows = 0
        wanted = [p for p, count in enumerate(num_samples) if count]
        for p in sorted(wanted, key=lambda p: (len(prompts[p]), p)):
            if not parts or rows + num_samples[p] > self.max_rows:
                parts.append([])
                rows = 0
            parts[-1].append(p)
            rows += num_samples[p]
        return parts

    def _sample(
        self, prompts: list[Tensor], counts: list[int], sampling: SamplingConfig, generator: torch.Generator
    ) -> list[Completion]:
        """Sample all rows of some prompts, token by token. Rows whose tokens agree so far share a row of the cache."""
        ids = pad_sequence(prompts, batch_first=True, padding_side="left").to(self.device)
        ones = [torch.ones_like(prompt) for prompt in prompts]
        mask = pad_sequence(ones, batch_first=True, padding_side="left").to(self.device)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, cache)
        shared = torch.repeat_interleave(torch.tensor(counts, device=self.device))
        num_rows = sum(counts)
        tokens = torch.zeros(num_rows, sampling.max_new_tokens, dtype=torch.long, device=self.device)
        logprobs = torch.zeros(num_rows, sampling.max_new_tokens, device=self.device)
        lengths = torch.zeros(num_rows, dtype=torch.long, device=self.device)
        finished = torch.zeros(num_rows, dtype=torch.bool, device=self.device)
        alive = torch.arange(num_rows, device=self.device)
        for step in range(sampling.max_new_tokens):
            chosen, chosen_logprobs = draw(logits, sampling, generator, shared)
            going = ~finished[alive]
            rows = alive[going]
            tokens[rows, step] = chosen[going]
            logprobs[rows, step] = chosen_logprobs[going]
            lengths[rows] = step + 1
            finished[rows] = torch.isin(chosen[going], self.stop_ids)
            going = ~finished[alive]
            if not going.any() or step == sampling.max_new_tokens - 1:
                break
            compact = bool(going.float().mean() < COMPACT_BELOW)
            if compact:
                alive, chosen, shared = alive[going], chosen[going], shared[going]
            prefixes, shared = torch.unique(shared * logits.shape[1] + chosen, return_inverse=True)
            if compact or len(prefixes) > len(mask):
                kept = prefixes // logits.shape[1]
                cache.batch_select_indices(kept)
                mask = mask[kept]
            mask = F.pad(mask, (0, 1), value=1)
            logits = self._forward((prefixes % logits.shape[1])[:, None], mask, cache)
        return _completions(tokens, logprobs, lengths, finished)

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """[n, V] logits after `ids` [n, new tokens], which follow those in the cache; `mask` covers both."""
        outputs = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = outputs.logits
        return logits[:, -1]

    def close(self) -> None:
        """Drop the copy of the policy. Sampling that is still under way in a thread ends with an error, unnoticed."""
        del self.model


def _completions(tokens: Tensor, logprobs: Tensor, lengths: Tensor, finished: Tensor) -> list[Completion]:
    """Rows of `tokens` and `logprobs` [rows, T], cut to their lengths [rows]; truncated where not finished."""
    sampled = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    of_rows = [values[sampled].cpu().split(lengths.tolist()) for values in (tokens, logprobs)]
    rows = zip(*of_rows, finished.tolist(), strict=True)
    # Views would keep all of a large tensor alive, and would be pickled with all of it.
    return [Completion(token_ids=ids.clone(), logprobs=values.clone(), truncated=not end) for ids, values, end in rows]


def attends_only(model: PreTrainedModel) -> bool:
    """Whether the model's state is keys and values alone, so that rows of its cache can be chosen."""
    layers = DynamicCache(config=model.config).layers
    return not model._is_stateful and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def draw(
    logits: Tensor, sampling: SamplingConfig, generator: torch.Generator, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token per entry of `rows`, and its float32 log-prob at the temperature, before top-p and top-k.

    `rows` [draws] names the row of `logits` [n, V] that each draw is from; None draws once from each. Greedy decoding
    reports log-probs at temperature 1.

    Raises:
        FloatingPointError: a row of `logits` gives no probabilities.
    """
    logits = logits.float()
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    logprobs = torch.log_softmax(logits, -1)
    if bool((broken := logprobs[:, 0].isnan()).any()):  # one NaN or infinity makes the whole row NaN
        raise FloatingPointError(NO_PROBABILITIES.format(int(broken.sum()), len(logits)))
    if rows is None:
        rows = torch.arange(len(logits), device=logits.device)
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)[rows]
    else:
        # Inversion: row i of `logits` fills the interval from i to i + 1, each of its tokens in proportion to its mass.
        mass = _truncated(logprobs, sampling).double().exp().cumsum(-1)
        ends = mass / mass[:, -1:] + torch.arange(len(logits), device=logits.device)[:, None]
        points = torch.rand(len(rows), dtype=torch.float64, device=logits.device, generator=generator) * BELOW_1 + rows
        chosen = torch.searchsorted(ends.flatten(), points, right=True) - rows * logits.shape[1]
    return chosen, logprobs[rows, chosen]


def _truncated(logprobs: Tensor, sampling: SamplingConfig) -> Tensor:
    """Log-probs with −∞ for the tokens that top-k, then top-p, leave out."""
    if 0 < sampling.top_k < logprobs.shape[-1]:
        least = logprobs.topk(sampling.top_k).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logprobs.softmax(-1).sort(-1, descending=True)
        # A token stays while the mass before it is below top_p: the likeliest one always does.
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        logprobs = logprobs.masked_fill(torch.zeros_like(outside).scatter(-1, index, outside), -torch.inf)
    return logprobs
