"""Parts of one's own, one of each kind: strategy, loss, credit, verifier, reward term, curricula, engine and others.

The YAML files in `my_configs` make them options. Run in this folder:

PYTHONPATH=. tagrpo-train --config-dir my_configs experiment=mine data=sums rollout=uniform 'callbacks=[default,longest]'
PYTHONPATH=. tagrpo-train --config-dir my_configs experiment=grpo data=sums rollout=uniform credit=shaped reward_terms=short curriculum=unsolved mismatch=tempered
PYTHONPATH=. tagrpo-train --config-dir my_configs experiment=grpo data=sums rollout=uniform curriculum=easier data.num_rephrasings=1
PYTHONPATH=. tagrpo-train --config-dir my_configs experiment=grpo data=sums reward=equations
PYTHONPATH=. tagrpo-train --config-dir my_configs experiment=grpo data=sums rollout=uniform +rollout/reformulator=hinted
"""  # noqa: E501

import re

import torch
from lightning.pytorch import Callback

from tagrpo.datamodules.memory import Curriculum
from tagrpo.datamodules.sources.base import Source
from tagrpo.metrics import MeanByName
from tagrpo.modules.advantages.pools import pool_index, pool_size, pool_sum
from tagrpo.modules.mismatch import Corrected, MismatchCorrection
from tagrpo.rewards import FinalAnswerReward
from tagrpo.runs.scalars import log_scalars
from tagrpo.types import (
    AdvantageStrategy,
    Ask,
    Completion,
    Credit,
    CreditInputs,
    Engine,
    Loss,
    LossInputs,
    LossOutputs,
    QuestionBatch,
    QuestionGroup,
    Reformulator,
    Request,
    RewardGroups,
    RewardTerm,
    Score,
    TokenCredit,
    ignore,
)

EQUATION = re.compile(r"(\d{1,9}) ([+-]) (\d{1,9}) = (-?\d{1,9})")


class MaxRL(AdvantageStrategy):
    """Advantages (r − r̄) / r̄ over the responses to a question; 0 if none is correct (arXiv 2602.02710)."""

    def __call__(self, groups: RewardGroups) -> torch.Tensor:
        index, num_pools = pool_index(groups, "question")
        mean = (pool_sum(groups.rewards, index, num_pools) / pool_size(index, num_pools))[index]
        return torch.where(mean > 0, (groups.rewards - mean) / mean, 0.0)


class Reinforce(Loss):
    """Loss −A log π, mean over tokens, without ratio and clip."""

    by_token = True  # a sum over tokens, so that logits are not computed again in the backward

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        advantages = inputs.advantages[inputs.response]
        weights = 1.0 if inputs.weights is None else inputs.weights
        terms = -advantages * inputs.logprobs * weights
        sums = {"tokens": torch.ones_like(terms).sum(), "gain": advantages.sum()}
        return LossOutputs(loss=terms.sum() / inputs.num_tokens, sums=sums)


class LongestResponse(Callback):
    """Callback that logs `longest/tokens`: tokens of each rank's longest response, mean over ranks."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        mean = MeanByName(["longest/tokens"])
        mean.update({"longest/tokens": batch.rollouts.lengths.max()[None].double()})
        log_scalars(pl_module, mean.compute())


class Sums(Source):
    """Source of the sums a + 2 for a from 1 to `size`."""

    def __init__(self, size: int) -> None:
        self.size = size

    def load(self) -> list[QuestionGroup]:
        groups = []
        for a in range(1, self.size + 1):
            groups.append(QuestionGroup(f"{a}+2", f"Compute {a} + 2.", (f"Compute 2 + {a}.",), (str(a + 2),)))
        return groups


class EntropyShaped(TokenCredit):
    """Credit A + min(αH, |A| / κ) of each token, H without gradient (arXiv 2506.14758, Eq. 5 and 6)."""

    def __init__(self, alpha: float, kappa: float) -> None:
        self.alpha = alpha
        self.kappa = kappa

    def __call__(self, inputs: CreditInputs) -> Credit:
        advantages = inputs.advantages[inputs.response]
        return Credit(advantages + torch.minimum(self.alpha * inputs.entropy, advantages.abs() / self.kappa))


class Equations(FinalAnswerReward):
    """Verifier of the final answer and of every equation in the response."""

    def __call__(self, response, reference) -> Score:
        score = super().__call__(response, reference)
        for first, sign, second, result in EQUATION.findall(response):
            expected = int(first) + int(sign + second)
            if int(result) != expected:
                return score._replace(correct=False)
        return score


class CostPerToken(RewardTerm):
    """Reward term of −cost for each token of a correct response."""

    def __init__(self, cost: float) -> None:
        self.cost = cost

    def __call__(self, rollouts, groups) -> torch.Tensor:
        return -self.cost * rollouts.lengths * rollouts.correct


class UntilSolved(Curriculum):
    """Curriculum that serves a question until all responses to it were correct once."""

    def chance(self, record) -> float:
        return float(not record.solved_in_full)


class EasierFirst(Curriculum):
    """Curriculum that asks the first reformulation instead of a question until one response was correct."""

    def asked(self, group, record):
        if record.correct or not group.rephrasings:
            return group.select_rephrasings([])
        return group._replace(question=group.rephrasings[0], rephrasings=(), kinds=())


class Hinted(Reformulator):
    """Reformulator that asks an unsolved question again, with the last character of its answer."""

    def extend(self, batch: QuestionBatch, ask: Ask) -> list[QuestionBatch]:
        solved = set(batch.rollouts.question[batch.rollouts.correct].tolist())
        hinted = []
        for row, group in enumerate(batch.groups):
            if row not in solved:
                text = f"{group.question} It ends in {group.answer[0][-1]}"
                hinted.append(group._replace(id=f"{group.id} hinted", rephrasings=(text,), kinds=("hint",)))
        return [ask(hinted)]


class Tempered(MismatchCorrection):
    """Correction by weights ρ^½: less variance than ρ, and a bias."""

    def of_tokens(self, log_ratio: torch.Tensor, response: torch.Tensor) -> Corrected:
        return super().of_tokens(log_ratio / 2, response)


class UniformEngine(Engine):
    """Engine that draws tokens uniformly, whatever the policy."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def sync(self, parameters):
        list(parameters)  # collective: every rank must exhaust it

    def generate(self, request: Request, deliver=ignore):
        generator = torch.Generator().manual_seed(request.seed)
        length = request.sampling.max_new_tokens
        logprobs = torch.full((length,), -torch.tensor(float(self.vocabulary)).log())
        responses = []
        for count in request.num_samples:
            drawn = torch.randint(4, self.vocabulary, (count, length), generator=generator)
            responses.append([Completion(token_ids=row, logprobs=logprobs, truncated=True) for row in drawn])
        return responses
