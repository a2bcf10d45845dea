"""Render questions in templates, tokenise the prompts, and compare them with a length limit."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..types import Prompt, QuestionGroup
from .control_tokens import ControlTokenError, PromptEncoder
from .templates import PlainTemplate, PromptAugmentation

# prompts tokenised at a time when they are measured, so that not all tokens are in memory at once
CHUNK = 1024
MARK = re.compile(r"<[^<>\s]+>")  # looks like a special token
STAND_IN = "QUESTION-STANDS-HERE"
"""Placeholder for a question, used to find the text that a template puts around questions."""


class Fitting(NamedTuple):
    """Questions with prompts within a length limit, and a record of omitted questions and rephrasings."""

    kept: list[QuestionGroup]  # with the rephrasings that fit
    too_long: list[str]  # ids of the questions that do not fit
    rephrasings_too_long: int  # of questions that fit
    prompt_tokens: list[int]  # of every prompt that is kept
    # id → control tokens that the question or a rephrasing spells, all as text
    control_tokens: Mapping[str, list[str]]
    unreadable: Mapping[str, str]  # id → why a question can't be tokenised; it is not in `kept`
    rephrasings_unreadable: int  # rephrasings left out for the same reason
    unknown_tokens: list[int]  # of every prompt that is kept: tokens that stand for unknown text


class Measured(NamedTuple):
    """Measurements of a question's prompt, over all templates."""

    tokens: int  # of the longest prompt
    control_tokens: list[str]  # that the question spells
    problem: str  # reason why the question can't be tokenised; empty if it can
    unknown_tokens: int = (
        0  # of the longest prompt: tokens that stand for text that the tokenizer does not know
    )


def unknown_tokens(ids: Sequence[int], text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the tokens of a text that stand for words or characters that the tokenizer does not know.

    Returns 0 if the tokenizer has no token for unknown text. Occurrences of this token's spelling in the text
    are not counted: prompts contain them if the token also begins or ends texts.
    """
    if tokenizer.unk_token_id is None:
        return 0
    return max(0, list(ids).count(tokenizer.unk_token_id) - text.count(str(tokenizer.unk_token)))


@dataclass(frozen=True, eq=False)
class PromptRenderer:
    """Renderer and tokenizer of questions.

    Text in a question stays text: control tokens come from the template alone
    (`control_tokens.PromptEncoder`).
    """

    templates: PromptAugmentation
    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def _encoder(self) -> PromptEncoder:
        return PromptEncoder(self.tokenizer)

    @cached_property
    def _controls(self) -> Mapping[str, list[str]]:
        """Control tokens that each template puts around a question, by template name."""
        names = list(self.templates.templates)
        rendered = [self._render(name, STAND_IN) for name in names]
        encoded = self._encoder.encode(rendered)
        return {name: self._encoder.controls(ids) for name, ids in zip(names, encoded, strict=True)}

    def prompts(self, groups: Sequence[QuestionGroup], epoch: int, num_samples: int) -> list[Prompt]:
        """Return the prompts of `groups` in order: for each group the original, then the rephrasings.

        Which templates are drawn depends on `epoch`. Each phrasing gets `num_samples` (G) responses.
        """
        prompts = []
        for row, group in enumerate(groups):
            questions = (group.question, *group.rephrasings)
            shares = self.templates.assign(group.id, epoch, len(questions), num_samples)
            names = list(dict.fromkeys(chain(*shares)))
            originals = {name: self._render(name, group.question) for name in names}
            anchors = {name: self._encode(name, group.question, text) for name, text in originals.items()}
            kinds = ("original", *group.kinds) if group.kinds else ("",) * len(questions)
            for number, (question, share) in enumerate(zip(questions, shares, strict=True)):
                for name, count in share.items():
                    text = originals[name]
                    ids = anchors[name]
                    if number:
                        text = self._render(name, question)
                        ids = self._encode(name, question, text)
                    prompt = Prompt(row, number, name, text, ids, anchors[name], count, kind=kinds[number])
                    prompts.append(prompt._replace(messages=self._messages(name, question)))
        return prompts

    def cautions(self) -> Iterator[str]:
        """Yield a warning for each plain template whose format the tokenizer's model does not know."""
        for name, template in self.templates.templates.items():
            if not isinstance(template, PlainTemplate):
                continue
            model = self.tokenizer.name_or_path
            known = self.tokenizer.get_added_vocab()
            if self.tokenizer.chat_template is not None and not any(
                mark in template.format for mark in known
            ):
                yield f"Template {name} leaves out the turns of a chat that {model} knows: perhaps take template=chat."
            for mark in MARK.findall(template.format):
                count = len(self._encoder.encode([mark])[0])
                if count > 1:
                    yield f"Template {name} has {mark}, which {model} reads as {count} tokens: change template.format."

    def _render(self, template: str, question: str) -> str:
        return self.templates.templates[template].render(question, self.tokenizer)

    def _messages(self, template: str, question: str) -> tuple[dict[str, str], ...] | None:
        """Return the turns of a prompt; None if the template makes no conversation."""
        messages = getattr(self.templates.templates[template], "messages", None)
        return None if messages is None else tuple(messages(question))

    def _encode(self, template: str, question: str, text: str) -> Tensor:
        """Tokenise the prompt `text` of a question in a template."""
        ids = self._encoder.encode([text])[0]
        if self._spelled(template, ids):
            ids = self._as_text(template, question, text)
        return torch.tensor(ids, dtype=torch.long)

    def _spelled(self, template: str, ids: Sequence[int]) -> list[str]:
        """Return the control tokens in a prompt that do not come from the template."""
        found = self._encoder.controls(ids)
        own = self._controls[template]
        if len(found) == len(own):
            return []
        return list((Counter(found) - Counter(own)).elements())

    def _as_text(self, template: str, question: str, text: str) -> list[int]:
        """Tokenise a prompt whose question spells control tokens.

        Raises:
            ControlTokenError: if the tokenizer or the template can't keep the spellings as text.
        """
        before, _, after = self._render(template, STAND_IN).partition(STAND_IN)
        inner = text[len(before) : len(text) - len(after)]
        if before + inner + after != text or inner.strip() != question.strip():
            raise ControlTokenError(f"control tokens, and the template {template} does not keep it as it is")
        return self._encoder.encode_as_text(before, inner, after)

    def fitting(self, groups: Sequence[QuestionGroup], limit: int) -> Fitting:
        """Leave out questions with prompts of more than `limit` tokens, and rephrasings with such prompts.

        With several templates, the template with the longest prompt counts. No prompt is truncated. Questions
        and rephrasings whose control tokens can't be read as text are left out too.
        """
        kept: list[QuestionGroup] = []
        too_long: list[str] = []
        prompt_tokens: list[int] = []
        unknown_tokens: list[int] = []
        control_tokens: dict[str, list[str]] = {}
        unreadable: dict[str, str] = {}
        rephrasings_too_long = 0
        rephrasings_unreadable = 0
        texts: list[str] = []
        for group in groups:
            texts += [group.question, *group.rephrasings]
        measured = iter(self._measure(texts))
        for group in groups:
            original, *others = [next(measured) for _ in range(1 + len(group.rephrasings))]
            if original.problem:
                unreadable[group.id] = original.problem
                continue
            if original.tokens > limit:
                too_long.append(group.id)
                continue
            readable = [row for row, other in enumerate(others) if not other.problem]
            fit = [row for row in readable if others[row].tokens <= limit]
            rephrasings_too_long += len(readable) - len(fit)
            rephrasings_unreadable += len(others) - len(readable)
            used = [original, *(others[row] for row in fit)]
            for one in used:
                prompt_tokens.append(one.tokens)
                unknown_tokens.append(one.unknown_tokens)
            kept.append(group.select_rephrasings(fit))
            marks = dict.fromkeys(chain.from_iterable(one.control_tokens for one in used))
            if marks:
                control_tokens[group.id] = list(marks)
        return Fitting(
            kept=kept,
            too_long=too_long,
            rephrasings_too_long=rephrasings_too_long,
            prompt_tokens=prompt_tokens,
            control_tokens=control_tokens,
            unreadable=unreadable,
            rephrasings_unreadable=rephrasings_unreadable,
            unknown_tokens=unknown_tokens,
        )

    def _measure(self, questions: Sequence[str]) -> list[Measured]:
        """Measure the prompt of each question in the template that makes the prompt longest."""
        measured = [Measured(0, [], "")] * len(questions)
        for name in self.templates.templates:
            for start in range(0, len(questions), CHUNK):
                chunk = questions[start : start + CHUNK]
                texts = [self._render(name, question) for question in chunk]
                for offset, ids in enumerate(self._encoder.encode(texts)):
                    row = start + offset
                    found = self._measured(name, chunk[offset], texts[offset], ids)
                    before = measured[row]
                    longest = found if found.tokens > before.tokens else before
                    measured[row] = Measured(
                        longest.tokens,
                        found.control_tokens or before.control_tokens,
                        found.problem or before.problem,
                        longest.unknown_tokens,
                    )
        return measured

    def _measured(self, template: str, question: str, text: str, ids: Sequence[int]) -> Measured:
        spelled = self._spelled(template, ids)
        if not spelled:
            return Measured(len(ids), [], "", unknown_tokens(ids, text, self.tokenizer))
        try:
            return Measured(len(self._as_text(template, question, text)), spelled, "")
        except ControlTokenError as error:
            return Measured(len(ids), spelled, str(error))
