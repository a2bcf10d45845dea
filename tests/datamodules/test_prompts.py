"""Questions rendered, tokenised and measured in the templates that are assigned to them."""

from __future__ import annotations

from collections import Counter
from copy import copy

import pytest
import torch
from transformers import AutoTokenizer

from tagrpo.datamodules.prompts import STAND_IN, PromptRenderer
from tagrpo.datamodules.templates import ChatTemplate, PlainTemplate, PromptAugmentation
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup

GROUP = QuestionGroup("a", "compute 1 + 2 = ?", ("3 + 4 = ?", "compute 1 + 2 , + 3 = ?"), ("3",))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(starter_path())


def renderer(tokenizer, *formats, **options):
    templates = {f"t{i}": PlainTemplate(text) for i, text in enumerate(formats)}
    return PromptRenderer(PromptAugmentation(templates, **options), tokenizer)


def test_every_prompt_knows_the_original_in_its_own_template(tokenizer):
    drawn = renderer(tokenizer, "{question} <sep>", "? {question}", draw="response")
    prompts = drawn.prompts([GROUP, GROUP._replace(id="b")], epoch=0, num_samples=6)
    assert {(p.question, p.rephrasing) for p in prompts} == {(row, n) for row in (0, 1) for n in range(3)}
    for row in (0, 1):
        for number, question in enumerate((GROUP.question, *GROUP.rephrasings)):
            mine = [p for p in prompts if (p.question, p.rephrasing) == (row, number)]
            assert sum(p.num_samples for p in mine) == 6
            for p in mine:
                rendered = {"t0": "{} <sep>", "t1": "? {}"}[p.template].format
                assert p.text == rendered(question)
                assert p.token_ids.tolist() == tokenizer(rendered(question))["input_ids"]
                assert p.anchor_ids.tolist() == tokenizer(rendered(GROUP.question))["input_ids"]
                assert p.token_ids.dtype == torch.long


def test_each_question_is_rendered_once_per_template(tokenizer):
    rendered = Counter()

    class Counted(PlainTemplate):
        def render(self, question, tokenizer):
            rendered[self.format, question] += 1
            return super().render(question, tokenizer)

    templates = {"a": Counted("{question} <sep>"), "b": Counted("? {question}")}
    PromptRenderer(PromptAugmentation(templates, draw="response"), tokenizer).prompts(
        [GROUP], 0, num_samples=64
    )
    questions = {question for _, question in rendered}
    assert questions == {GROUP.question, *GROUP.rephrasings, STAND_IN}
    assert len(rendered) == 2 * len(questions)
    assert set(rendered.values()) == {1}


def test_prompts_have_the_kinds_of_their_questions(tokenizer):
    groups = [GROUP._replace(kinds=("hint", "harder")), GROUP]
    prompts = renderer(tokenizer, "{question}").prompts(groups, 0, 1)
    assert [prompt.kind for prompt in prompts] == ["original", "hint", "harder", "", "", ""]


def test_the_longest_template_decides_what_fits(tokenizer):
    lengths = [len(tokenizer.tokenize(q)) for q in (GROUP.question, *GROUP.rephrasings)]
    assert lengths[1] < lengths[0] < lengths[2]
    longer = renderer(tokenizer, "{question}", "{question} <sep> <sep>")
    found = longer.fitting([GROUP], limit=lengths[0] + 2)
    assert found.kept == [GROUP._replace(rephrasings=GROUP.rephrasings[:1])]
    (kept,) = longer.fitting([GROUP._replace(kinds=("hint", "harder"))], limit=lengths[0] + 2).kept
    assert (kept.rephrasings, kept.kinds) == (GROUP.rephrasings[:1], ("hint",))
    assert (found.too_long, found.rephrasings_too_long) == ([], 1)
    assert found.prompt_tokens == [lengths[0] + 2, lengths[1] + 2]
    assert longer.fitting([GROUP], limit=lengths[0] + 1)[:4] == ([], ["a"], 0, [])
    assert renderer(tokenizer, "{question}").fitting([GROUP], limit=lengths[2]).kept == [GROUP]


def test_a_plain_template_that_the_model_does_not_know_is_told(tokenizer, monkeypatch):
    def told(format, chat_template=None):
        monkeypatch.setattr(tokenizer, "chat_template", chat_template)
        return [
            text.replace(tokenizer.name_or_path, "model") for text in renderer(tokenizer, format).cautions()
        ]

    assert told("{question} <sep>") == []
    assert told("{question} <think>") == [
        f"Template t0 has <think>, which model reads as {len(tokenizer('<think>').input_ids)} tokens: "
        "change template.format."
    ]
    chat = "Template t0 leaves out the turns of a chat that model knows: perhaps take template=chat."
    assert told("{question}", chat_template="{{ messages }}") == [chat]
    assert told("{question} <sep>", chat_template="{{ messages }}") == []  # its own tokens, spelled out


def test_prompts_of_a_conversation_have_its_turns(tokenizer):
    tokenizer = copy(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}<sep>"
    templates = {"chat": ChatTemplate("1 + 2", system="compute"), "plain": PlainTemplate()}
    prompts = PromptRenderer(PromptAugmentation(templates, draw="response"), tokenizer).prompts(
        [GROUP], 0, 64
    )
    questions = (GROUP.question, *GROUP.rephrasings)
    assert {prompt.template for prompt in prompts} == {"chat", "plain"}
    for prompt in prompts:
        user = {"role": "user", "content": f"{questions[prompt.rephrasing]}\n1 + 2"}
        turns = ({"role": "system", "content": "compute"}, user)
        assert prompt.messages == (turns if prompt.template == "chat" else None)
