"""Control tokens that a question spells are text, and ordinary prompts are tokenised as ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tagrpo.datamodules.control_tokens import ControlTokenError, PromptEncoder
from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import ChatTemplate, PlainTemplate, PromptAugmentation
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup
from tests.chat_models import CHATML, NAMES, SPECIAL, chat_model

TEMPLATES = list(SPECIAL)
INSTRUCTION = "Put your final answer within the box."


def renderer(tokenizer, *templates):
    given_templates = templates or [ChatTemplate(instruction=INSTRUCTION)]
    return PromptRenderer(PromptAugmentation({f"t{n}": t for n, t in enumerate(given_templates)}), tokenizer)


def ids_of(tokenizer, question, *templates):
    (prompt,) = renderer(tokenizer, *templates).prompts([QuestionGroup("a", question, (), ("1",))], 0, 1)
    return prompt.token_ids.tolist()


@pytest.mark.parametrize("chat_template", TEMPLATES, ids=NAMES)
def test_every_special_token_in_a_question_is_text(chat_template):
    tokenizer = chat_model(chat_template)
    control = PromptEncoder(tokenizer).control
    harmless = [id for id in ids_of(tokenizer, "Say x and y.") if id in control]
    for token in [*SPECIAL[chat_template], "<think>", "</think>"]:
        for question in (
            f"Say {token} and y.",
            token,
            f"{token}{token} x",
            f"Is {token}",
            f"<{token}>",
            f"a\n\n{token}",
        ):
            ids = ids_of(tokenizer, question)
            assert [id for id in ids if id in control] == harmless
            text = ChatTemplate(instruction=INSTRUCTION).render(question, tokenizer)
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
            assert question in text


@given(st.data())
def test_what_a_question_spells_never_changes_the_turns(data):
    chat_template = data.draw(st.sampled_from(TEMPLATES))
    tokenizer = chat_model(chat_template)
    pieces = st.sampled_from(
        [*SPECIAL[chat_template], "<think>", "<|", "|>", "<", "user\n", "x", " ", "é", "\n\n"]
    )
    question = "".join(data.draw(st.lists(pieces, min_size=1, max_size=6))).strip() or "x"
    control = PromptEncoder(tokenizer).control
    ids = ids_of(tokenizer, question)
    assert [id for id in ids if id in control] == [id for id in ids_of(tokenizer, "x") if id in control]
    rendered = ChatTemplate(instruction=INSTRUCTION).render(question, tokenizer)
    assert tokenizer.decode(ids, skip_special_tokens=False) == rendered


@given(st.sampled_from(TEMPLATES), st.text(max_size=30))
def test_a_question_without_control_tokens_is_tokenised_as_by_the_tokenizer_itself(chat_template, question):
    tokenizer = chat_model(chat_template)
    text = ChatTemplate(instruction=INSTRUCTION).render(question, tokenizer)
    assert ids_of(tokenizer, question) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_text_beside_a_control_token_is_tokenised_as_without_it():
    tokenizer = chat_model(CHATML)
    ids = ids_of(tokenizer, "What is the sum of <|im_end|>?")
    plain = tokenizer("user\nWhat is the sum of ", add_special_tokens=False)["input_ids"]
    assert ids[1 : len(plain)] == plain[:-1], "behind <|im_start|>, up to the last space"


def test_a_rephrasing_is_read_as_its_question_is():
    tokenizer = chat_model(CHATML)
    group = QuestionGroup("a", "Say x.", ("Say <|im_end|>.",), ("1",))
    original, rephrased = renderer(tokenizer).prompts([group], 0, 1)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert original.token_ids.tolist().count(end) == rephrased.token_ids.tolist().count(end) == 1
    assert rephrased.anchor_ids.tolist() == original.token_ids.tolist()


def test_measured_prompts_are_those_that_are_asked():
    tokenizer = chat_model(CHATML)
    groups = [QuestionGroup(f"{n}", f"Say {'<|im_end|>' * n}x.", (), ("1",)) for n in range(3)]
    found = renderer(tokenizer).fitting(groups, 1000)
    assert found.kept == groups
    assert found.prompt_tokens == [len(ids_of(tokenizer, group.question)) for group in groups]
    assert found.control_tokens == {"1": ["<|im_end|>"], "2": ["<|im_end|>"]}
    assert found.unreadable == {}


def test_a_plain_template_may_spell_control_tokens_and_its_question_may_not():
    tokenizer = chat_model(CHATML)
    template = PlainTemplate("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>")
    ids = ids_of(tokenizer, "Say <|im_end|> or <think>.", template)
    names = PromptEncoder(tokenizer).controls(ids)
    assert names == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>"]


def test_a_tokenizer_that_cannot_read_them_as_text_refuses_by_name():
    tokenizer = AutoTokenizer.from_pretrained(starter_path())  # knows whole words, and <sep> is no other word
    with pytest.raises(ControlTokenError, match="<sep>"):
        PromptEncoder(tokenizer).encode_as_text("compute ", "1 <sep> 2", " <sep>")
    groups = [
        QuestionGroup("a", "compute 1 + 2 = ?", ("1 <sep> 2",), ("3",)),
        QuestionGroup("b", "1 <sep>", (), ("3",)),
    ]
    found = renderer(tokenizer, PlainTemplate("{question} <sep>")).fitting(groups, 100)
    assert found.kept == [groups[0].select_rephrasings([])]
    assert (list(found.unreadable), found.rephrasings_unreadable, found.rephrasings_too_long) == (["b"], 1, 0)


def test_a_template_that_changes_the_question_is_refused_if_that_spells_control_tokens():
    tokenizer = chat_model(CHATML)

    class Shouting:
        name = "shouting"

        def render(self, question, tokenizer):
            return f"<|im_start|>{question.replace('Say', 'SAY')}"

    assert ids_of(tokenizer, "Say x.", Shouting())
    with pytest.raises(ControlTokenError, match="control tokens, .* template t0"):
        ids_of(tokenizer, "Say <|im_end|>.", Shouting())


def test_unknown_words_are_no_control_tokens():
    tokenizer = AutoTokenizer.from_pretrained(starter_path())
    ids = PromptEncoder(tokenizer).encode(["compute something unheard"])[0]
    assert tokenizer.unk_token_id in ids
    assert PromptEncoder(tokenizer).controls(ids) == []
