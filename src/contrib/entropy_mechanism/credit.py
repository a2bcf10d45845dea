"""Clip-Cov and KL-Cov: restrain the few tokens whose advantage and log-prob covary most.

Updates at such tokens reduce the policy's entropy.

Departure: the authors rank the tokens of a micro-batch on one GPU under the current policy, and their
Clip-Cov leaves out clipped tokens. Here, the tokens of the mini-batch on all ranks are ranked under the
policy before the batch's first update, so that the choice depends neither on micro-batches nor on ranks.
"""

import json
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from ...distributed import sum_over_ranks
from ...modules.credit.assign import check_share, largest_over_ranks
from ...seeds import derive_seed
from ...types import Credit, CreditInputs, TokenCredit


def token_covariances(inputs: CreditInputs) -> tuple[Tensor, float]:
    """Return (A_t − Ā)(log π_t − mean log π), [T] float64, and the number of tokens. Collective.

    Means and number are over the tokens of all ranks. arXiv 2505.22617, Eq. 10.
    """
    advantages, logprobs = inputs.advantages.double()[inputs.response], inputs.logprobs.double()
    sums = {
        "advantage": float(advantages.sum()),
        "logprob": float(logprobs.sum()),
        "tokens": float(len(logprobs)),
    }
    sums = sum_over_ranks(sums)
    count = max(sums["tokens"], 1.0)
    return (advantages - sums["advantage"] / count) * (logprobs - sums["logprob"] / count), sums["tokens"]


@dataclass(eq=False)
class ClipCovCredit(TokenCredit):
    """Credit of 0 for `share` of the tokens, drawn from the tokens with low < covariance < high.

    arXiv 2505.22617, Eq. 11 and 12. If the range has fewer tokens than `share` of all tokens, all of them are
    drawn; otherwise at least one token is drawn. Tokens without credit still count in the normalisers, as in
    the authors' code. The choice depends on `seed`, training progress, prompt and response, so that ranks and
    resumed runs agree.

    Args:
        share: Share of all tokens of the mini-batch, above 0.
        low: Tokens with smaller covariances keep their credit.
        high: Tokens with larger covariances keep their credit.
        seed: Seed for drawing tokens.
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.low >= self.high:
            raise ValueError(
                f"Expected credit.low to be less than credit.high, but got {self.low} and {self.high}."
            )

    def __call__(self, inputs: CreditInputs) -> Credit:
        """Return the advantages, [T], with 0 at the tokens that were drawn."""
        covariances, tokens = token_covariances(inputs)
        candidates = ((covariances > self.low) & (covariances < self.high)).nonzero()[:, 0]
        lots = self._lots(inputs, candidates)
        drawn = candidates[lots >= largest_over_ranks(lots, max(int(self.share * tokens), 1))]
        advantages = inputs.advantages[inputs.response]
        advantages[drawn] = 0.0
        return Credit(advantages)

    def _lots(self, inputs: CreditInputs, candidates: Tensor) -> Tensor:
        """Return a random number per candidate, [c] float64 in 0..1, seeded by prompt and response."""
        progress = round(inputs.groups.progress * 2**40)
        seen: Counter[str] = Counter()
        lots = torch.zeros(len(inputs.response), dtype=torch.float64)
        for row in inputs.response[candidates].unique().tolist():
            text = json.dumps([inputs.prompts[row].tolist(), inputs.responses[row].tolist()])
            generator = torch.Generator().manual_seed(derive_seed(self.seed, progress, text, seen[text]))
            seen[text] += 1
            tokens = inputs.response == row
            lots[tokens] = torch.rand(int(tokens.sum()), generator=generator, dtype=torch.float64)
        return lots[candidates]


@dataclass(eq=False)
class KLCovCredit(TokenCredit):
    """Penalty β |log π_θ − log π_old| in the loss, for the `share` of tokens with the largest covariances.

    arXiv 2505.22617, Eq. 13 and 14. All ties at the bound are taken, and only positive covariances count. The
    penalty has no gradient if the ratio is exactly 1, so that it does not act in a first mini-batch: use at
    least two (`policy.mini_batches`).

    Args:
        share: Share of all tokens of the mini-batch, above 0.
        coef: β, above 0.
    """

    share: float = 2e-3
    coef: float = 1.0

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.coef <= 0:
            raise ValueError(f"Expected credit.coef to be greater than 0, but got {self.coef}.")

    def __call__(self, inputs: CreditInputs) -> Credit:
        """Return the unchanged advantages, [T], and the coefficient of the penalty at each token, [T]."""
        covariances, tokens = token_covariances(inputs)
        bound = largest_over_ranks(covariances, max(int(self.share * tokens), 1))
        largest = (covariances >= bound) & (covariances > 0)
        return Credit(inputs.advantages[inputs.response], {"log_ratio": self.coef * largest})
