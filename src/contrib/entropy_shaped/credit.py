"""Larger advantages, whatever their sign, at tokens where the policy is uncertain (entropy-shaped)."""

from dataclasses import dataclass

import torch

from ...types import Credit, CreditInputs, TokenCredit


@dataclass(eq=False)
class EntropyShapedCredit(TokenCredit):
    """Credit A_t = A + min(α H_t, |A| / κ), with H_t the entropy at token t (arXiv 2506.14758, Eq. 5 and 6).

    The sign of A is kept, because κ > 1. Tokens of responses with advantage 0 have credit 0. No gradient
    flows through H_t. Departure: the paper takes the entropy of the policy that is being updated; this class
    takes the entropy of the policy before the batch's first update, so that the advantages of a token do not
    change within a batch.

    Args:
        alpha: α, above 0; the paper's is 0.4 with GRPO.
        kappa: κ, above 1; the paper's is 2.
    """

    alpha: float = 0.4
    kappa: float = 2.0

    def __post_init__(self) -> None:
        if self.alpha <= 0 or self.kappa <= 1:
            raise ValueError(
                f"Expected credit.alpha > 0 and credit.kappa > 1, but got {self.alpha} and {self.kappa}."
            )

    def __call__(self, inputs: CreditInputs) -> Credit:
        """Return the advantages of the tokens, [T]."""
        advantages = inputs.advantages[inputs.response]
        return Credit(advantages + torch.minimum(self.alpha * inputs.entropy, advantages.abs() / self.kappa))
