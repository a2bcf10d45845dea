"""Token log-probs and entropies of packed responses under any Hugging Face causal language model.

Prefixes are shared if the model allows it (`supports_prefix_sharing`); large [tokens, vocabulary] tensors are
then never kept (`head.py`). Other models run one padded forward, which computes all logits. It is slower and
has the same result.
"""

import inspect
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from .attention import PREFIX_ATTENTION, length_dependent_rope, logit_scale, supports_prefix_sharing
from .batch import PackedBatch
from .head import EntropyMode, TokenLoss, TokenScores, head_scores, token_scores
from .noise import noise_rates

logger = logging.getLogger(__name__)


class CausalPolicy(nn.Module):
    """Causal language model that scores packed responses. It is the root of FSDP2 sharding.

    Args:
        model: Any causal language model of transformers, with or without adapters of peft.
        temperature: Log-probs and entropies are those of softmax(logits / temperature).
        chunk_size: Response tokens whose logits are computed at a time, on the prefix-shared path only; for
            None, see `head_scores`.
    """

    def __init__(
        self, model: PreTrainedModel, temperature: float = 1.0, chunk_size: int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.compiled = False
        self.temperature = temperature
        self.chunk_size = chunk_size
        self.shares_prefix, reason = supports_prefix_sharing(model)
        if self.shares_prefix:
            model.set_attn_implementation(PREFIX_ATTENTION)
        else:
            logger.info("%s is scored in padded batches: %s.", type(model).__name__, reason)

    def forward(
        self, batch: PackedBatch, entropy: EntropyMode = "detached", loss: TokenLoss | None = None
    ) -> TokenScores:
        """Score the response tokens of `batch`, which is on the device of the model.

        If `loss` is given, it is computed over all tokens with its gradient, part by part in the order of the
        tokens. The prefix-shared path then computes each logit once, not twice.

        Raises:
            ValueError: if prefixes are shared in training mode and the model has dropout: responses would
                share the noise of their prompt. Padded batches have the noise of the model's own forward.
        """
        if not self.shares_prefix:
            scores = token_scores(self._padded_logits(batch), batch.targets, self.temperature, entropy)
            if loss is None:
                return scores
            every = torch.arange(len(batch.targets), device=batch.targets.device)
            total = loss(every, scores.logprobs, scores.entropy)
            spread = scores.entropy if scores.entropy is None else scores.entropy.detach()
            return TokenScores(scores.logprobs.detach(), spread, total)
        if self.model.training:
            refuse_noise(self.model)
        if self.compiled:
            _ = batch.block_mask  # made here, outside of the graphs that read it
        hidden = predicting_states(self.model, batch)
        weight = self.model.get_output_embeddings().weight
        temperature = self.temperature / logit_scale(self.model.config)
        return head_scores(hidden, weight, batch.predicted, temperature, entropy, self.chunk_size, loss)

    def _padded_logits(self, batch: PackedBatch) -> Tensor:
        """Return the logits of the model's own forward on whole, right-padded sequences, [T, V]."""
        tokens = batch.input_ids[0]
        paths = batch.paths.rows.to(tokens.device).split(batch.paths.lengths.tolist())
        whole = [tokens[paths[place]] for place in batch.paths.of_response.tolist()]
        ids = pad_sequence(whole, batch_first=True)
        self._refuse_length_dependent(ids.shape[1])
        mask = (torch.arange(ids.shape[1]) < torch.tensor([[len(sequence)] for sequence in whole])).to(ids)
        column = batch.position_ids[0, batch.predictors]
        kept: dict[str, Tensor] = {}
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            # Columns in which every row is still in its prompt predict no response token.
            kept["logits_to_keep"] = torch.arange(int(column.min()), ids.shape[1], device=ids.device)
            column = column - column.min()
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits
        width = len(kept["logits_to_keep"]) if kept else ids.shape[1]
        learned = logits.shape[1] - width  # tokens of an adapter, before each sequence
        return logits[batch.response, column + learned]

    def _refuse_length_dependent(self, length: int) -> None:
        """Raise a ValueError if log-probs of a row would depend on the length of the batch's longest row."""
        config = self.model.config
        rope = length_dependent_rope(config)
        if rope is None:
            return
        first = (
            config.rope_parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        )
        if length > first:
            raise ValueError(
                f"Expected sequences of at most {first} tokens, since the {rope} rotary embedding of "
                f"{type(self.model).__name__} gives log-probs that depend on the longest sequence of a batch "
                f"beyond that, but got {length}. Lower data.max_prompt_tokens or "
                "rollout.sampling.max_new_tokens, or give the model another rope_type, such as yarn."
            )


def refuse_noise(model: nn.Module) -> None:
    """Refuse a model with dropout, layer drop or jitter.

    Raises:
        ValueError: if a rate is above 0. The message names the first such rate.
    """
    for name, _, _, rate in noise_rates(model):
        raise ValueError(
            "Expected a model without dropout in training mode, because responses that share a prompt would "
            f"share its noise, but {name} is {rate}. Load the model with this rate at 0, as load_causal_lm "
            "does, or call eval()."
        )


def cache_argument(model: nn.Module) -> str:
    """Return the name of the argument by which a model takes its cache of keys and values.

    The models of transformers 5.24 name the argument `cache`; earlier models name it `past_key_values`.
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def predicting_states(model: Any, batch: PackedBatch) -> Tensor:
    """Return the last hidden states of `batch.states`, [S, d].

    `model` must use the attention `PREFIX_ATTENTION`.
    """
    # Adapters of peft live inside the wrapped model's layers.
    backbone = (model.get_base_model() if hasattr(model, "get_base_model") else model).base_model
    inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "packed": batch}
    hidden: Tensor = backbone(**inputs, use_cache=False).last_hidden_state
    return hidden[0].index_select(0, batch.states)
