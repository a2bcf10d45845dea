"""Advantages from verdicts alone, without a baseline: weights for correct and for wrong responses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...modules.advantages.pools import as_rewards
from ...types import AdvantageStrategy, RewardGroups


@dataclass(eq=False)
class VerdictAdvantage(AdvantageStrategy):
    """Advantages from the verdict alone: `correct` or `wrong`, without a baseline (arXiv 2506.01347).

    | method | correct | wrong |
    |---|---|---|
    | PSR, positive sample reinforcement | 1 | 0 |
    | NSR, negative sample reinforcement | 0 | −1 |
    | W-REINFORCE | λ = 0.1 | −1 |
    | REINFORCE | λ = 1 | −1 |

    The table follows the authors' code (TianHongZXY/RLVR-Decomposed); the paper was not read. The expected
    gradient is (`correct` − `wrong`) · ∇p for every p: PSR and NSR differ in variance, and in their effect
    under a clipped or token-averaged loss. There is no pool: the policy learns also from a question whose
    responses are all wrong, unless `wrong` is 0. Shaped rewards are not read.

    Args:
        correct: Advantage of a correct response.
        wrong: Advantage of a wrong response, less than `correct`.

    Raises:
        ValueError: if `correct` does not exceed `wrong`: the policy would learn wrong answers.
    """

    reads_rewards = False
    correct: float = 1.0
    wrong: float = -1.0

    def __post_init__(self) -> None:
        if not self.correct > self.wrong:
            raise ValueError(
                f"Expected advantage.correct to exceed advantage.wrong, but got {self.correct} and {self.wrong}."
            )

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        values = torch.tensor([self.wrong, self.correct], dtype=torch.float64)
        return as_rewards(values[groups.correct.long()], groups)
