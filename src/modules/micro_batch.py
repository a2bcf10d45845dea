"""A micro-batch on its way through the policy: packed, with what the loss reads of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..packing.batch import PackedBatch
from ..types import Loss, LossInputs, LossOutputs
from .experience import Experience, TokenColumns


@dataclass
class MicroBatch:
    """r responses in one forward. Called with the log-probs of some of their tokens, it returns the loss of these."""

    experience: Experience
    """The experience that the responses are a part of."""
    packed: PackedBatch
    """The responses, on the device of the policy."""
    loss: Loss
    totals: Mapping[str, float]
    """`responses` and `tokens` of the mini-batch over all ranks."""
    reference_logprobs: Tensor | None
    """[t] float32 under the reference policy; None without one."""
    staleness_log_cap: float
    """Logarithm of `UpdateOptions.staleness_cap`."""
    columns: TokenColumns = field(init=False)
    """Columns of the tokens, on the device of the policy."""
    outputs: list[LossOutputs] = field(default_factory=list)
    """What the loss has returned."""

    def __post_init__(self) -> None:
        rows, device = self.packed.rows, self.packed.response.device
        tokens = self.experience.tokens(rows)
        self.columns = self.experience.columns.map(lambda column: column[tokens].to(device))
        self.columns.reference_logprobs = self.reference_logprobs
        self.advantages = self.experience.advantages[rows].to(device)
        self.replayed = self.experience.replayed[rows].to(device)
        self.lengths = self.packed.lengths.to(device)

    def __call__(self, part: slice, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        """[] loss of the tokens `part`, whose log-probs and entropies are given."""
        tokens = self.columns.map(lambda column: column[part])
        old = tokens.old(logprobs)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=old,
            reference_logprobs=tokens.reference_logprobs,
            entropy=entropy,
            advantages=self.advantages,
            response=self.packed.response[part],
            lengths=self.lengths,
            num_responses=self.totals["responses"],
            num_tokens=self.totals["tokens"],
            weights=tokens.weights(old, self.staleness_log_cap),
            replayed=self.replayed,
            token_advantages=tokens.advantages,
            token_terms=tokens.terms,
        )
        self.outputs.append(self.loss(inputs))
        return self.outputs[-1].loss
