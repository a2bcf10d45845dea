"""Log-probs and entropies of responses under the policy or its frozen reference, one micro-batch after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...distributed import max_over_ranks
from ...packing.batch import PackedBatch, pack
from ...packing.head import EntropyMode, TokenScores
from ...packing.policy import CausalPolicy
from .lora import adapters_off
from .micro_batches import plan_micro_batches

NOTHING = torch.zeros(2, dtype=torch.long)
"""A prompt and a response for the forwards of ranks that have none left."""


@dataclass(kw_only=True)
class PromptedResponses:
    """R responses of one rank, each with the prompt that it is scored under."""

    prompts: Sequence[Tensor]
    """[S] of [L_s] long, the distinct score prompts."""
    prompt: Tensor
    """[R] long, row of each response's score prompt in `prompts`."""
    responses: Sequence[Tensor]
    """[R] of [T_r] long, response tokens."""
    lengths: Tensor = field(init=False)
    """[R] long, tokens per response."""

    def __post_init__(self) -> None:
        self.lengths = torch.tensor([len(ids) for ids in self.responses], dtype=torch.long)


class ResponseScores(NamedTuple):
    """Log-probs and entropies under the current policy, in nats, of the responses that were scored."""

    logprobs: dict[int, Tensor]
    """Row of a response → [T_r] float32, on the policy's device."""
    entropy: Tensor
    """[R] float32, mean per token, on the CPU; zero for responses that were not scored."""
    entropies: dict[int, Tensor]
    """Row of a response → [T_r] float32, on the policy's device."""


class Scorer:
    """Scores responses in micro-batches. Under several ranks all ranks run the same number of forwards.

    Args:
        policy: The trained policy.
        reference: The frozen reference policy. None: the policy itself with its adapters off.
        token_budget: Tokens per forward on one rank; see `plan_micro_batches`.
        device: Where forwards run; None is where the policy's parameters are.
        autocast_dtype: Computes in it while the parameters keep their own type; None computes in theirs.
    """

    def __init__(
        self,
        policy: CausalPolicy,
        reference: CausalPolicy | None = None,
        *,
        token_budget: int = 16384,
        device: torch.device | None = None,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        self.policy = policy
        self.reference = reference
        self.token_budget = token_budget
        self.device = device or next(policy.parameters()).device
        self.autocast_dtype = autocast_dtype

    def plan(self, responses: PromptedResponses, rows: Tensor) -> list[Tensor]:
        """Cut `rows` into micro-batches within the token budget. Collective.

        Every rank gets as many as the rank that needs most, at least one; the last ones may be empty.
        """
        local = plan_micro_batches(
            torch.tensor([len(ids) for ids in responses.prompts], dtype=torch.long),
            responses.prompt[rows],
            responses.lengths[rows],
            self.token_budget,
            share_prefix=self.policy.shares_prefix,
        )
        count = max(int(max_over_ranks(len(local))), 1)
        return [rows[part] for part in local] + [rows[:0]] * (count - len(local))

    def pack(self, responses: PromptedResponses, rows: Tensor) -> PackedBatch:
        """The responses `rows` in one batch, on the device; for no rows one that stands in for them."""
        if len(rows):
            packed = pack(responses.prompts, responses.prompt, responses.responses, rows)
        else:
            packed = pack([NOTHING], NOTHING[:1], [NOTHING])
        return packed.to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that forwards of the policy run in."""
        return torch.autocast(self.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext()

    @torch.no_grad()
    def reference_logprobs(self, packed: PackedBatch) -> Tensor:
        """[T] float32 log-probs under the reference policy, nats."""
        policy = self.reference or self.policy
        with nullcontext() if self.reference else adapters_off(policy), self.autocast():
            scores: TokenScores = policy(packed, entropy="none")
        return scores.logprobs

    @torch.no_grad()
    def score(self, responses: PromptedResponses, rows: Tensor) -> ResponseScores:
        """Log-probs and entropies of the responses `rows`. Collective."""
        scores = ResponseScores({}, torch.zeros(len(responses.responses)), {})
        for part in self.micro_batches(responses, rows, "detached"):
            if part:
                scores.logprobs.update((row, logprobs) for row, (logprobs, _) in part.items())
                entropies = {row: values for row, (_, values) in part.items() if values is not None}
                scores.entropy[list(part)] = torch.stack([values.mean() for values in entropies.values()]).float().cpu()
                scores.entropies.update(entropies)
        return scores

    def micro_batches(
        self, responses: PromptedResponses, rows: Tensor, entropy: EntropyMode = "none"
    ) -> Iterator[dict[int, tuple[Tensor, Tensor | None]]]:
        """Row → [T_r] log-probs, with gradient, and entropies of the responses `rows`, part by part. Collective."""
        for part in self.plan(responses, rows):
            packed = self.pack(responses, part)
            with self.autocast():
                scores: TokenScores = self.policy(packed, entropy=entropy)
            sizes = packed.lengths.tolist()
            entropies = [None] * len(sizes) if scores.entropy is None else scores.entropy.split(sizes)
            pairs = zip(scores.logprobs.split(sizes), entropies, strict=True)
            yield dict(zip(packed.rows.tolist(), pairs, strict=True)) if len(part) else {}
