"""The data module: question groups with their rephrasings, rendered and tokenised, in resumable batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..types import Prompt, QuestionBatch, QuestionGroup
from .loader import QuestionLoader
from .sources.base import Source
from .templates import Template

NUM_NAMED = 5
"""Excluded questions that a message names; the report has all of them."""


class QuestionDataModule(LightningDataModule):
    """Serves `QuestionBatch`es: a question and its rephrasings always in one batch, on one rank.

    A question whose prompt is longer than `max_prompt_tokens` is left out, a rephrasing that is too long only
    itself; both are counted in `report` and named in the log, nothing is cut.

    Args:
        train: Source of the training questions.
        evaluation: Split name → source of its questions; used for validation and test.
        tokenizer: Folder or hub name of the policy's tokenizer.
        template: Renders questions as prompts.
        batch_size: Questions per iteration, over all ranks.
        samples_per_prompt: G, responses drawn from each prompt in training.
        num_rephrasings: N, the rephrasings used of each question; questions that have fewer use what they have.
        evaluation_samples: Responses drawn per evaluation question.
        evaluation_batch_size: Evaluation questions sampled at a time, over all ranks.
        max_prompt_tokens: Longest prompt.
        seed: Of the training order.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self,
        train: Source,
        evaluation: Mapping[str, Source],
        tokenizer: str,
        template: Template,
        batch_size: int = 256,
        samples_per_prompt: int = 8,
        num_rephrasings: int = 3,
        evaluation_samples: int = 32,
        evaluation_batch_size: int = 64,
        max_prompt_tokens: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, low in (
            ("batch_size", batch_size, 1),
            ("samples_per_prompt", samples_per_prompt, 1),
            ("num_rephrasings", num_rephrasings, 0),
            ("evaluation_samples", evaluation_samples, 1),
            ("evaluation_batch_size", evaluation_batch_size, 1),
        ):
            if value < low:
                raise ValueError(f"Expected data.{name} to be at least {low}, but got {value}.")
        self.train_source = train
        self.evaluation_sources = dict(evaluation)
        self.tokenizer_path = tokenizer
        self.template = template
        self.batch_size = batch_size
        self.samples_per_prompt = samples_per_prompt
        self.num_rephrasings = num_rephrasings
        self.evaluation_samples = evaluation_samples
        self.evaluation_batch_size = evaluation_batch_size
        self.max_prompt_tokens = max_prompt_tokens
        self.seed = seed
        self.report: dict[str, dict[str, Any]] = {}
        self._splits: dict[str, list[QuestionGroup]] = {}
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._state: dict[str, Any] | None = None
        self._train_loader: QuestionLoader | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer, loaded on first use."""
        if self._tokenizer is None:
            self._tokenizer = AutoTokenizer.from_pretrained(self.tokenizer_path, trust_remote_code=False)
        return self._tokenizer

    def setup(self, stage: str) -> None:
        """Load the splits that `stage` needs and leave out what does not fit."""
        if stage == "fit" and "train" not in self._splits:
            self._splits["train"] = self._fitting("train", self.train_source, self.num_rephrasings)
        for name, source in self.evaluation_sources.items():
            if name not in self._splits:
                self._splits[name] = self._fitting(name, source, 0)

    def _fitting(self, split: str, source: Source, num_rephrasings: int) -> list[QuestionGroup]:
        """Questions of `source` whose prompts fit, each with at most `num_rephrasings` that fit."""
        kept, too_long, dropped, lengths = [], [], 0, []
        groups = source.load()
        for group in groups:
            if (length := len(self._encode(group.question)[1])) > self.max_prompt_tokens:
                too_long.append(group.id)
                continue
            wanted = group.rephrasings[:num_rephrasings]
            fitting = tuple(q for q in wanted if len(self._encode(q)[1]) <= self.max_prompt_tokens)
            dropped += len(wanted) - len(fitting)
            lengths.append(length)
            kept.append(group._replace(rephrasings=fitting))
        if not kept:
            raise ValueError(
                f"Expected questions in the split `{split}`, but {len(groups)} were read and {len(too_long)} of them "
                f"are longer than data.max_prompt_tokens={self.max_prompt_tokens}. Raise it or check the source."
            )
        self.report[split] = {
            "read": len(groups),
            "kept": len(kept),
            "excluded_too_long": too_long,
            "rephrasings_too_long": dropped,
            "rephrasings": dict(sorted(Counter(len(group.rephrasings) for group in kept).items())),
            "prompt_tokens": {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)},
        }
        if too_long or dropped:
            rank_zero_warn(
                f"{split}: left out {len(too_long)} questions and {dropped} rephrasings longer than "
                f"{self.max_prompt_tokens} tokens, among them {', '.join(too_long[:NUM_NAMED]) or 'no question'}."
            )
        rank_zero_info(
            f"{split}: {len(kept)} of {len(groups)} questions, rephrasings {self.report[split]['rephrasings']}."
        )
        return kept

    def _encode(self, question: str) -> tuple[str, Tensor]:
        text = self.template.render(question, self.tokenizer)
        # The template spells special tokens out; adding them here would double them.
        return text, torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long)

    def _batch(
        self,
        groups: Sequence[QuestionGroup],
        *,
        split: str,
        num_samples: int,
    ) -> QuestionBatch:
        """Render the prompts of `groups`: the original first, then its rephrasings."""
        prompts = []
        for row, group in enumerate(groups):
            _, anchor = self._encode(group.question)
            for variant, question in enumerate((group.question, *group.rephrasings)):
                text, ids = self._encode(question)
                prompts.append(Prompt(row, variant, self.template.name, text, ids, anchor, num_samples))
        return QuestionBatch(groups=list(groups), prompts=prompts, split=split)

    @property
    def iterations_per_epoch(self) -> int:
        """Batches of a training epoch."""
        return len(self._splits["train"]) // self.batch_size

    def train_dataloader(self) -> QuestionLoader:
        """The resumable loader of the training questions."""
        if self._train_loader is None:
            self._train_loader = self._loader("train", self.batch_size, self.samples_per_prompt, training=True)
        return self._train_loader

    def val_dataloader(self) -> list[QuestionLoader]:
        """One loader per evaluation split, in the order of `evaluation`; batches carry the split's name."""
        return [
            self._loader(name, self.evaluation_batch_size, self.evaluation_samples, training=False)
            for name in self.evaluation_sources
        ]

    def test_dataloader(self) -> list[QuestionLoader]:
        """The same as `val_dataloader`."""
        return self.val_dataloader()

    def _loader(self, split: str, batch_size: int, num_samples: int, training: bool) -> QuestionLoader:
        return QuestionLoader(
            self._splits[split],
            partial(self._batch, split=split, num_samples=num_samples),
            batch_size,
            shuffle=training,
            drop_last=training,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
        )
