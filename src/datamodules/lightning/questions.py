"""Data module: question groups with their rephrasings, in resumable batches of prompts."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...digests import tokenizer_digest
from ...files import write_json
from ...foreign import ForeignDataError, read_json
from ...seeds import derive_seed
from ...types import PromptVerifier, QuestionBatch, QuestionGroup, Verifier, require
from ..loader import QuestionLoader
from ..memory import CheckedCurriculum, Curriculum, QuestionMemory, Visit
from ..prompt_check import check_prompt, check_turn_end, check_words
from ..prompts import PromptRenderer
from ..report import add_overlaps, caution_of_notes, cautions, of_seen, split_report, summary
from ..sources.base import Source, SourceReport, plain
from ..sources.files import refuse
from ..templates import PromptAugmentation, Template


class QuestionDataModule(LightningDataModule):
    """Data module that serves `QuestionBatch`es; a question and its rephrasings share one batch and one rank.

    Questions and rephrasings whose prompts are too long are left out. A summary of `report` (see
    `datamodules.report`) is logged, and the whole report is written to `data.json` in the run directory.

    Args:
        train: Source of the training questions; None if there is only evaluation.
        evaluation: Split name → source of its questions; used for validation and test. The split `train` is
            sampled as in training: with its rephrasings, and in the templates of training.
        tokenizer: Folder or hub name of the policy's tokenizer.
        template: Template that renders questions as prompts, or sampler that draws a template for each
            question.
        evaluation_template: Template for evaluation. None uses `template`, or the first template if
            `template` draws from several.
        batch_size: Questions per iteration, over all ranks.
        samples_per_prompt: G, responses to a question, and to each of its rephrasings, in training.
        num_rephrasings: N: the first N rephrasings of each question are used, or all if a question has fewer.
            None uses all.
        kinds: Kinds of rephrasings that are used (`QuestionGroup.kinds`); None uses all.
        evaluation_samples: Responses to each evaluation question in the test.
        validation_samples: Responses to each question in the validations of a run. None uses
            `evaluation_samples`.
        evaluation_batch_size: Evaluation questions sampled at a time, over all ranks.
        max_prompt_tokens: Length limit of prompts.
        curriculum: Curriculum that chooses, from the records in `memory`, which training questions are served
            and with which of their N rephrasings. None serves all questions with all N rephrasings.
        shuffle: Whether each training epoch has a new order; otherwise all epochs keep the source's order.
        seed: Seed of the training order.
        max_evaluation_prompt_tokens: Length limit of evaluation prompts. None uses `max_prompt_tokens`.
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
        kinds: Sequence[str] | None = None,
        evaluation_samples: int = 32,
        validation_samples: int | None = None,
        evaluation_batch_size: int = 64,
        max_prompt_tokens: int = 512,
        curriculum: Curriculum | None = None,
        shuffle: bool = True,
        seed: int = 0,
        max_evaluation_prompt_tokens: int | None = None,
    ) -> None:
        super().__init__()
        counts = {
            "batch_size": batch_size, "samples_per_prompt": samples_per_prompt, "num_rephrasings": num_rephrasings,
            "evaluation_samples": evaluation_samples, "validation_samples": validation_samples,
            "evaluation_batch_size": evaluation_batch_size,
        }  # fmt: skip
        for name, value in counts.items():
            low = 0 if name == "num_rephrasings" else 1
            if value is not None and value < low:
                raise ValueError(f"Expected data.{name} to be at least {low}, but got {value}.")
        for name, source in [
            ("train", train),
            *((f"evaluation.{name}", s) for name, s in evaluation.items()),
        ]:
            if source is not None:
                require(source, Source, f"data.{name}")
                if hasattr(source, "setting"):
                    source.setting = f"data.{name}"  # for messages
        if curriculum is not None:
            require(curriculum, Curriculum, "data.curriculum")
        self.train_source, self.evaluation_sources = train, dict(evaluation)
        self.tokenizer_path, self.templates = tokenizer, _as_augmentation(template)
        first = PromptAugmentation(dict([next(iter(self.templates.templates.items()))]))
        self.evaluation_templates = _as_augmentation(evaluation_template or first)
        self.batch_size, self.evaluation_batch_size = batch_size, evaluation_batch_size
        self.samples_per_prompt, self.num_rephrasings = samples_per_prompt, num_rephrasings
        self.kinds = None if kinds is None else set(kinds)
        self.evaluation_samples = evaluation_samples
        self.validation_samples = validation_samples or evaluation_samples
        self.max_prompt_tokens = max_prompt_tokens
        self.max_evaluation_prompt_tokens = max_evaluation_prompt_tokens or max_prompt_tokens
        self.curriculum, self.shuffle, self.seed = curriculum, shuffle, seed
        self._checked = None if curriculum is None else CheckedCurriculum(curriculum)
        # of training questions; `RolloutCallback` replaces it by the memory of the run
        self.memory = QuestionMemory()
        self.report: dict[str, dict[str, Any]] = {}
        self._splits: dict[str, list[QuestionGroup]] = {}
        self._told: dict[str, SourceReport] = {}  # split → report of its source
        self._renderers: dict[bool, PromptRenderer] = {}  # for training or not
        self._has_evaluation_template = evaluation_template is not None
        self._train_loader: QuestionLoader | None = None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the policy, loaded on first use."""
        return AutoTokenizer.from_pretrained(self.tokenizer_path, trust_remote_code=False)

    def _renderer(self, training: bool) -> PromptRenderer:
        templates = self.templates if training else self.evaluation_templates
        known = self._renderers.get(training)
        if known is None or known.templates is not templates:
            known = PromptRenderer(templates, self.tokenizer)
            self._renderers[training] = known
        return known

    def setup(self, stage: str) -> None:
        """Load the splits that `stage` needs; leave out prompts that are too long."""
        if stage == "fit" and self.train_source is None:
            raise ValueError("Expected a source of training questions in data.train, but it is null.")
        training = [("train", self.train_source)] if stage == "fit" and self.train_source is not None else []
        for name, source in [*training, *self.evaluation_sources.items()]:
            if name not in self._splits:
                self._read(name, source)
        for split in self._splits:
            self._warn(split, self._renderer(training=split == "train").cautions())
            self._check_prompts(split)
        for split, caution in add_overlaps(self.report, self._splits):
            self._warn(split, [caution])
        if self.trainer is not None and self.trainer.is_global_zero:
            write_json(Path(self.trainer.default_root_dir) / "data.json", self.report)

    def _read(self, split: str, source: Source) -> None:
        training = split == "train"
        limit = self.max_prompt_tokens if training else self.max_evaluation_prompt_tokens
        used = self.num_rephrasings if training else 0
        read = source.load()
        self._told[split] = source.report or SourceReport(origin=type(source).__name__, read=len(read))
        groups = [group.select_rephrasings(self._rows(group)[:used]) for group in read]
        found = self._renderer(training).fitting(groups, limit)
        refuse(
            [
                f"{self._place(split, id)}: expected text, but got {why}."
                for id, why in found.unreadable.items()
            ],
            "Remove the control tokens from these questions, or leave them out.",
        )
        check_words(split, found, self.tokenizer)
        if not found.kept:
            option = f"data.max_{'' if training else 'evaluation_'}prompt_tokens"
            raise ValueError(
                f"Expected questions in the split `{split}`, but {len(groups)} were read and "
                f"{len(found.too_long)} of them are longer than {option}={limit}. Raise it or check the "
                "source."
            )
        if used != 0 and not any(group.rephrasings for group in found.kept):  # that would be another method
            there = sorted({kind for group in read for kind in _kinds(group)})
            raise ValueError(
                f"Expected data.num_rephrasings={used} rephrasings of each training question, but none has "
                "any. Add rephrasings to the source, or set data.num_rephrasings=0."
                + (f" Of data.kinds there are {', '.join(there)}." if there else "")
                + f" {found.rephrasings_too_long} were left out: longer than data.max_prompt_tokens={limit}."
                * bool(found.rephrasings_too_long)
            )
        self._splits[split] = found.kept
        self.report[split] = split_report(self._told[split], found)
        rank_zero_info(summary(split, self.report[split]))
        self._warn(split, cautions(split, self.report[split], limit))

    def _place(self, split: str, id: str) -> str:
        """Name a question by file, row and id."""
        told = self._told[split]
        return f"{told.places.get(id, told.origin)}, question {id}"

    def _check_prompts(self, split: str) -> None:
        """Check how each template renders questions, and record the prompt of the first question."""
        renderer = self._renderer(training=split == "train")
        samples = {}
        for name, template in renderer.templates.templates.items():
            self._warn(split, check_prompt(template, self.tokenizer, self._setting(split, name)))
            samples[name] = template.render(self._splits[split][0].question, self.tokenizer)
        self.report[split]["sample_prompt"] = samples

    def _setting(self, split: str, template: str) -> str:
        """Name the setting of a template."""
        own = self._has_evaluation_template and split != "train"
        setting = "data.evaluation_template" if own else "template"
        drawn = self.evaluation_templates if own else self.templates
        return f"{setting}.templates.{template}" if len(drawn.templates) > 1 else setting

    def check_turn_ends(self, stop_ids: Sequence[int]) -> None:
        """Warn if a template's end of turn is not among the engine's stop tokens `stop_ids`."""
        for split in self._splits:
            for template in self._renderer(split == "train").templates.templates.values():
                self._warn(split, check_turn_end(template, self.tokenizer, stop_ids))

    def _rows(self, group: QuestionGroup) -> list[int]:
        """Return the indices of a question's rephrasings whose kind is used."""
        return [row for row, kind in enumerate(_kinds(group)) if self.kinds is None or kind in self.kinds]

    def _warn(self, split: str, cautions: Iterable[str]) -> None:
        """Log each warning once, and record it in the report of the first split that it concerns."""
        noted = self.report[split].setdefault("cautions", [])
        for caution in cautions:
            if not any(caution in facts.get("cautions", ()) for facts in self.report.values()):
                noted.append(caution)
                rank_zero_warn(caution)

    def warn_of_seen(self, run: Path) -> None:
        """Warn if evaluation questions are among the training questions that the run's `data.json` lists."""
        if (path := run / "data.json").is_file():
            try:
                splits = read_json(
                    dict[str, dict[str, Any]],
                    path.read_bytes(),
                    source=str(path),
                    remedy="Whether evaluation questions were trained on is not known.",
                )
            except ForeignDataError as damage:
                rank_zero_warn(str(damage))
                return
            noted = str(splits.get("train", {}).get("digests", ""))
            for split, groups in self._splits.items():
                self._warn(split, of_seen(split, groups, noted, run))

    def check_references(self, verifier: Verifier) -> None:
        """Read every reference answer with the verifier, and record the verifier's notes in the report.

        Raises:
            ValueError: if some reference can't be matched by any response (the message names file, row and
                question of the first such reference), or if the questions of a split lack a column that a
                reward function needs.
        """
        if isinstance(verifier, PromptVerifier):
            for split, groups in self._splits.items():
                try:
                    verifier.check_questions(groups)
                except ValueError as error:
                    raise ValueError(f"{error} (Split: {split}.)") from error
        refused = []
        wrong: dict[str, None] = {}
        for split, groups in self._splits.items():
            for group in groups:
                try:
                    verifier.check_reference(group.answer)
                except ValueError as error:
                    place = self._place(split, group.id)
                    refused.append(f"{place}, answer {_shown(group.answer)}: {error}")
                    wrong[split] = None
        refuse(
            refused,
            "Correct these answers, leave their questions out, or choose a verifier that reads them (reward=)."
            + self._worked_remedy(wrong),
        )
        for split, groups in self._splits.items():
            noted = {group.id: list(verifier.reference_notes(group.answer)) for group in groups}
            self.report[split]["reference_notes"] = {id: notes for id, notes in noted.items() if notes}
            self._warn(split, caution_of_notes(split, self.report[split]["reference_notes"]))

    def _worked_remedy(self, splits: Iterable[str]) -> str:
        """Return a sentence with overrides that read answers as worked solutions; empty if no source can."""
        sources = {"train": self.train_source, **self.evaluation_sources}
        overrides = []
        for split in splits:
            if getattr(sources[split], "worked", None) is False:
                setting = "data.train" if split == "train" else f"data.evaluation.{split}"
                overrides.append(f"{setting}.worked=true")
        if not overrides:
            return ""
        return f" If they are worked solutions, with the result in a box or after ####: {' '.join(overrides)}"

    def keep_some(self, split: str, count: int) -> None:
        """Keep `count` random questions of a loaded split, drawn by `seed`, or all if the split has fewer."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "keep_some", split))
        groups = self._splits[split]
        rows = torch.randperm(len(groups), generator=generator)[:count].sort().values
        self._splits[split] = [groups[row] for row in rows.tolist()]

    def _batch(
        self, groups: Sequence[QuestionGroup], epoch: int, *, split: str, samples: int
    ) -> QuestionBatch:
        training = split == "train"
        if training and self._checked is not None:
            groups = [self._checked.asked(group, self.memory[group.id]) for group in groups]
        # Every evaluation asks the same prompts.
        prompts = self._renderer(training).prompts(groups, epoch if training else 0, samples)
        return QuestionBatch(groups=list(groups), prompts=prompts, split=split)

    def reformulated(self, groups: Sequence[QuestionGroup]) -> QuestionBatch:
        """Return training prompts of the rephrasings, but not of the originals; see `tagrpo.types.Ask`."""
        renderer, fresh = self._renderer(training=True), list[QuestionGroup]()
        for group in groups:
            rows, known = list[int](), {"", plain(group.question)}
            for row, text in enumerate(map(plain, group.rephrasings)):
                rows += [row] if text not in known else []
                known.add(text)
            fresh.append(group.select_rephrasings(rows))
        kept = [group for group in renderer.fitting(fresh, self.max_prompt_tokens).kept if group.rephrasings]
        prompts = renderer.prompts(kept, 0, self.samples_per_prompt)
        return QuestionBatch(kept, [prompt for prompt in prompts if prompt.rephrasing])

    @property
    def needs_memory(self) -> bool:
        """Whether `memory` is read; if so, `RolloutCallback` updates it."""
        return self.curriculum is not None

    def observe(self, visits: list[Visit]) -> None:
        """Pass the visits of a sampled batch to the curriculum, even if dynamic sampling drops the batch."""
        if self._checked is not None:
            self._checked.observe(visits)

    @cached_property
    def tokenizer_digest(self) -> str:
        """Digest of the tokenizer, for comparison at a resume."""
        return tokenizer_digest(self.tokenizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, without the loader's position and the memory."""
        state = {} if self.curriculum is None else {"curriculum": self.curriculum.state_dict()}
        return {"tokenizer": self.tokenizer_digest, **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`, with the same tokenizer.

        A curriculum without state starts from scratch.
        """
        training = self.trainer is not None and self.trainer.training
        if training and state_dict.get("tokenizer", self.tokenizer_digest) != self.tokenizer_digest:
            raise ValueError(
                f"Expected the tokenizer that the run in the checkpoint has, but {self.tokenizer_path} holds "
                "another. Resume with the data.tokenizer and model.path that it had."
            )
        if self.curriculum is not None and "curriculum" in state_dict:
            self.curriculum.load_state_dict(state_dict["curriculum"])

    @property
    def iterations_per_epoch(self) -> int:
        """Number of batches in a training epoch."""
        return len(self._splits["train"]) // self.batch_size

    def train_dataloader(self) -> QuestionLoader:
        """Return the resumable loader of the training questions."""
        if self._train_loader is None:
            self._train_loader = self._loader(
                "train", self.batch_size, self.samples_per_prompt, training=True
            )
            checked = self._checked
            if checked is not None:
                self._train_loader.serve_by(lambda id: checked.chance(self.memory[id]))
        return self._train_loader

    def val_dataloader(self) -> list[QuestionLoader]:
        """Return one loader per split of `evaluation`, in order; batches carry the split's name."""
        return list(self.evaluation_loaders(self.validation_samples).values())

    def test_dataloader(self) -> list[QuestionLoader]:
        """Return the loaders of `val_dataloader`, with `evaluation_samples` responses to each question."""
        return list(self.evaluation_loaders(self.evaluation_samples).values())

    def evaluation_loaders(self, samples: int = 1) -> dict[str, QuestionLoader]:
        """Return a loader of questions for each split, with `samples` responses to each question."""
        return {
            name: self._loader(name, self.evaluation_batch_size, samples) for name in self.evaluation_sources
        }

    def transfer_batch_to_device(self, batch: QuestionBatch, *_: object) -> QuestionBatch:
        """Return the batch unchanged.

        Prompts are packed with responses on the CPU, and the packs are moved later.
        """
        return batch

    def _loader(self, split: str, batch_size: int, samples: int, *, training: bool = False) -> QuestionLoader:
        make_batch = partial(self._batch, split=split, samples=samples)
        place = (
            {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size} if self.trainer else {}
        )
        shuffle = training and self.shuffle
        return QuestionLoader(
            self._splits[split],
            make_batch,
            batch_size,
            shuffle=shuffle,
            drop_last=training,
            seed=self.seed,
            **place,
        )


def _shown(answer: Sequence[str]) -> str:
    text = " or ".join(map(repr, answer))
    return text if len(text) <= 200 else f"{text[:200]}…"


def _kinds(group: QuestionGroup) -> tuple[str, ...]:
    return group.kinds or ("wording",) * len(group.rephrasings)


def _as_augmentation(template: Template | PromptAugmentation) -> PromptAugmentation:
    if isinstance(template, PromptAugmentation):
        return template
    return PromptAugmentation({template.name: template})
