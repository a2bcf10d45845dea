"""TRL's `GRPOTrainer` with each prompt of a micro-batch encoded once: one call after it is made. For TRL 1.16.

TRL takes all log-probs (of the policy, before the update, of the reference) from one method, which is replaced on one
trainer. Loss, masks, metrics and the output head stay TRL's: its forward gets the packed tokens as one row. There every
response begins with the last token of its prompt, so that each of its tokens follows the one that predicts it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .attention import PREFIX_ATTENTION, supports_prefix_sharing
from .batch import PackedBatch, pack

METHOD = "_get_per_token_logps_and_entropies"
SERVED = ["model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
ARGUMENTS = [*SERVED, "compute_aux_loss"]


def share_prefixes(trainer: Any) -> None:
    """Have `trainer`, a `GRPOTrainer`, encode each prompt of a micro-batch once for all its responses.

    Log-probs, entropies and gradients are TRL's up to rounding. A batch that can't be packed (inputs beside tokens, an
    auxiliary loss, a prompt of one token) is left to TRL's own method, with a warning that says so once. Tested in one
    process, without torch.compile.

    Raises:
        ValueError: the trainer or its model can't share prefixes; nothing has been changed then.
    """
    plain = getattr(trainer, METHOD, None)
    found = list(inspect.signature(plain).parameters)[: len(ARGUMENTS)] if plain else None
    if found != ARGUMENTS:
        raise ValueError(
            f"Expected the `GRPOTrainer` of TRL 1.16, whose {METHOD} takes {', '.join(ARGUMENTS)}, but that of "
            f"{type(trainer).__name__} takes {found}."
        )
    models = [trainer.accelerator.unwrap_model(m) for m in (trainer.model, trainer.ref_model) if m is not None]
    for model in models:
        shares, reason = supports_prefix_sharing(model)
        if shares and getattr(model.config, "attention_dropout", None):
            shares, reason = False, "its attention has dropout"
        if not shares:
            raise ValueError(f"Expected a model that can share prefixes, but of {type(model).__name__}: {reason}.")
    for model in models:
        _attend_to_prefixes(model)
    setattr(trainer, METHOD, SharedLogProbs(trainer, plain))


def _attend_to_prefixes(model: Any) -> None:
    """Have the model use `PREFIX_ATTENTION` wherever it is called with `packed=`, and its own attention elsewhere."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    config, before = model.config, list[str]()

    def enter(_module: nn.Module, _inputs: Any, options: dict[str, Any]) -> None:
        before.append(config._attn_implementation)
        if "packed" in options:
            config._attn_implementation = PREFIX_ATTENTION

    def leave(*_: Any) -> None:
        config._attn_implementation = before.pop()

    # The backbone makes the mask; gradient checkpointing calls layers again, long after the backbone has returned.
    for name, module in model.named_modules():
        if module is model.base_model or name.endswith("self_attn"):
            module.register_forward_pre_hook(enter, with_kwargs=True)
            module.register_forward_hook(leave, always_call=True)


class SharedLogProbs:
    """In the place of a trainer's method `plain`; see `share_prefixes`."""

    def __init__(self, trainer: Any, plain: Any) -> None:
        self.trainer, self.plain, self.warned = trainer, plain, set[str]()

    def __call__(
        self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **options: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """[B, C] float32 log-probs, [B, C] entropies if asked for, and no auxiliary loss; zeros where masked.

        `input_ids` [B, P + C] are prompts padded on the left and completions padded on the right, `attention_mask` is
        one for tokens, C is `logits_to_keep`; `options` are the other arguments of `plain`.
        """
        reason = _obstacle(attention_mask.bool(), logits_to_keep, options)
        if reason:
            if reason not in self.warned:
                warnings.warn(f"Prefixes are not shared, TRL's own method takes the batch: {reason}.", stacklevel=2)
            self.warned.add(reason)
            return self.plain(model, input_ids, attention_mask, logits_to_keep, **options)  # type: ignore[no-any-return]
        size, entropy = options.get("batch_size") or len(input_ids), bool(options.get("compute_entropy"))
        parts = zip(input_ids.split(size), attention_mask.bool().split(size), strict=True)
        scores = [self._score(model, ids, mask, logits_to_keep, entropy) for ids, mask in parts]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None, None

    def _score(
        self, model: nn.Module, ids: Tensor, mask: Tensor, width: int, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """[b, C] log-probs and entropies of some rows."""
        if not mask[:, -width:].any():  # zeros that have a gradient
            return self.plain(model, ids, mask.long(), width, compute_entropy=entropy)[:2]  # type: ignore[no-any-return]
        batch = pack_rows(ids, mask, width)
        scored, place, tokens = batch.owner >= 0, batch.input_ids[0], ids.flatten()
        row, column = place // ids.shape[1], place % ids.shape[1]
        labels = torch.where(scored, tokens[place + 1], -100)[None]
        inputs = {"input_ids": tokens[place][None], "position_ids": column[None], "packed": batch}
        with self.trainer.accelerator.autocast():
            outputs = model(**inputs, shift_labels=labels, fused_lm_head=True)
        target = row[scored], column[scored] + 1 + width - ids.shape[1]

        def padded(values: Tensor) -> Tensor:
            return values.new_zeros(len(ids), width).index_put(target, values[0, scored])

        return padded(outputs.log_probs), padded(outputs.entropy) if entropy else None


def pack_rows(ids: Tensor, mask: Tensor, width: int) -> PackedBatch:
    """Rows as in `SharedLogProbs`, packed; in the place of a token stands its place in the flattened rows.

    A prompt is packed without its last token, which begins each response; a response without its own last one.
    """
    last = ids.shape[1] - width - 1
    heads, mask = ids[:, :last].masked_fill(~mask[:, :last], -1).cpu().numpy(), mask.cpu()
    places, seen = torch.arange(ids.numel()).view(ids.shape), dict[bytes, int]()
    prompt = torch.tensor([seen.setdefault(head.tobytes(), row) for row, head in enumerate(heads)])
    lengths = mask[:, -width:].sum(1)
    prompts = [row[kept] for row, kept in zip(places[:, :last], mask[:, :last], strict=True)]
    responses = [row[:length] for row, length in zip(places[:, last:], lengths.tolist(), strict=True)]
    return pack(prompts, prompt, responses, lengths.nonzero()[:, 0]).to(ids.device)


def _obstacle(mask: Tensor, width: int, options: Mapping[str, Any]) -> str | None:
    """Why a batch can't be packed."""
    others = [
        name for name, value in options.items() if value is not None and value is not False and name not in SERVED
    ]
    prompts, completions = mask[:, :-width], mask[:, -width:]
    if others:
        return f"it needs more than tokens: {', '.join(others)}"
    if prompts.shape[1] < 2 or not prompts[:, -2:].all():
        return "a prompt has a single token"
    if (prompts[:, 1:] < prompts[:, :-1]).any() or (completions[:, 1:] > completions[:, :-1]).any():
        return "tokens in the midst of a row are masked"
    return None
