"""Sampling with transformers alone, for machines without vLLM. Reproducible bit for bit on a CPU.

The loop is our own because transformers' `generate` draws from the process's generator, keeps finished rows
to the end, and computes a prefix that rows share once for each row. Here responses to a prompt are computed
together for as long as their tokens agree, rows leave the batch when they finish, and the seed is an
argument.
"""

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import sdpa_mask

from ...packing.policy import cache_argument
from ...types import Completion, Deliver, Engine, Finish, Request, SamplingConfig, ignore
from ...types.checks import float_dtype
from .base import NO_PROBABILITIES, check_context, in_thread, stop_token_ids

BELOW_1 = 1 - 2**-30
"""A factor that keeps a point from being rounded into the next interval."""
COMPACT_BELOW = 0.75
"""Share of the cache's rows still being sampled, below which finished rows leave the cache."""
LEAST_HEAD = 16
"""Least length, in tokens, of a common prefix, such as a chat template's, to encode once for all prompts."""
ROOM = 64
"""New tokens that the cache reserves memory for at a time."""
ROWS_AT_A_TIME = 16
"""Rows whose probabilities are summed together on a CPU."""
GROUPED_ATTENTION = "tagrpo_grouped"


class TransformersEngine(Engine):
    """Engine that samples responses to many prompts at a time from a copy of the policy.

    Args:
        model_path: Folder or hub name, for the configuration and the stop tokens; weights come from `sync`.
        dtype: Type of the copy, by its name in torch.
        device: Where to sample; None takes the first CUDA device of the process if there is one.
        max_rows: Responses sampled at the same time.

    Raises:
        ValueError: if the model has recurrent layers, from whose state rows can't be selected.
    """

    asynchronous = True

    def __init__(
        self, model_path: str, dtype: str = "float32", device: str | None = None, max_rows: int = 512
    ) -> None:
        config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
        config._attn_implementation = None  # it could name code on the hub
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = float_dtype(dtype, "rollout.engine.dtype")
        rng = torch.get_rng_state()
        self.model = AutoModelForCausalLM.from_config(config, dtype=self.dtype).to(self.device).eval()
        self.cache_argument = cache_argument(self.model)
        torch.set_rng_state(rng)
        kinds = {type(layer) for layer in DynamicCache(config=self.model.config).layers}
        if self.model._is_stateful or kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
            raise ValueError(
                f"Expected a model whose state is keys and values alone, but {model_path}'s is more. Use rollout=vllm."
            )
        heads, keys = (
            getattr(self.model.config, f"num_{kind}_heads", 0) for kind in ("attention", "key_value")
        )
        if (
            self.device.type == "cpu"
            and self.model.config._attn_implementation == "sdpa"
            and 0 < keys < heads
        ):
            self.model.set_attn_implementation(GROUPED_ATTENTION)
        self.stop_ids = torch.tensor(stop_token_ids(model_path), device=self.device)
        self.context = int(getattr(config, "max_position_embeddings", 0)) or 2**31
        self.max_rows = max_rows

    @torch.no_grad()
    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Copy the weights into the engine's model.

        Raises:
            ValueError: if names or shapes are not those of the model.
        """
        own = dict(self.model.named_parameters())
        for name, tensor in parameters:
            if name not in own or own[name].shape != tensor.shape:
                known = f"a tensor of shape {tuple(own[name].shape)}" if name in own else "no such parameter"
                advice = "Give the engine the model path of the policy."
                if suffix := next((other for other in own if name.endswith(f".{other}")), None):
                    prefix = name.removesuffix(f".{suffix}")
                    advice = f"Strip the prefix: RolloutCallback(…, policy={prefix!r})."
                raise ValueError(
                    f"Expected the policy's parameters, but the engine's model has {known} where it was "
                    f"given `{name}` of shape {tuple(tensor.shape)}. {advice}"
                )
            own.pop(name).copy_(tensor)
        if own:
            raise ValueError(
                f"Expected all parameters of the policy, but got none of {', '.join(sorted(own))}."
            )

    @torch.no_grad()
    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Sample as `Engine.generate` does, with prompts of similar length together."""
        check_context(request, self.context)
        generator = torch.Generator(self.device).manual_seed(request.seed)
        results: list[list[Completion]] = [[] for _ in request.prompts]
        for part in self._parts(request):
            prompts, counts = [request.prompts[p] for p in part], [request.num_samples[p] for p in part]
            rows = iter(self._sample(prompts, counts, request.sampling, generator))
            for p, count in zip(part, counts, strict=True):
                results[p] = list(islice(rows, count))
                deliver(p, results[p])
        return results

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """Sample as `Engine.generate_async` does; gains little if the update keeps a shared device busy."""
        return in_thread(self.generate, request, deliver)

    def _parts(self, request: Request) -> list[list[int]]:
        """Return indices of prompts by length, in parts of at most `max_rows` responses or one prompt."""
        parts: list[list[int]] = []
        rows = 0
        wanted = [(len(request.prompts[p]), p, count) for p, count in enumerate(request.num_samples) if count]
        for _, p, count in sorted(wanted):
            if not parts or rows + count > self.max_rows:
                parts.append([])
                rows = 0
            parts[-1].append(p)
            rows += count
        return parts

    def _sample(
        self, prompts: list[Tensor], counts: list[int], sampling: SamplingConfig, generator: torch.Generator
    ) -> list[Completion]:
        """Sample all rows of some prompts, token by token.

        Rows whose tokens are equal so far share a row of the cache.
        """
        cache = DynamicCache(config=self.model.config)
        room = min(sampling.max_new_tokens, ROOM)
        cache.layers = [_Layer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
        logits, mask = self._encode(prompts, cache)
        shared = torch.repeat_interleave(torch.tensor(counts, device=self.device))
        num_rows = len(shared)
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
                cache.batch_select_indices(prefixes // logits.shape[1])
                mask = mask[prefixes // logits.shape[1]]
            mask = F.pad(mask, (0, 1), value=1)
            logits = self._logits((prefixes % logits.shape[1])[:, None], mask, cache)
        return _completions(tokens, logprobs, lengths, finished)

    def _encode(self, prompts: list[Tensor], cache: DynamicCache) -> tuple[Tensor, Tensor]:
        """Encode prompts into the cache; encode a long common prefix only once.

        Return the logits after each prompt, [P, V], and the mask of the cache, [P, L], with zeros at padding.
        """
        pad = partial(pad_sequence, batch_first=True, padding_side="left")
        head = common_head(prompts)
        if head < LEAST_HEAD or not all(isinstance(layer, _Layer) for layer in cache.layers):
            head = 0
        rests = [prompt[head:] for prompt in prompts]
        ids = pad(rests).to(self.device)
        mask = pad([torch.ones_like(rest) for rest in rests]).to(self.device)
        if head:
            of_head = prompts[0][None, :head].to(self.device)
            self._logits(of_head, torch.ones_like(of_head), cache)
            cache.batch_select_indices(torch.zeros(len(prompts), dtype=torch.long, device=self.device))
            mask = F.pad(mask, (head, 0), value=1)
        return self._logits(ids, mask, cache), mask

    def _logits(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Return the logits after the last of the tokens `ids`, [rows, V], and add `ids` to the cache.

        `ids` are [rows, new]. `mask` [rows, cached and new] has zeros at padding, to the left of a row's
        newest tokens.
        """
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        of_cache = {
            "attention_mask": mask,
            "position_ids": positions,
            self.cache_argument: cache,
            "use_cache": True,
        }
        logits: Tensor = self.model(input_ids=ids, **of_cache, logits_to_keep=1).logits
        return logits[:, -1]

    def close(self) -> None:
        """Drop the copy of the policy.

        Sampling that still runs in a thread ends with an error, unnoticed.
        """
        del self.model


def common_head(prompts: list[Tensor]) -> int:
    """Return the number of tokens in the common prefix of all prompts.

    The prefix leaves at least one token of each prompt.

    >>> common_head([torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 5])])
    2
    """
    shortest = min(map(len, prompts)) - 1
    first = torch.stack([prompt[:shortest] for prompt in prompts])
    agrees = (first == first[0]).all(0)
    return int(agrees.long().cumprod(0).sum())


def _completions(tokens: Tensor, logprobs: Tensor, lengths: Tensor, finished: Tensor) -> list[Completion]:
    """Return a completion per row of `tokens` and `logprobs` [rows, T], cut to `lengths` [rows].

    Rows that are not `finished` count as truncated.
    """
    sampled = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    of_rows = [values[sampled].cpu().split(lengths.tolist()) for values in (tokens, logprobs)]
    rows = zip(*of_rows, finished.tolist(), strict=True)
    # Views would keep all of a large tensor alive, and would be pickled with all of it.
    return [
        Completion(token_ids=ids.clone(), logprobs=values.clone(), truncated=not end)
        for ids, values, end in rows
    ]


def grouped_query_attention(
    _: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute SDPA in which query heads share key heads, for CPUs.

    With a mask, transformers' own function copies the keys. `query` is [n, H, Lq, D], `key` and `value` are
    [n, H_kv, Lk, D], where H is a multiple of H_kv. `attention_mask` is [n, 1, Lq, Lk] bool; None is the
    causal mask. Return the output, [n, Lq, H, D], and None for the attention weights.
    """
    rule: dict[str, Any] = {
        "attn_mask": attention_mask,
        "is_causal": attention_mask is None and query.shape[2] > 1,
    }
    attended = F.scaled_dot_product_attention(
        query, key, value, **rule, scale=options.get("scaling"), enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED_ATTENTION, grouped_query_attention)
AttentionMaskInterface.register(GROUPED_ATTENTION, sdpa_mask)


class _Layer(DynamicLayer):
    """Cache layer with room for more tokens, so that appending a token moves no other.

    Keys and values are copied when rows are selected, or when the room is full.
    """

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = room
        """Tokens to reserve memory for where keys and values are copied."""
        self.rows: Tensor | None = None
        """Rows to select at the next `update`."""
        self.roomy: list[Tensor] = []
        """Keys and values, [rows, heads, capacity, D] each."""

    def batch_select_indices(self, indices: Tensor) -> None:
        """Store the rows to select at the next `update`, which comes before the next selection."""
        self.rows = indices

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values, each [selected rows, heads, old and new tokens, D]."""
        if self.keys is None or self.values is None:
            return super().update(key_states, value_states, *args, **kwargs)
        length = self.keys.shape[2]
        end = length + key_states.shape[2]
        full = not self.roomy or self.roomy[0].shape[2] < end
        if self.rows is not None or full:
            both = (self.keys, self.values)
            self.roomy = [with_room(kept, self.rows, end + self.room) for kept in both]
            self.rows = None
        for buffer, new in zip(self.roomy, (key_states, value_states), strict=True):
            buffer[:, :, length:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.roomy)
        return self.keys, self.values


def with_room(kept: Tensor, rows: Tensor | None, capacity: int) -> Tensor:
    """Copy `rows` of `kept` into a tensor with room for `capacity` positions, [rows, heads, capacity, D].

    `rows` None copies all rows. Positions after those of `kept` are not initialised.
    """
    heads, length, size = kept.shape[1:]
    copied = kept.new_empty(len(kept) if rows is None else len(rows), heads, capacity, size)
    if rows is None:
        copied[:, :, :length] = kept
    else:
        torch.index_select(kept, 0, rows, out=copied[:, :, :length])
    return copied


def draw(
    logits: Tensor, sampling: SamplingConfig, generator: torch.Generator, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a token for each entry of `rows`; return tokens and their float32 log-probs.

    Log-probs are at the temperature, before top-p and top-k; greedy decoding reports them at temperature 1.
    `rows` [draws] is the row of `logits` [n, V] that each draw is from; None draws once from each row.

    Raises:
        FloatingPointError: if a row of `logits` gives no probabilities.
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
        # Inverse transform: row i of `logits` fills the interval from i to i + 1, each token in proportion to
        # its mass.
        points = (
            torch.rand(len(rows), dtype=torch.float64, device=logits.device, generator=generator) * BELOW_1
            + rows
        )
        ends = _interval_ends(_truncated(logprobs, sampling))
        chosen = torch.searchsorted(ends.flatten(), points, right=True) - rows * logits.shape[1]
    return chosen, logprobs[rows, chosen]


def _interval_ends(logprobs: Tensor) -> Tensor:
    """Return the end of each token's interval, [n, V] float64.

    The intervals of row i of `logprobs` [n, V] fill the range from i to i + 1.
    """
    ends = torch.empty_like(logprobs, dtype=torch.float64)
    # Few rows at a time, so that a CPU's cache holds them between the steps.
    for start in range(0, len(logprobs), ROWS_AT_A_TIME):
        part = ends[start : start + ROWS_AT_A_TIME]
        torch.exp(logprobs[start : start + ROWS_AT_A_TIME].double(), out=part)
        torch.cumsum(part, -1, out=part)
        part /= part[:, -1:].clone()
        part += torch.arange(start, start + len(part), device=part.device)[:, None]
    return ends


def _truncated(logprobs: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return log-probs with −∞ for the tokens that top-k, then top-p, leave out."""
    if 0 < sampling.top_k < logprobs.shape[-1]:
        least = logprobs.topk(sampling.top_k).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logprobs.softmax(-1).sort(-1, descending=True)
        # A token stays while the mass before it is below top_p: the likeliest one always does.
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        logprobs = logprobs.masked_fill(torch.zeros_like(outside).scatter(-1, index, outside), -torch.inf)
    return logprobs
