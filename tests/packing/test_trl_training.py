"""Trainings by TRL from the starter policy, with and without shared prefixes: the first update of one seed is the same.

AdamW divides the first gradient by its own size, so that elements whose gradient is rounding move by up to the learning
rate either way: its weights are compared where gradients are more than that.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.shell
trl = pytest.importorskip("trl", reason="needs TRL, the extra `bench`")

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402

from tagrpo.lab.tasks.arithmetic import ArithmeticSource  # noqa: E402
from tagrpo.packing.trl import share_prefixes  # noqa: E402
from tagrpo.rewards import FinalAnswerReward  # noqa: E402
from tagrpo.starter import starter_path  # noqa: E402

RATE = {"sgd": 1.0, "adamw_torch": 1e-3}


class Training(NamedTuple):
    rewards: list[float]
    losses: list[float]
    gradient: Tensor
    update: Tensor


class FirstUpdate(TrainerCallback):
    """Keeps the clipped gradient of the first optimizer step, and the weights around it."""

    def flat(self, model, of=lambda p: p):
        return torch.cat([of(p).detach().flatten() for p in model.parameters()])

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        if state.global_step == 0:
            self.gradient, self.before = self.flat(model, lambda p: p.grad), self.flat(model)

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step == 1:
            self.update = self.flat(model) - self.before


def train(folder, shared, optim):
    groups, verifier = ArithmeticSource("train", size=8).load(), FinalAnswerReward()

    def reward(completions, reference, **_):
        return [float(score.correct) for score in verifier.score_batch(completions, reference)]

    args = trl.GRPOConfig(
        output_dir=str(folder), max_steps=3, learning_rate=RATE[optim], optim=optim, beta=0.04, seed=3,
        per_device_train_batch_size=16, num_generations=8, max_completion_length=40, gradient_accumulation_steps=2,
        logging_steps=1, bf16=False, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rows = [{"prompt": f"{group.question} <sep>", "reference": list(group.answer)} for group in groups]
    policy, tokenizer = (
        kind.from_pretrained(starter_path()) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    trainer = trl.GRPOTrainer(policy, reward, args, Dataset.from_list(rows), processing_class=tokenizer)
    if shared:
        share_prefixes(trainer)
    first = FirstUpdate()
    trainer.add_callback(first)
    trainer.train()
    history = [row for row in trainer.state.log_history if "reward" in row]
    return Training(
        [row["reward"] for row in history], [row["loss"] for row in history], first.gradient, first.update
    )


@pytest.mark.parametrize("optim", RATE)
def test_the_first_update_of_a_training_is_that_of_trl(optim, tmp_path):
    theirs, ours = (train(tmp_path / str(shared), shared, optim) for shared in (False, True))
    assert len(ours.losses) == 3
    assert ours.rewards[0] == theirs.rewards[0] > 0
    assert abs(theirs.losses[0]) > 1e-3
    assert ours.losses[0] == pytest.approx(theirs.losses[0], abs=1e-6)
    # TRL's own float32 gradients are 0.9e-6 to 12e-6 of their norm away from its float64 ones, over four seeds.
    assert (ours.gradient - theirs.gradient).norm() < 2e-6 * theirs.gradient.norm()
    certain = theirs.gradient.abs() > (0 if optim == "sgd" else 1e-5 * theirs.gradient.abs().max())
    assert certain.float().mean() > 0.5
    assert theirs.update[certain].abs().max() > 1e-4
    torch.testing.assert_close(ours.update[certain], theirs.update[certain], atol=1e-6, rtol=0)
