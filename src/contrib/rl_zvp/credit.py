"""Credit in pools whose rewards are all equal, from the entropy at each token (RL-ZVP)."""

from dataclasses import dataclass
from typing import Literal

import torch

from ...modules.advantages.pools import pool_index, uniform_pools
from ...types import Credit, CreditInputs, TokenCredit
from ...types.checks import check_choice


@dataclass(eq=False)
class ZeroVarianceCredit(TokenCredit):
    """Credit in a pool of equal rewards: A_t = α H_t if correct, −α (max_k H_k − H_t) if wrong.

    arXiv 2509.21880, Eq. 5. The maximum is over the tokens of the response, and `correct` decides between the
    two cases. Other pools keep their advantages. The entropies come from the policy before the batch's first
    update (in the authors' code, from the forward pass of the update). A wrong response has no gradient if it
    has one token, or if its entropies are all equal.

    Args:
        alpha: α, above 0; the paper tries 0.05 to 0.3 and uses 0.1.
        group_by: The pool: `question` or `prompt`, the same as for the advantages.
    """

    alpha: float = 0.1
    group_by: Literal["question", "prompt"] = "question"

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ValueError(f"Expected credit.alpha to be greater than 0, but got {self.alpha}.")
        check_choice("group_by", self.group_by, ("question", "prompt"), group="credit")

    def __call__(self, inputs: CreditInputs) -> Credit:
        """Return the advantages of the tokens, [T]."""
        index, num_pools = pool_index(inputs.groups, self.group_by)
        uniform = uniform_pools(inputs.groups.rewards, index, num_pools)[index][inputs.response]
        largest = inputs.entropy.new_zeros(len(index)).scatter_reduce_(
            0, inputs.response, inputs.entropy, "amax"
        )
        correct = inputs.groups.correct[inputs.response]
        shaped = self.alpha * torch.where(correct, inputs.entropy, inputs.entropy - largest[inputs.response])
        return Credit(torch.where(uniform, shaped, inputs.advantages[inputs.response]))
