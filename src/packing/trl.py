"""Prefix sharing in TRL's trainers: each distinct prefix of a micro-batch is encoded once. For TRL 1.16.

TRL computes all log-probs (of the policy, of the old policy, of the reference) in one method, which
`share_prefixes` replaces on one trainer. Losses and masks stay TRL's. The forwards of the models also accept
packed tokens, so that adapters, DDP and FSDP2 are called as before. When transformers samples, `generate` of
the policy begins with the keys and values of the prompts.

The changes are kept on each model itself, so that a deep copy (a reference, a teacher, an average of weights)
scores and samples with its own weights.
"""

import inspect
import math
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from functools import wraps
from importlib.metadata import version
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.cache_utils import DynamicCache

from .attention import ABSOLUTE_POSITIONS, PREFIX_ATTENTION, logit_scale, supports_prefix_sharing
from .batch import PackedBatch, pack
from .head import EntropyMode, TokenScores, head_scores
from .noise import noise_rates
from .policy import cache_argument, predicting_states

METHOD = "_get_per_token_logps_and_entropies"
SERVED = ["model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
ARGUMENTS = [*SERVED, "compute_aux_loss"]
TESTED = "1.16"
TRAINERS = "GRPOTrainer, RLOOTrainer or GMPOTrainer"
"""Trainers of TRL whose trainings are tested."""
_PLAIN_FORWARD = "_forward_before_sharing"
_PLAIN_GENERATE = "_generate_before_sharing"


def share_prefixes(trainer: Any) -> None:
    """Make a TRL trainer encode each distinct prefix of a micro-batch once.

    Call this function before training begins. Log-probs, entropies and gradients are TRL's up to rounding.
    If responses are sampled by transformers' `generate`, called as TRL calls it, `generate` also encodes each
    distinct prompt once. The probabilities of responses do not change.

    TRL shuffles the rows that it generated and then cuts them into micro-batches. After this call, the rows
    of an optimizer step are ordered by their tokens, unless the loss of a row depends on other rows of its
    micro-batch. Logged metrics that are means of micro-batch means change with the order; the loss does not.

    A batch that can't be packed (inputs beside tokens, an auxiliary loss, masked tokens in the middle of a
    row) is passed to TRL's own method, with one warning for each reason. Another version of TRL is accepted
    with a warning if its method takes the same arguments.

    Args:
        trainer: `GRPOTrainer`, `RLOOTrainer` or `GMPOTrainer`.

    Raises:
        ValueError: if the trainer or its model can't share prefixes. Trainer and models are unchanged then.
    """
    plain = getattr(trainer, METHOD, None)
    found = list(inspect.signature(plain).parameters)[: len(ARGUMENTS)] if plain else None
    if found != ARGUMENTS:
        raise ValueError(
            f"Expected a {TRAINERS} of TRL {TESTED}, whose {METHOD} takes {', '.join(ARGUMENTS)}, but that "
            f"of {type(trainer).__name__} takes {found}."
        )
    reason = _unserved(trainer, plain)
    if reason:
        raise ValueError(f"Expected a trainer that can share prefixes, but {reason}.")
    models = [
        trainer.accelerator.unwrap_model(m) for m in (trainer.model, trainer.ref_model) if m is not None
    ]
    for model in models:
        shares, reason = supports_prefix_sharing(model)
        noise = _noise(model)
        if shares and noise:
            shares = False
            reason = f"{noise}, and the responses of a group would share the noise of their prompt"
        if not shares:
            raise ValueError(
                f"Expected a model that can share prefixes, but of {type(model).__name__}: {reason}."
            )
    if getattr(trainer, "aux_loss_enabled", False):
        warnings.warn(
            "No prefixes are shared in training while experts have an auxiliary loss. Set "
            "router_aux_loss_coef=0 in the model's config before the trainer is made, and batches are "
            "packed.",
            stacklevel=2,
        )
    installed = version("trl")
    if not installed.startswith(TESTED + "."):
        warnings.warn(
            f"Prefixes are shared as with TRL {TESTED}, but TRL {installed} is installed.", stacklevel=2
        )
    models = [model.get_base_model() if hasattr(model, "get_base_model") else model for model in models]
    for model in models:
        _serve_packed(model, trainer.temperature, getattr(trainer.args, "cast_lm_head_to_fp32", False))
    setattr(trainer, METHOD, SharedLogProbs(trainer, plain))
    _encode_prompts_once(models[0])
    if not _mixes_rows(trainer):
        _keep_prefixes_together(trainer)


def _mixes_rows(trainer: Any) -> bool:
    """Return whether the loss of a row depends on other rows of its micro-batch."""
    off = {
        "aux_loss_enabled": False,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "top_entropy_quantile": 1.0,
    }
    # `RLOOTrainer` has the first
    mixes = any(getattr(trainer, name, value) != value for name, value in off.items())
    return mixes or getattr(trainer, "loss_type", None) == "bnpo"


def _keep_prefixes_together(trainer: Any) -> None:
    """Order the rows of an optimizer step so that each micro-batch has few distinct prefixes."""
    plain = trainer._prepare_inputs
    args = trainer.args
    size = math.gcd(args.steps_per_generation, args.gradient_accumulation_steps)

    def prepare(generation_batch: Any) -> Any:
        before = trainer._buffered_inputs
        inputs = plain(generation_batch)
        parts = trainer._buffered_inputs
        if parts is before:
            return inputs
        ordered: list[dict[str, Any]] = []
        for step in range(0, len(parts), size):
            ordered += order_by_tokens(parts[step : step + size])
        trainer._buffered_inputs = ordered
        return ordered[trainer._step % args.steps_per_generation]

    trainer._prepare_inputs = prepare


def order_by_tokens(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the rows of TRL's equally sized micro-batches by prompt and completion, and cut them again.

    The micro-batches are returned unchanged if a column can't be sorted by row, such as images.
    """
    rows = [torch.cat([part["prompt_ids"], part["completion_ids"]], 1) for part in parts]
    order = torch.cat(rows).unique(dim=0, return_inverse=True)[1].argsort(stable=True)
    size = len(rows[0])
    columns: dict[str, Any] = {name: [part[name] for part in parts] for name in parts[0]}
    for name, values in columns.items():
        if isinstance(values[0], list) or any(x is not None and x.ndim and len(x) != size for x in values):
            return parts
        if values[0] is not None and values[0].ndim:
            columns[name] = torch.cat(values).index_select(0, order).split(size)
    return [{name: column[index] for name, column in columns.items()} for index in range(len(parts))]


def _unserved(trainer: Any, plain: Any) -> str | None:
    """Return why no batch of `trainer` can be packed; None if batches can be packed."""
    args = trainer.args
    old_fsdp = trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version == 1
    reasons = {
        f"{type(trainer).__name__} has a {METHOD} of its own": plain.__module__.split(".")[0] != "trl",
        "DeepSpeed is not served": trainer.is_deepspeed_enabled,
        "FSDP is served in version 2 alone (fsdp_version: 2)": old_fsdp,
        "compiled models are not served (torch_compile=False)": args.torch_compile,
        "the noise of neftune_noise_alpha depends on the length of rows": args.neftune_noise_alpha
        is not None,
        "models copied to several GPUs by one process are not served": args.n_gpu > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _noise(model: nn.Module) -> str | None:
    """Return a description of the first dropout in `model`, with the setting that disables it.

    Returns None if `model` has no dropout.
    """
    for name, _, attribute, rate in noise_rates(model):
        off = f"{attribute}=0 in the model's config"
        if "lora_dropout" in name and attribute == "p":
            off = "lora_dropout=0 in LoraConfig"
        elif attribute == "p":
            off = "disable_dropout=True in TRL's config"
        return f"its {name} is {rate} ({off} switches it off)"
    return None


def _serve_packed(model: Any, temperature: float, float32_head: bool) -> None:
    """Make the forward return `TokenScores` if called with `packed=`; other calls do not change."""
    # The backbone makes the mask; gradient checkpointing calls layers again, long after the backbone has
    # returned.
    for module in model.modules():
        if module is model.base_model or is_attention(module):
            module.register_forward_pre_hook(_switch_attention, with_kwargs=True)
            module.register_forward_hook(_switch_back, always_call=True)

    @wraps(type(model).forward)  # `generate` looks at its signature
    def forward(
        model: Any, *inputs: Any, packed: Any = None, with_entropy: bool = False, **options: Any
    ) -> Any:
        if packed is None:
            return _forward_before_sharing(model)(*inputs, **options)
        hidden = predicting_states(model, packed)
        weight = model.get_output_embeddings().weight
        weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
        hidden = hidden.float() if float32_head else hidden
        with torch.autocast(hidden.device.type, enabled=False) if float32_head else nullcontext():
            entropy: EntropyMode = "grad" if with_entropy else "none"
            scaled = temperature / logit_scale(model.config)
            return head_scores(hidden, weight, packed.predicted, scaled, entropy)

    # Bound methods follow a deep copy of their model; variables of a closure would not.
    setattr(model, _PLAIN_FORWARD, (id(model), model.forward))
    model.forward = MethodType(forward, model)


def is_attention(module: nn.Module) -> bool:
    """Return whether `module` chooses the function that computes its attention, as transformers' modules do."""
    return hasattr(module, "is_causal") and hasattr(module, "config")


def _forward_before_sharing(model: Any) -> Any:
    """Return the forward that `model` had before `share_prefixes`; for a later copy, that of its class.

    TRL 1.16 adds a fused head by a closure over the model, so that the forward of a copy computes with the
    weights of the original.
    """
    owner, forward = getattr(model, _PLAIN_FORWARD)
    if owner == id(model):
        return forward

    def of_its_class(*inputs: Any, **options: Any) -> Any:
        if options.get("fused_lm_head"):
            raise ValueError(
                f"Expected {type(model).__name__} to be the model that TRL gave a fused head, but it is a "
                "copy, for which that head computes with the weights of the original. Copy the model before "
                "the trainer is made."
            )
        return type(model).forward(model, *inputs, **options)

    return of_its_class


def _switch_attention(module: Any, _inputs: Any, options: dict[str, Any]) -> None:
    """Use packed attention in one forward of `module`, if the forward gets packed tokens."""
    stack = module.__dict__.setdefault("_attention_before", [])
    stack.append(module.config._attn_implementation)
    if "packed" in options:
        module.config._attn_implementation = PREFIX_ATTENTION


def _switch_back(module: Any, *_: Any) -> None:
    module.config._attn_implementation = module._attention_before.pop()


def _encode_prompts_once(model: Any) -> None:
    """Make `generate`, called as TRL calls it, begin with keys and values of each distinct prompt."""

    @wraps(type(model).generate)
    def generate(model: Any, *inputs: Any, **options: Any) -> Any:
        given = options.get("generation_config")

        def told(name: str) -> Any:  # what is not given is the model's own, as in `generate`
            value = getattr(given, name, None)
            return getattr(model.generation_config, name, None) if value is None else value

        cached = told("use_cache") is not False and not (
            told("cache_implementation") or told("prefill_chunk_size")
        )
        one_each = {told("num_beams"), told("num_return_sequences")} <= {None, 1}
        alone = not inputs and options.keys() == {"input_ids", "attention_mask", "generation_config"}
        if given and alone and cached and one_each:
            rows = torch.cat([options["input_ids"], options["attention_mask"]], 1)
            prompts, row = rows.unique(dim=0, return_inverse=True)
            ids, mask = prompts.chunk(2, dim=1)
            if len(ids) < len(row) and ids.shape[1] > 1:
                cache = DynamicCache(config=model.config)
                of_cache = {cache_argument(model): cache}
                at = {
                    "attention_mask": mask[:, :-1],
                    "position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, :-1],
                }
                model(input_ids=ids[:, :-1], **at, **of_cache, use_cache=True, logits_to_keep=1)
                cache.batch_select_indices(row)
                options.update(of_cache)
        return getattr(model, _PLAIN_GENERATE)(*inputs, **options)

    setattr(model, _PLAIN_GENERATE, model.generate)
    model.generate = MethodType(generate, model)


class SharedLogProbs:
    """Replacement of `plain`, a TRL trainer's method for log-probs, that encodes each distinct prefix once.

    See `share_prefixes`. Batches that can't be packed are passed to `plain`.
    """

    def __init__(self, trainer: Any, plain: Any) -> None:
        self.trainer = trainer
        self.plain = plain
        self.signature = inspect.signature(plain)
        self.warned = set[str]()

    def __call__(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log-probs, entropies (None if not requested), and None for the auxiliary loss.

        Log-probs are [B, C] float32, entropies [B, C]. Both are zero where masked.

        The arguments are those of `plain`, by position or by name: `model`; `input_ids` [B, P + C], prompts
        padded on the left and completions padded on the right; `attention_mask`, 1 for tokens;
        `logits_to_keep`, which is C; options.
        """
        options = self._by_name(inputs, options)
        model = options.pop("model")
        input_ids = options.pop("input_ids")
        attention_mask = options.pop("attention_mask")
        logits_to_keep = options.pop("logits_to_keep")
        model_type = self.trainer.accelerator.unwrap_model(model).config.model_type
        reason = _obstacle(attention_mask.bool(), logits_to_keep, options, model_type)
        if reason:
            if reason not in self.warned:
                warnings.warn(
                    f"Prefixes are not shared, TRL's own method takes the batch: {reason}.", stacklevel=2
                )
            self.warned.add(reason)
            return self.plain(model, input_ids, attention_mask, logits_to_keep, **options)  # type: ignore[no-any-return]
        size = options.get("batch_size") or len(input_ids)
        entropy = bool(options.get("compute_entropy"))
        parts = zip(input_ids.split(size), attention_mask.split(size), strict=True)
        scores = [self._score(model, ids, mask, logits_to_keep, entropy) for ids, mask in parts]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None, None

    def _by_name(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of `plain` by name; `RLOOTrainer` gives some by position."""
        given = dict(self.signature.bind(*inputs, **options).arguments)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                given |= given.pop(name, {})
        return given

    def _score(
        self, model: nn.Module, ids: Tensor, mask: Tensor, width: int, entropy: bool
    ) -> tuple[Any, Any]:
        """Return the log-probs and entropies of some rows, each [b, C]."""
        if not mask[:, -width:].any():  # zeros that have a gradient
            return self.plain(model, ids, mask, width, compute_entropy=entropy)[:2]  # type: ignore[no-any-return]
        batch = pack_rows(ids.cpu(), mask.cpu().bool(), width).to(ids.device)
        with self.trainer.accelerator.autocast():
            scores: TokenScores = model(input_ids=batch.input_ids, packed=batch, with_entropy=entropy)
        starts = batch.lengths.cumsum(0) - batch.lengths
        row, first = (x.repeat_interleave(batch.lengths).to(ids.device) for x in (batch.rows, starts))
        column = torch.arange(len(first), device=ids.device) - first

        def padded(values: Tensor) -> Tensor:
            return values.new_zeros(len(ids), width).index_put((row, column), values)

        return padded(scores.logprobs), None if scores.entropy is None else padded(scores.entropy)


def pack_rows(ids: Tensor, mask: Tensor, width: int) -> PackedBatch:
    """Pack the rows that have a completion, each distinct prefix once.

    `ids` and `mask` are the arguments of `SharedLogProbs`, on the CPU; the last `width` columns are
    completions.
    """
    prompts = [row[kept] for row, kept in zip(ids[:, :-width], mask[:, :-width], strict=True)]
    lengths = mask[:, -width:].sum(1)
    responses = [row[:length] for row, length in zip(ids[:, -width:], lengths.tolist(), strict=True)]
    return pack(prompts, torch.arange(len(ids)), responses, lengths.nonzero()[:, 0])


def _obstacle(mask: Tensor, width: int, options: Mapping[str, Any], model_type: str) -> str | None:
    """Return why a batch can't be packed; None if it can be packed."""
    prompts = mask[:, :-width]
    completions = mask[:, -width:]
    given = [name for name, value in options.items() if value is not None and value is not False]
    others = [name for name in given if name not in SERVED]
    if others:
        return f"it needs more than tokens: {', '.join(others)}"
    if not prompts.any(1).all():
        return "a prompt has no tokens"
    if (prompts[:, 1:] < prompts[:, :-1]).any() or (completions[:, 1:] > completions[:, :-1]).any():
        return "tokens in the midst of a row are masked"
    if model_type in ABSOLUTE_POSITIONS and not prompts.all():
        return f"TRL counts the padding of prompts in the positions of {model_type}"
    return None
