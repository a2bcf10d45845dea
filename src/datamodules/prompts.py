"""From questions to prompts: rendered in templates, tokenised, measured against a length limit."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..types import Prompt, QuestionGroup
from .templates import PlainTemplate, PromptAugmentation

CHUNK = 1024  # prompts tokenised at a time when they are measured, so that not all tokens are in memory at once
MARK = re.compile(r"<[^<>\s]+>")  # looks like a special token


class Fitting(NamedTuple):
    """Questions whose prompts are within a length limit, and what was left out."""

    kept: list[QuestionGroup]  # with the rephrasings that fit
    too_long: list[str]  # ids of the questions that do not fit
    rephrasings_too_long: int  # of questions that fit
    prompt_tokens: list[int]  # of every prompt that is kept


@dataclass(frozen=True, eq=False)
class PromptRenderer:
    """Renders questions as prompts and tokenises them."""

    templates: PromptAugmentation
    tokenizer: PreTrainedTokenizerBase

    def prompts(self, groups: Sequence[QuestionGroup], epoch: int, num_samples: int) -> list[Prompt]:
        """The prompts of `groups`, in order: each original question, then its rephrasings.

        The draw of the templates depends on `epoch`; each phrasing gets `num_samples` responses, G.
        """
        prompts = []
        for row, group in enumerate(groups):
            questions = (group.question, *group.rephrasings)
            shares = self.templates.assign(group.id, epoch, len(questions), num_samples)
            anchors = {name: self._encode(self._render(name, group.question)) for name in dict.fromkeys(chain(*shares))}
            kinds = ("original", *group.kinds) if group.kinds else ("",) * len(questions)
            for number, (question, share) in enumerate(zip(questions, shares, strict=True)):
                for name, count in share.items():
                    text = self._render(name, question)
                    ids = self._encode(text) if number else anchors[name]
                    prompts.append(Prompt(row, number, name, text, ids, anchors[name], count, kind=kinds[number]))
        return prompts

    def cautions(self) -> Iterator[str]:
        """Yield a warning for each plain template whose form the tokenizer's model does not know."""
        for name, template in self.templates.templates.items():
            if not isinstance(template, PlainTemplate):
                continue
            model, known = self.tokenizer.name_or_path, self.tokenizer.get_added_vocab()
            if self.tokenizer.chat_template is not None and not any(mark in template.format for mark in known):
                yield f"Template {name} leaves out the turns of a chat that {model} knows: perhaps take template=chat."
            for mark in MARK.findall(template.format):
                if (count := len(self._encode(mark))) > 1:
                    yield f"Template {name} has {mark}, which {model} reads as {count} tokens: change template.format."

    def _render(self, template: str, question: str) -> str:
        return self.templates.templates[template].render(question, self.tokenizer)

    def _encode(self, text: str) -> Tensor:
        # The template spells special tokens out; adding them here would double them.
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long)

    def fitting(self, groups: Sequence[QuestionGroup], limit: int) -> Fitting:
        """Leave out the questions, and of the others the rephrasings, that have a prompt of more than `limit` tokens.

        Of several templates, the one that makes the longest prompt counts. No prompt is cut.
        """
        kept, too_long, dropped, used = [], [], 0, []
        lengths = iter(self._longest([q for group in groups for q in (group.question, *group.rephrasings)]))
        for group in groups:
            original, *others = [next(lengths) for _ in range(1 + len(group.rephrasings))]
            if original > limit:
                too_long.append(group.id)
                continue
            fit = [row for row, length in enumerate(others) if length <= limit]
            dropped += len(others) - len(fit)
            used += [original, *(others[row] for row in fit)]
            kept.append(group.select_rephrasings(fit))
        return Fitting(kept, too_long, dropped, used)

    def _longest(self, questions: Sequence[str]) -> list[int]:
        """Tokens of each question in the template that makes it longest."""
        longest = [0] * len(questions)
        for template in self.templates.templates.values():
            for start in range(0, len(questions), CHUNK):
                texts = [template.render(q, self.tokenizer) for q in questions[start : start + CHUNK]]
                for row, ids in enumerate(self.tokenizer(texts, add_special_tokens=False)["input_ids"], start):
                    longest[row] = max(longest[row], len(ids))
        return longest
