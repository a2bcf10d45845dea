"""The data module: question groups with their rephrasings, rendered and tokenised, in resumable batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..distributed import gather_objects
from ..types import Prompt, QuestionBatch, QuestionGroup
from .loader import QuestionLoader
from .neighbours import AdaptiveNeighbours
from .report import NUM_NAMED, add_overlaps, cautions, split_report, summary
from .sources.base import Source
from .templates import PromptAugmentation, Template

CHUNK = 1024
"""Prompts tokenised at a time while lengths are measured, so that their tokens are not all in memory at once."""


class QuestionDataModule(LightningDataModule):
    """Serves `QuestionBatch`es: a question and its rephrasings always in one batch, on one rank.

    A question whose prompt is longer than `max_prompt_tokens` is left out, a rephrasing that is too long only itself,
    and nothing is cut; where there are several templates, the longest prompt counts. `report` tells for each split what
    was read, kept and left out, and why, the fingerprint of what is kept, and which test questions the training
    questions hold already. It is logged in short, and written to `data.json` in the run directory.

    Args:
        train: Source of the training questions; None for evaluation alone.
        evaluation: Split name → source of its questions; used for validation and test.
        tokenizer: Folder or hub name of the policy's tokenizer.
        template: Renders questions as prompts, or draws a template for each.
        evaluation_template: The same for evaluation; None is `template`, of several the first.
        batch_size: Questions per iteration, over all ranks.
        samples_per_prompt: G, responses drawn from each variant of a question in training.
        num_rephrasings: N, the rephrasings used of each question: its first N. None uses all there are.
        on_fewer_rephrasings: Where a question has fewer than N that fit, `use` those, or raise an `error`.
        evaluation_samples: Responses drawn per evaluation question.
        evaluation_batch_size: Evaluation questions sampled at a time, over all ranks.
        max_prompt_tokens: Longest prompt.
        max_evaluation_prompt_tokens: Longest prompt of evaluation questions; None is `max_prompt_tokens`.
        neighbours: Chooses how many of the N rephrasings a batch uses of each question, by what `observe` has seen; its
            state is part of checkpoints. None uses all N.
        shuffle: Whether each training epoch has an order of its own; else the source's.
        seed: Of the training order.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        train: Source | None,
        evaluation: Mapping[str, Source],
        tokenizer: str,
        template: Template | PromptAugmentation,
        evaluation_template: Template | PromptAugmentation | None = None,
        batch_size: int = 256,
        samples_per_prompt: int = 8,
        num_rephrasings: int | None = 3,
        on_fewer_rephrasings: Literal["use", "error"] = "use",
        evaluation_samples: int = 32,
        evaluation_batch_size: int = 64,
        max_prompt_tokens: int = 512,
        neighbours: AdaptiveNeighbours | None = None,
        shuffle: bool = True,
        seed: int = 0,
        max_evaluation_prompt_tokens: int | None = None,
    ) -> None:
        super().__init__()
        for name, value, low in (
            ("batch_size", batch_size, 1),
            ("samples_per_prompt", samples_per_prompt, 1),
            ("num_rephrasings", num_rephrasings, 0),
            ("evaluation_samples", evaluation_samples, 1),
            ("evaluation_batch_size", evaluation_batch_size, 1),
        ):
            if value is not None and value < low:
                raise ValueError(f"Expected data.{name} to be at least {low}, but got {value}.")
        if on_fewer_rephrasings not in ("use", "error"):
            raise ValueError(
                f"Expected data.on_fewer_rephrasings to be use or error, but got {on_fewer_rephrasings!r}."
            )
        self.train_source = train
        self.evaluation_sources = dict(evaluation)
        self.tokenizer_path = tokenizer
        self.templates = _as_augmentation(template)
        self.evaluation_templates = _only_first(self.templates)
        if evaluation_template is not None:
            self.evaluation_templates = _as_augmentation(evaluation_template)
        self.batch_size = batch_size
        self.samples_per_prompt = samples_per_prompt
        self.num_rephrasings = num_rephrasings
        self.on_fewer_rephrasings = on_fewer_rephrasings
        self.evaluation_samples = evaluation_samples
        self.evaluation_batch_size = evaluation_batch_size
        self.max_prompt_tokens = max_prompt_tokens
        self.max_evaluation_prompt_tokens = max_evaluation_prompt_tokens or max_prompt_tokens
        self.neighbours = neighbours
        self.shuffle = shuffle
        self.seed = seed
        self.report: dict[str, dict[str, Any]] = {}
        self._splits: dict[str, list[QuestionGroup]] = {}
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._train_loader: QuestionLoader | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer, loaded on first use."""
        if self._tokenizer is None:
            self._tokenizer = AutoTokenizer.from_pretrained(self.tokenizer_path, trust_remote_code=False)
        return self._tokenizer

    # ------------------------------------------------------------------ reading

    def setup(self, stage: str) -> None:
        """Load the splits that `stage` needs and leave out what does not fit."""
        if stage == "fit" and "train" not in self._splits:
            if self.train_source is None:
                raise ValueError("Expected a source of training questions in data.train, but it is null.")
            self._splits["train"] = self._fitting("train", self.train_source, self.num_rephrasings, self.templates)
            self._check_rephrasings(self._splits["train"])
        for name, source in self.evaluation_sources.items():
            if name not in self._splits:
                self._splits[name] = self._fitting(name, source, 0, self.evaluation_templates)
        for caution in add_overlaps(self.report, self._splits):
            rank_zero_warn(caution)
        if self.trainer is not None and self.trainer.is_global_zero:
            path = Path(self.trainer.default_root_dir) / "data.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _fitting(
        self, split: str, source: Source, num_rephrasings: int | None, templates: PromptAugmentation
    ) -> list[QuestionGroup]:
        """Questions of `source` whose prompts fit, each with at most `num_rephrasings` that fit."""
        training = split == "train"
        limit = self.max_prompt_tokens if training else self.max_evaluation_prompt_tokens
        groups = [g._replace(rephrasings=g.rephrasings[:num_rephrasings]) for g in source.load()]
        lengths = iter(self._longest_prompts([q for g in groups for q in (g.question, *g.rephrasings)], templates))
        kept, too_long, dropped, used = [], [], 0, []
        for group in groups:
            original, *others = [next(lengths) for _ in range(1 + len(group.rephrasings))]
            if original > limit:
                too_long.append(group.id)
                continue
            fits = [length <= limit for length in others]
            dropped += fits.count(False)
            used += [original, *(length for length, fit in zip(others, fits, strict=True) if fit)]
            rephrasings = tuple(q for q, fit in zip(group.rephrasings, fits, strict=True) if fit)
            kept.append(group._replace(rephrasings=rephrasings))
        if not kept:
            option = f"data.max_{'' if training else 'evaluation_'}prompt_tokens"
            raise ValueError(
                f"Expected questions in the split `{split}`, but {len(groups)} were read and {len(too_long)} of them "
                f"are longer than {option}={limit}. Raise it or check the source."
            )
        self.report[split] = split_report(source, groups, kept, too_long, dropped, used)
        rank_zero_info(summary(split, self.report[split]))
        for caution in cautions(split, self.report[split], limit):
            rank_zero_warn(caution)
        return kept

    def _longest_prompts(self, questions: Sequence[str], templates: PromptAugmentation) -> list[int]:
        """Tokens of each question in the template that makes it longest."""
        longest = [0] * len(questions)
        for template in templates.templates.values():
            for start in range(0, len(questions), CHUNK):
                texts = [template.render(q, self.tokenizer) for q in questions[start : start + CHUNK]]
                for row, ids in enumerate(self.tokenizer(texts, add_special_tokens=False)["input_ids"], start):
                    longest[row] = max(longest[row], len(ids))
        return longest

    def _check_rephrasings(self, groups: Sequence[QuestionGroup]) -> None:
        """Refuse questions without the rephrasings that were asked for.

        Raises:
            ValueError: some have fewer than N and that is an error, or none has any, which would train another method.
        """
        if self.num_rephrasings == 0:
            return
        fewer = [group.id for group in groups if len(group.rephrasings) < (self.num_rephrasings or 1)]
        none_at_all = not any(group.rephrasings for group in groups)
        if none_at_all or (fewer and self.on_fewer_rephrasings == "error"):
            named = ", ".join(fewer[:NUM_NAMED])
            raise ValueError(
                f"Expected data.num_rephrasings={self.num_rephrasings} rephrasings of each training question, but "
                f"{'none has any' if none_at_all else f'{len(fewer)} of {len(groups)} have fewer, such as {named}'}. "
                "Add rephrasings to the source, lower data.num_rephrasings (0 for none)"
                f"{'.' if none_at_all else ', or set data.on_fewer_rephrasings=use.'}"
            )

    # ------------------------------------------------------------------ batches

    def _encode(self, text: str) -> Tensor:
        # The template spells special tokens out; adding them here would double them.
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long)

    def _batch(self, groups: Sequence[QuestionGroup], epoch: int, *, split: str, training: bool) -> QuestionBatch:
        """Render the prompts of `groups`: the original first, then its rephrasings."""
        templates = self.templates if training else self.evaluation_templates
        num_samples = self.samples_per_prompt if training else self.evaluation_samples
        epoch = epoch if training else 0  # every evaluation asks the same prompts
        groups = [self._with_neighbours(group) for group in groups] if training else list(groups)
        prompts = []
        for row, group in enumerate(groups):
            questions = (group.question, *group.rephrasings)
            shares = templates.assign(group.id, epoch, len(questions), num_samples)
            anchors = {
                name: self._encode(templates.templates[name].render(group.question, self.tokenizer))
                for name in dict.fromkeys(chain.from_iterable(shares))
            }
            for variant, (question, share) in enumerate(zip(questions, shares, strict=True)):
                for name, count in share.items():
                    text = templates.templates[name].render(question, self.tokenizer)
                    ids = self._encode(text) if variant else anchors[name]
                    prompts.append(Prompt(row, variant, name, text, ids, anchors[name], count))
        return QuestionBatch(groups=groups, prompts=prompts, split=split)

    def _with_neighbours(self, group: QuestionGroup) -> QuestionGroup:
        if self.neighbours is None:
            return group
        count = self.neighbours.count(group.id, len(group.rephrasings))
        return group._replace(rephrasings=group.rephrasings[:count])

    # ------------------------------------------------------------------ rephrasings by success

    def observe(self, batch: QuestionBatch) -> None:
        """Tell `neighbours` how the original of each question in a rolled-out training batch did. Collective.

        Called with every batch that was sampled, whether it is learned from or not. Past successes that were replayed
        do not count. All ranks hear of all questions: in the next epoch a question may be on another rank.
        """
        rollouts = batch.rollouts
        if self.neighbours is None or rollouts is None:
            return
        sampled = (rollouts.variant == 0) & ~rollouts.replayed
        rates = {}
        for row, group in enumerate(batch.groups):
            verdicts = rollouts.correct[sampled & (rollouts.question == row)]
            if len(verdicts):
                rates[group.id] = float(verdicts.double().mean())
        for part in gather_objects(rates):
            for question_id, rate in part.items():
                self.neighbours.update(question_id, rate)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the loader's place: the running success rates."""
        return {} if self.neighbours is None else {"neighbours": self.neighbours.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the rates of a checkpoint; one without any starts with none."""
        if self.neighbours is not None and "neighbours" in state_dict:
            self.neighbours.load_state_dict(state_dict["neighbours"])

    # ------------------------------------------------------------------ loaders

    @property
    def iterations_per_epoch(self) -> int:
        """Batches of a training epoch."""
        return len(self._splits["train"]) // self.batch_size

    def train_dataloader(self) -> QuestionLoader:
        """The resumable loader of the training questions."""
        if self._train_loader is None:
            self._train_loader = self._loader("train", self.batch_size, training=True)
        return self._train_loader

    def val_dataloader(self) -> list[QuestionLoader]:
        """One loader per evaluation split, in the order of `evaluation`; batches carry the split's name."""
        return [self._loader(name, self.evaluation_batch_size, training=False) for name in self.evaluation_sources]

    def test_dataloader(self) -> list[QuestionLoader]:
        """The same as `val_dataloader`."""
        return self.val_dataloader()

    def transfer_batch_to_device(
        self,
        batch: QuestionBatch,
        device: torch.device,  # noqa: ARG002
        dataloader_idx: int,  # noqa: ARG002
    ) -> QuestionBatch:
        """The batch as it is: prompts stay on the CPU, where they are packed with the responses; packs are moved."""
        return batch

    def _loader(self, split: str, batch_size: int, training: bool) -> QuestionLoader:
        return QuestionLoader(
            self._splits[split],
            partial(self._batch, split=split, training=training),
            batch_size,
            shuffle=training and self.shuffle,
            drop_last=training,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
        )


def _as_augmentation(template: Template | PromptAugmentation) -> PromptAugmentation:
    return template if isinstance(template, PromptAugmentation) else PromptAugmentation({template.name: template})


def _only_first(templates: PromptAugmentation) -> PromptAugmentation:
    name = next(iter(templates.templates))
    return PromptAugmentation({name: templates.templates[name]})
