"""Templates: what stands around the question."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from tagrpo.datamodules.templates import ChatTemplate, PlainTemplate
from tagrpo.starter import starter_path


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(starter_path())


def test_a_plain_template_holds_the_question_once(tokenizer):
    assert PlainTemplate("<{question}>").render("a {b}", tokenizer) == "<a {b}>"
    for format in ("no field", "{question} {question}"):
        with pytest.raises(ValueError, match="exactly once"):
            PlainTemplate(format)


def test_a_chat_template_places_system_prompt_instruction_and_the_assistants_turn(tokenizer):
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}[assistant]{% endif %}"
    template = ChatTemplate(instruction="Box it.", system="Be brief.")
    assert template.render("1 + 1 ?", tokenizer) == "[system]Be brief.[user]1 + 1 ?\nBox it.[assistant]"
    assert ChatTemplate().render("1 + 1 ?", tokenizer) == "[user]1 + 1 ?[assistant]"


def test_a_tokenizer_without_a_chat_template_is_refused(tokenizer):
    with pytest.raises(ValueError, match="template=plain"):
        ChatTemplate().render("1 + 1 ?", tokenizer)


def test_a_chat_template_that_fails_is_named_with_its_error(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('no questions today') }}"
    with pytest.raises(ValueError, match=r"no questions today.*template\.options"):
        ChatTemplate().render("1 + 1 ?", tokenizer)


def test_a_chat_template_among_the_options_is_used(tokenizer):
    template = ChatTemplate(options={"chat_template": "<{{ messages[0].content }}>"})
    assert template.render("1 + 1 ?", tokenizer) == "<1 + 1 ?>"


BOX = "Please provide step-by-step reasoning, and enclose your final answer in the box: \\boxed{}."
STEP_BY_STEP = "Please reason step by step, and put your final answer within \\boxed{}."


@pytest.mark.shell
@pytest.mark.parametrize(
    ("option", "own"),
    [
        ("chat", {}),
        ("boxed", {"name": "boxed", "instruction": BOX}),
        ("qwen_math", {"name": "qwen-math", "system": STEP_BY_STEP}),
    ],
)
def test_the_chat_templates_of_the_papers_differ_from_chat_in_their_words_alone(tmp_path, option, own):
    from tagrpo.settings.config import compose_run

    common = {"instruction": "", "system": None, "prefill": "", "options": None, "date": "2024-07-26"}
    target = "tagrpo.datamodules.templates.ChatTemplate"
    assert compose_run(tmp_path, [f"template={option}"]).template == {"_target_": target, **common, **own}
