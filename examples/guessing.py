"""A Lightning project of its own that borrows diagnostics: `python examples/guessing.py [folder]`, seconds on a CPU.

Its policy is a table of logits that guesses the sum of two digits from one of three phrasings; it is trained with
group-relative advantages over all phrasings. From tagrpo it takes callbacks and metrics and nothing else. What they
read is made in `Guesser.roll_out` (attributes of `batch.rollouts`) and returned by `Guesser.training_step`; each
callback's docstring names its share of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from tagrpo.callbacks import (
    AnswerDiversityMonitor,
    EmbeddingDiversityMonitor,
    PassAtKEvaluator,
    RephrasingSuccessMonitor,
    RolloutRecorder,
    ThroughputMonitor,
    ZeroGradientMonitor,
)
from tagrpo.metrics import PassAtK

PHRASINGS = ("{} + {} = ?", "Add {} to {}.", "How much are {} and {}?")
SAMPLES = 8
ANSWERS = 19


@dataclass
class Batch:
    """Questions; `rollouts` are attached by the module."""

    groups: list[SimpleNamespace]
    split: str = "train"
    rollouts: Any = None


def questions(split: str, first: range) -> list[Batch]:
    """Batches of four questions `a + b`."""
    groups = [SimpleNamespace(id=f"{a}+{b}", a=a, b=b, answer=a + b) for a in first for b in range(8)]
    return [Batch(groups[i : i + 4], split) for i in range(0, len(groups), 4)]


class Guesser(LightningModule):
    """One logit per first digit, second digit, phrasing and answer."""

    def __init__(self) -> None:
        super().__init__()
        prior = torch.linspace(1.0, -1.0, len(PHRASINGS))  # later phrasings are less well understood
        digits = torch.arange(10)
        right = torch.nn.functional.one_hot(digits[:, None] + digits, ANSWERS)
        self.logits = torch.nn.Parameter(2 * right[:, :, None] + prior[:, None] * right[:, :, None])
        self.metric = PassAtK(ks=(1, 8))

    def logprobs(self, batch: Batch) -> Tensor:
        """[questions, phrasings, answers]."""
        a, b = (torch.tensor([getattr(group, name) for group in batch.groups]) for name in "ab")
        return self.logits[a, b].log_softmax(-1)

    @torch.no_grad()
    def roll_out(self, batch: Batch) -> SimpleNamespace:
        """Sample every phrasing of every question: row after row by question, phrasing, sample."""
        logprobs = self.logprobs(batch)
        rows = logprobs.exp().flatten(0, 1)
        guesses = torch.multinomial(rows, SAMPLES, replacement=True).flatten()
        prompt = torch.arange(len(rows)).repeat_interleave(SAMPLES)
        question, rephrasing = prompt // len(PHRASINGS), prompt % len(PHRASINGS)
        correct = guesses == torch.tensor([group.answer for group in batch.groups])[question]
        return SimpleNamespace(
            prompts=[
                SimpleNamespace(text=text.format(group.a, group.b), template="plain")
                for group in batch.groups
                for text in PHRASINGS
            ],
            prompt=prompt,
            question=question,
            rephrasing=rephrasing,
            token_ids=list(guesses[:, None]),
            logprobs=list(rows.log()[prompt, guesses][:, None]),
            lengths=torch.ones_like(guesses),
            truncated=torch.zeros_like(correct),
            text=[f"It is {guess}." for guess in guesses.tolist()],
            answers=[str(guess) for guess in guesses.tolist()],
            correct=correct,
            rewards=correct.float(),
            reward_terms={},
            seconds={},
        )

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:  # noqa: ARG002
        """REINFORCE with advantages over all phrasings of a question, scored under the first one."""
        batch.rollouts = rollouts = self.roll_out(batch)
        rewards = rollouts.rewards.view(len(batch.groups), -1)
        advantages = (
            (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
        ).flatten()
        guesses = torch.cat(rollouts.token_ids)
        scored = self.logprobs(batch)[rollouts.question, 0, guesses]
        loss = -(advantages * scored).mean()
        return {"loss": loss, "advantages": advantages, "score_logprob": scored.detach()}

    def test_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Sample; a callback counts, and so does a metric of the module's own."""
        batch.rollouts = self.roll_out(batch)
        first = batch.rollouts.rephrasing == 0
        self.metric.update(batch.rollouts.correct[first], batch.rollouts.question[first])

    def on_test_epoch_end(self) -> None:
        """Log pass@k of the first phrasing."""
        self.log_dict(self.metric.compute())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.3)


def one_hot_encoder() -> Any:
    """A sentence encoder for those who have none: one direction per distinct text."""

    def encode(texts: list[str]) -> Tensor:
        distinct = sorted(set(texts))
        return torch.eye(len(distinct))[[distinct.index(text) for text in texts]]

    return encode


def main(folder: Path) -> dict[str, float]:
    """Train, test, and leave metrics.csv, rollouts/, embedding_diversity.csv and test.json in `folder`."""
    seed_everything(0, verbose=False)
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=3,
        accelerator="cpu",
        logger=CSVLogger(folder, name="", version=""),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[
            ThroughputMonitor(),
            ZeroGradientMonitor(),
            RephrasingSuccessMonitor(),
            AnswerDiversityMonitor(),
            EmbeddingDiversityMonitor(one_hot_encoder, every=4, max_questions=2),
            RolloutRecorder(),
            PassAtKEvaluator(ks=(1, 8)),
        ],
    )
    module = Guesser()
    trainer.fit(module, DataLoader(questions("train", range(8)), batch_size=None))
    trainer.test(module, DataLoader(questions("digits", range(8)), batch_size=None), verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/guessing")
    for name, value in sorted(main(target).items()):
        print(f"{name:40} {value:.3f}")
