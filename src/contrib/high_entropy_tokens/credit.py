"""Credit only for the tokens at which the policy is least certain, the forks of its reasoning (80/20).

Departure: the authors take the highest entropies of a micro-batch on one GPU under the current policy. Here,
the entropies are those of the mini-batch on all ranks, under the policy before the batch's first update.
"""

import math
from dataclasses import dataclass

import torch

from ...distributed import sum_over_ranks
from ...modules.credit.assign import check_share, largest_over_ranks
from ...types import Credit, CreditInputs, TokenCredit


@dataclass(eq=False)
class HighEntropyCredit(TokenCredit):
    """Credit A_t = A · 1[H_t ≥ τ] · T / Σ 1[H ≥ τ], with τ the entropy that `share` of all T tokens reach.

    arXiv 2506.01939, Eq. 6.

    With this factor, the policy term is a mean over the chosen tokens under `loss.aggregation=token_mean`, as
    in the equation. KL and entropy terms are still means over all tokens. Tokens of responses with advantage
    0 take part in the ranking. All tokens with an entropy equal to τ are chosen.

    Args:
        share: ρ, above 0 and at most 1; the paper's is 0.2.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        check_share(self.share)

    def __call__(self, inputs: CreditInputs) -> Credit:
        """Return the advantages of the tokens, [T]."""
        tokens = sum_over_ranks({"tokens": float(len(inputs.entropy))})["tokens"]
        chosen = inputs.entropy >= largest_over_ranks(inputs.entropy, max(math.ceil(self.share * tokens), 1))
        count = sum_over_ranks({"chosen": float(chosen.sum())})["chosen"]
        factor = torch.where(chosen, tokens / max(count, 1.0), 0.0)
        return Credit(inputs.advantages[inputs.response] * factor)
