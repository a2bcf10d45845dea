"""TA-GRPO in plain torch, without Lightning, Hydra and vLLM: each stage of the loop is a call to read.

    python examples/plain_torch.py

questions → rollouts → rewards → advantages → loss → step → weights into the engine → rollouts …

The same four questions, with three rephrasings each, are used in every step. The script prints the share of
correct responses of each step. Responses are sampled from all phrasings and scored under the original question
(TA-GRPO, Eq. 4). `RolloutPipeline` and `PolicyUpdate` do the same in trainings; they add resume, ranks, checks
and the options of other methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import PlainTemplate, PromptAugmentation
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.metrics.functional import zero_gradient_percentage
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.packing import CausalPolicy, pack
from tagrpo.packing.batch import plan_micro_batches
from tagrpo.rewards import FinalAnswerReward
from tagrpo.rollouts import SamplingConfig, TransformersEngine
from tagrpo.seeds import derive_seed
from tagrpo.starter import starter_path
from tagrpo.types import Completion, LossInputs, Prompt, QuestionGroup, Request, RewardGroups

SAMPLES = 8  # responses to each phrasing
TOKEN_BUDGET = 16384  # tokens of a micro-batch
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Scored:
    """R responses, ordered by prompt."""

    prompt: Tensor
    """[R] long, row of the sampled prompt."""
    question: Tensor
    """[R] long, row of the question."""
    token_ids: list[Tensor]
    """[R] of [T_r] long."""
    correct: Tensor
    """[R] bool, the verifier's verdict."""


def sync_weights(engine: TransformersEngine, policy: CausalPolicy) -> None:
    """Copy the weights of the policy into the engine."""
    engine.sync((name, parameter.detach()) for name, parameter in policy.model.named_parameters())


def sample(engine: TransformersEngine, prompts: Sequence[Prompt], step: int) -> list[list[Completion]]:
    """Return [P][G] responses to the prompts; the seed depends on the step alone."""
    request = Request(
        prompts=[prompt.token_ids for prompt in prompts],
        num_samples=[prompt.num_samples for prompt in prompts],
        sampling=SamplingConfig(max_new_tokens=40),
        seed=derive_seed(0, "fit", step, 0, 0),
    )
    return engine.generate(request)


def score(
    completions: Sequence[Sequence[Completion]],
    prompts: Sequence[Prompt],
    groups: Sequence[QuestionGroup],
    tokenizer: Any,
    verifier: FinalAnswerReward,
) -> Scored:
    """Compare the responses with the reference answers of their questions."""
    token_ids: list[Tensor] = []
    references: list[Sequence[str]] = []
    prompt_rows: list[int] = []
    question_rows: list[int] = []
    for row, (prompt, samples) in enumerate(zip(prompts, completions, strict=True)):
        for completion in samples:
            token_ids.append(completion.token_ids)
            references.append(groups[prompt.question].answer)
            prompt_rows.append(row)
            question_rows.append(prompt.question)
    texts = tokenizer.batch_decode(token_ids, skip_special_tokens=True)
    scores = verifier.score_batch(texts, references)
    return Scored(
        prompt=torch.tensor(prompt_rows),
        question=torch.tensor(question_rows),
        token_ids=token_ids,
        correct=torch.tensor([score.correct for score in scores]),
    )


def compute_advantages(rollouts: Scored, strategy: GroupAdvantage) -> Tensor:
    """Return [R] advantages: each reward against the rewards of its pool."""
    groups = RewardGroups(
        rewards=rollouts.correct.float(),
        correct=rollouts.correct,
        question=rollouts.question,
        prompt=rollouts.prompt,
    )
    return strategy(groups).float()


def learn(
    policy: CausalPolicy,
    optimizer: torch.optim.Optimizer,
    policy_loss: PolicyLoss,
    rollouts: Scored,
    advantages: Tensor,
    anchors: Sequence[Tensor],
) -> tuple[float, float]:
    """Make one optimizer step; return the loss and the norm of its gradient before it was clipped.

    `anchors` are the tokens of the original questions, under which all responses to a question are scored.
    """
    lengths = torch.tensor([len(ids) for ids in rollouts.token_ids])
    learned = advantages.nonzero()[:, 0]  # the others have no gradient, and need no forward
    responses = [rollouts.token_ids[row] for row in learned.tolist()]
    total = 0.0
    for part in plan_micro_batches(anchors, rollouts.question[learned], responses, TOKEN_BUDGET):
        # Each distinct prefix once, no padding.
        packed = pack(anchors, rollouts.question, rollouts.token_ids, learned[part])
        scores = policy(packed)  # log-probs of the response tokens, end to end
        inputs = LossInputs(
            logprobs=scores.logprobs,
            old_logprobs=scores.logprobs.detach(),  # unchanged since sampling: the ratio is 1
            reference_logprobs=None,
            entropy=scores.entropy,
            advantages=advantages[packed.rows],
            response=packed.response,
            lengths=packed.lengths,
            num_responses=float(len(lengths)),  # of the whole batch, so that micro-batches add up
            num_tokens=float(lengths.sum()),
        )
        loss = policy_loss(inputs).loss
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return total, float(norm)


def main(steps: int = 6) -> list[dict[str, float]]:
    """Train for some steps and return the metrics of each."""
    folder = str(starter_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    groups = ArithmeticSource("train", size=4, num_rephrasings=3).load()
    templates = PromptAugmentation({"plain": PlainTemplate("{question} <sep>")})
    prompts = PromptRenderer(templates, tokenizer).prompts(groups, epoch=0, num_samples=SAMPLES)
    anchors = [prompt.anchor_ids for prompt in prompts if prompt.rephrasing == 0]  # [B], one per question

    policy = CausalPolicy(load_causal_lm(folder))
    engine = TransformersEngine(folder)
    verifier = FinalAnswerReward()
    strategy = GroupAdvantage("question")  # TA-GRPO's pool: all responses to a question and its rephrasings
    policy_loss = PolicyLoss(kl_coef=0.0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)

    history = []
    for step in range(steps):
        sync_weights(engine, policy)
        completions = sample(engine, prompts, step)
        rollouts = score(completions, prompts, groups, tokenizer, verifier)
        advantages = compute_advantages(rollouts, strategy)
        loss, grad_norm = learn(policy, optimizer, policy_loss, rollouts, advantages, anchors)
        history.append(
            {
                "correct": float(rollouts.correct.float().mean()),
                "zero_gradient": float(zero_gradient_percentage(advantages, rollouts.question)),
                "loss": loss,
                "grad_norm": grad_norm,
            }
        )
    engine.close()
    verifier.close()
    return history


if __name__ == "__main__":
    print([round(metrics["correct"], 2) for metrics in main()])
