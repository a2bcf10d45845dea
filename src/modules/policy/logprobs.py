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
    """Result of `Scorer.score`."""

    logprobs: dict[int, Tensor]
    """Row of a response → [T_r] float32 log-probs of its tokens, nats, on the policy's device."""
    entropy: Tensor
    """[R] float32, mean entropy per token, nats, on the CPU; zero for responses that were not scored."""
    entropies: dict[int, Tensor]
    """Row of a response → [T_r] float32 entropies at its tokens, nats, on the policy's device."""


class Scorer:
    """Scores responses in micro-batches. Under several ranks all ranks run the same number of forwards.

    Args:
        policy: The trained policy.
        reference: The frozen reference policy. None: the policy itself with its adapters off.
        token_budget: Tokens per forward on one rank: distinct prompt tokens plus response tokens, or the tokens of a
            padded batch for models that can't share prompts.
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
        """The responses `rows` in one batch, on the device; for no rows the first response, to keep ranks in step."""
        rows = rows if len(rows) else torch.zeros(1, dtype=torch.long)
        return pack(responses.prompts, responses.prompt, responses.responses, rows).to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that forwards of the policy run in."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast_dtype)

    @torch.no_grad()
    def reference_logprobs(self, packed: PackedBatch) -> Tensor:
        """[T] float32 log-probs under the reference policy, nats."""
        policy = self.policy if self.reference is None else self.reference
        adapters = adapters_off(policy) if self.reference is None else nullcontext()
        with adapters, self.autocast():
            scores: TokenScores = policy(packed, entropy="none")
        return scores.logprobs

    @torch.no_grad()
    def score(self, responses: PromptedResponses, rows: Tensor) -> ResponseScores:
        """Log-probs and mean entropies of the responses `rows` under the current policy. Collective."""
        logprobs: dict[int, Tensor] = {}
        entropies: dict[int, Tensor] = {}
        entropy = torch.zeros(len(responses.responses))
        for part in self.micro_batches(responses, rows, "detached"):
            if part:
                logprobs |= {row: row_logprobs for row, (row_logprobs, _) in part.items()}
                of_part = {row: values for row, (_, values) in part.items() if values is not None}
                entropy[list(part)] = torch.stack([values.mean() for values in of_part.values()]).float().cpu()
                entropies |= of_part
        return ResponseScores(logprobs, entropy, entropies)

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

    def mean_entropy(self, prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> Tensor:
        """[n] float32, mean entropy per token of each response, nats. Collective, also for ranks with no responses."""
        nothing = torch.zeros(1, dtype=torch.long)
        count = len(responses)
        pairs = PromptedResponses(
            prompts=prompts or [nothing], prompt=torch.arange(max(count, 1)), responses=responses or [nothing]
        )
        return self.score(pairs, torch.arange(count)).entropy[:count]
