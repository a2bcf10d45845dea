"""TA-GRPO in plain torch, without Lightning and Hydra: questions → rollouts → rewards → advantages → loss → step.

python examples/plain_torch.py
"""

from functools import partial

import torch
from transformers import AutoTokenizer

from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import PlainTemplate, PromptAugmentation
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rewards import FinalAnswerReward
from tagrpo.rollouts import RolloutPipeline, SamplingConfig, TransformersEngine
from tagrpo.starter import starter_path
from tagrpo.types import QuestionBatch


def main(steps: int = 6) -> list[float]:
    """Share of correct responses in each step's rollouts: the same four questions again and again."""
    folder = str(starter_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    groups = ArithmeticSource("train", size=4, num_rephrasings=3).load()
    templates = PromptAugmentation({"plain": PlainTemplate("{question} <sep>")})
    prompts = PromptRenderer(templates, tokenizer).prompts(groups, epoch=0, num_samples=8)

    policy = CausalPolicy(load_causal_lm(folder))
    engine, decode = partial(TransformersEngine, folder), partial(tokenizer.batch_decode, skip_special_tokens=True)
    pipeline = RolloutPipeline(engine, FinalAnswerReward(), decode, SamplingConfig(max_new_tokens=40))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    options = UpdateOptions(anchor="original", mini_batches=1)
    update = PolicyUpdate(Scorer(policy), GroupAdvantage("question"), PolicyLoss(kl_coef=0.0), optimizer, options)

    correct = []
    for step in range(steps):
        rollouts = pipeline.roll_out(QuestionBatch(groups=groups, prompts=prompts), policy.model, step).rollouts
        update(rollouts, num_questions=len(groups))
        correct.append(float(rollouts.correct.float().mean()))
    pipeline.close()
    return correct


if __name__ == "__main__":
    print([round(share, 2) for share in main()])
