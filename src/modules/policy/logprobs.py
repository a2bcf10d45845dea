"""Log-probs and entropies of responses under the policy or its frozen reference, in micro-batches."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...distributed import max_over_ranks
from ...packing.batch import PackedBatch, dummy, pack, plan_micro_batches
from ...packing.head import EntropyMode, TokenScores
from ...packing.policy import CausalPolicy
from .lora import adapters_off


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

    @property
    def response(self) -> Tensor:
        """[T] long, row of each token's response; responses are concatenated."""
        return torch.repeat_interleave(self.lengths)

    def tokens(self, rows: Tensor) -> Tensor:
        """Return the positions of the tokens of responses `rows` among all responses' tokens, [t] long."""
        ends, counts = self.lengths.cumsum(0)[rows], self.lengths[rows]
        return torch.arange(int(counts.sum())) + (ends - counts.cumsum(0)).repeat_interleave(counts)


class ResponseScores(NamedTuple):
    """Log-probs and entropies under the current policy, nats, on the CPU; zero for unscored responses."""

    logprobs: Tensor
    """[T] float32, log-probs of all tokens, with responses concatenated."""
    entropies: Tensor
    """[T] float32, entropies of all tokens, in the same order."""
    entropy: Tensor
    """[R] float32, mean of a response's `entropies`."""


class Scorer:
    """Scorer of responses in micro-batches; all ranks run the same number of forwards.

    Args:
        policy: The trained policy.
        reference: The frozen reference policy. None takes the policy with its adapters off.
        token_budget: Tokens per forward on one rank; see `plan_micro_batches`.
        device: Device of the forwards; None is that of the policy's parameters.
        autocast_dtype: Type of the computation; parameters keep their type. None computes in the type of the
            parameters.
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
        self.policy, self.reference = policy, reference
        self.token_budget, self.autocast_dtype = token_budget, autocast_dtype
        self.device = device or next(policy.parameters()).device

    def pack(self, responses: PromptedResponses, rows: Tensor) -> Iterator[tuple[PackedBatch, bool]]:
        """Pack the responses `rows` into micro-batches; yield each with whether it is the last. Collective.

        Every micro-batch is within the token budget, and has ascending rows. All ranks yield equally many
        micro-batches, at least one; ranks with fewer responses yield dummies without rows at the end.
        """
        given = (responses.prompts, responses.prompt, responses.responses)
        chosen = [responses.responses[row] for row in rows.tolist()]
        shares = self.policy.shares_prefix
        parts = plan_micro_batches(
            responses.prompts, responses.prompt[rows], chosen, self.token_budget, shares
        )
        count = max(int(max_over_ranks(len(parts))), 1)
        for part in parts:
            count -= 1
            yield pack(*given, rows[part].sort().values, self.device), count == 0
        while count:
            count -= 1
            yield dummy(self.device), count == 0

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context that forwards of the policy run in."""
        return torch.autocast(self.device.type, self.autocast_dtype) if self.autocast_dtype else nullcontext()

    @torch.no_grad()
    def reference_logprobs(self, packed: PackedBatch) -> Tensor:
        """Return the log-probs under the reference policy in nats, [T] float32."""
        policy = self.reference or self.policy
        with nullcontext() if self.reference else adapters_off(policy), self.autocast():
            scores: TokenScores = policy(packed, entropy="none")
        return scores.logprobs

    @torch.no_grad()
    def score(self, responses: PromptedResponses, rows: Tensor) -> ResponseScores:
        """Return the log-probs and entropies of the responses `rows`. Collective."""
        tokens = responses.tokens(rows).split(responses.lengths[rows].tolist())
        of_row = dict(zip(rows.tolist(), tokens, strict=True))
        places = [rows[:0]]
        found = [torch.zeros(2, 0, device=self.device)]
        for packed, scores in self.micro_batches(responses, rows, "detached"):
            assert scores.entropy is not None
            places += [of_row[row] for row in packed.rows.tolist()]
            found.append(torch.stack([scores.logprobs, scores.entropy]))
        values = torch.cat(found, 1).cpu()
        flat = values.new_zeros(2, int(responses.lengths.sum()))
        flat[:, torch.cat(places)] = values
        means = [float(entropies.mean()) for entropies in flat[1].split(responses.lengths.tolist())]
        return ResponseScores(flat[0], flat[1], torch.tensor(means))

    def micro_batches(
        self, responses: PromptedResponses, rows: Tensor, entropy: EntropyMode = "none"
    ) -> Iterator[tuple[PackedBatch, TokenScores]]:
        """Yield the responses `rows` and their scores, with gradient, in micro-batches. Collective."""
        for packed, _ in self.pack(responses, rows):
            with self.autocast():
                scores: TokenScores = self.policy(packed, entropy=entropy)
            if len(packed.rows):  # else the forward only matched that of another rank
                yield packed, scores
