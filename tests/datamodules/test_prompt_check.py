"""What a template makes of a question, by chat templates that behave as those of published models."""

from __future__ import annotations

import copy
import re
from datetime import datetime

import pytest
from transformers import AutoTokenizer

from tagrpo.datamodules.prompt_check import check_prompt, check_turn_end, check_words, turn_end
from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import ChatTemplate, PlainTemplate, PromptAugmentation
from tagrpo.rewards.response import THOUGHT_TAGS
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup
from tests.chat_models import (
    CHATML,
    DEAF,
    DEEPSEEK,
    ENDS,
    GEMMA,
    GLM,
    HARMONY,
    LLAMA,
    MISTRAL,
    NAMES,
    SPECIAL,
    WITHOUT_GENERATION_PROMPT,
    chat_model,
)

INSTRUCTION = "Put your final answer within \\boxed{}."


def told(chat_template, **options):
    return list(check_prompt(ChatTemplate(**options), chat_model(chat_template)))


def given_value(message, setting):
    """The value that a message says to set, as Hydra reads it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    found = re.search(rf'{re.escape(setting)}=("[^"]*"|\S*[^.\s])', message, re.DOTALL)
    return OverridesParser.create().parse_override(found[0]).value()


@pytest.mark.parametrize(
    "chat_template", [template for template in SPECIAL if template != WITHOUT_GENERATION_PROMPT],
    ids=[name for name in NAMES if name != "without_generation_prompt"],
)  # fmt: skip
def test_nothing_is_said_of_a_sound_prompt(chat_template):
    assert told(chat_template) == []
    assert told(chat_template, instruction=f"  {INSTRUCTION}\n") == []


@pytest.mark.parametrize("chat_template", [CHATML, LLAMA, HARMONY, DEEPSEEK, GLM])
def test_a_system_prompt_that_is_used_is_not_told(chat_template):
    assert told(chat_template, system="Be brief.") == []


@pytest.mark.parametrize("chat_template", [GEMMA, MISTRAL])
def test_a_system_prompt_that_is_refused_is_an_error_that_names_the_setting(chat_template):
    template, tokenizer = ChatTemplate(system="Be brief."), chat_model(chat_template)
    for use in (
        lambda: told(chat_template, system="Be brief."),
        lambda: template.render("1 + 1 ?", tokenizer),
    ):
        with pytest.raises(ValueError, match=r"template\.system=null") as error:
            use()
        assert re.search("not supported|must alternate", str(error.value)), (
            "with the chat template's own words"
        )


def test_a_system_prompt_that_is_left_out_is_told():
    (said,) = told(DEAF, system="Be brief.")
    assert "template.system=null" in said
    assert told(DEAF, system="") == []


def test_a_template_is_named_by_its_setting():
    with pytest.raises(ValueError, match=r"data\.evaluation_template\.options"):
        list(check_prompt(ChatTemplate(options={"x": 1}), chat_model(CHATML), "data.evaluation_template"))


@pytest.mark.parametrize(
    ("content", "lost"),
    [
        ("'What?'", "question"),
        ("m.content * 2", "question"),
        ("m.content | upper", "question"),
        ("m.content | lower", "question"),
        ("m.content | e", "question"),
        ("m.content[:20]", "question"),
        ("m.content.split('\n')[0]", "template.instruction"),
    ],
)
def test_a_prompt_without_question_or_instruction_is_refused(content, lost):
    tokenizer = chat_model.__wrapped__(CHATML)
    tokenizer.chat_template = f"{{% for m in messages %}}{{{{ {content} }}}}{{% endfor %}}"
    with pytest.raises(ValueError, match=rf"Expected .*{re.escape(lost)}"):
        list(check_prompt(ChatTemplate(instruction=INSTRUCTION), tokenizer))


def test_a_template_of_ones_own_has_the_question_once():
    class Own:
        name = "own"

        def render(self, question, tokenizer):
            return question * 2

    with pytest.raises(ValueError, match="question once"):
        list(check_prompt(Own(), chat_model(CHATML)))
    assert (
        list(check_prompt(PlainTemplate("{question} <sep>"), AutoTokenizer.from_pretrained(starter_path())))
        == []
    )


@pytest.mark.shell
def test_a_missing_generation_prompt_is_refused_with_the_prefill_that_replaces_it():
    with pytest.raises(ValueError, match=r"template\.prefill=") as error:
        told(WITHOUT_GENERATION_PROMPT)
    prefill = given_value(str(error.value), "template.prefill")
    assert prefill == "<|im_start|>assistant\n"
    assert told(WITHOUT_GENERATION_PROMPT, prefill=prefill) == []
    assert told(WITHOUT_GENERATION_PROMPT, prefill=f"{prefill}Let's think") == []
    with pytest.raises(ValueError, match=r"template\.prefill=") as error:
        told(WITHOUT_GENERATION_PROMPT, prefill="Let's think")
    assert given_value(str(error.value), "template.prefill") == f"{prefill}Let's think"


def test_a_generation_prompt_of_another_role_is_told():
    tokenizer = chat_model.__wrapped__(CHATML)
    for role in ("user", "model", "Assistant"):
        tokenizer.chat_template = CHATML.replace("assistant\n' }}", f"{role}\n' }}}}")
        (said,) = check_prompt(ChatTemplate(), tokenizer)
        assert repr(f"<|im_start|>{role}\n") in said


def test_a_chat_template_that_is_no_jinja_is_refused():
    tokenizer = chat_model.__wrapped__(CHATML)
    tokenizer.chat_template = "{% for %}"
    with pytest.raises(ValueError, match="Expected template .* chat_template"):
        list(check_prompt(ChatTemplate(), tokenizer))


def test_a_chat_template_that_renders_no_reply_is_told_without_generation_prompt():
    tokenizer = chat_model.__wrapped__(CHATML)
    tokenizer.chat_template = "{{ messages[0].content }}"
    (said,) = check_prompt(ChatTemplate(), tokenizer)
    assert "template.prefill" in said


THOUGHTS = [
    *(f"<{tag}>" for tag in THOUGHT_TAGS if tag.isidentifier()),
    "<seed:think>",
    "<|think|>",
    "[THINK]",
    "◁think▷",
    "<|begin_of_thought|>",
    "<|START_THINKING|>",
    "<start_working_out>",
    "<|channel>thought",
    "<|channel|>analysis<|message|>",
]


@pytest.mark.parametrize("mark", THOUGHTS)
def test_thoughts_that_are_opened_twice_are_told(mark):
    tokenizer = chat_model.__wrapped__(CHATML)
    tokenizer.chat_template = CHATML.replace("assistant\n' }}", f"assistant\n{mark}\n' }}}}")
    assert list(check_prompt(ChatTemplate(), tokenizer)) == []
    for prefill in (f"{mark}\n", mark, f"{mark}\nLet's think"):
        (said,) = check_prompt(ChatTemplate(prefill=prefill), tokenizer)
        assert mark in said
        assert "template.prefill=''." in said
    assert (
        list(check_prompt(ChatTemplate(prefill=mark, instruction=f"Write {mark} first."), chat_model(CHATML)))
        == []
    )


def test_thoughts_that_are_closed_and_opened_again_are_told():
    options = {"enable_thinking": False}
    assert told(CHATML, options=options) == []
    assert len(told(CHATML, options=options, prefill="<think>\n")) == 1
    assert len(told(DEEPSEEK, prefill="<think>\n")) == 1


@pytest.mark.parametrize(
    ("chat_template", "option", "hint"),
    [
        (CHATML, "enable_thinkin", "enable_thinking"),
        (LLAMA, "date_strin", "date_string"),
        (GEMMA, "enable_thinking", ""),
    ],
)
def test_an_option_that_the_chat_template_does_not_read_is_refused(chat_template, option, hint):
    with pytest.raises(ValueError, match=rf"template\.options .* not read {option}") as error:
        told(chat_template, options={option: True})
    assert hint in str(error.value)
    if hint:
        assert told(chat_template, options={hint: "x"}) == []


@pytest.mark.shell
def test_the_day_is_the_same_every_day_unless_that_is_asked_for():
    for chat_template, day in ((LLAMA, "26 Jul 2024"), (HARMONY, "2024-07-26")):
        tokenizer = chat_model(chat_template)
        assert day in ChatTemplate().render("1 + 1 ?", tokenizer)
        assert told(chat_template) == []
        (said,) = told(chat_template, date=None)
        today = given_value(said, "template.date")
        assert today == f"{datetime.now():%Y-%m-%d}"
        assert told(chat_template, date=today) == []
    assert "11 Mar 1999" in ChatTemplate(date="1999-03-11").render("1 + 1 ?", chat_model(LLAMA))
    assert "1 May" in ChatTemplate(options={"date_string": "1 May"}).render("1 + 1 ?", chat_model(LLAMA))
    assert told(LLAMA, date=None, options={"date_string": "1 May"}) == []
    assert told(CHATML, date=None) == []


@pytest.mark.parametrize("date", ["today", "2024-13-01", 2024, ""])
def test_a_date_that_is_no_day_is_refused(date):
    with pytest.raises(ValueError, match=r"template\.date"):
        ChatTemplate(date=date)


@pytest.mark.parametrize("chat_template", SPECIAL, ids=NAMES)
def test_the_token_that_ends_the_assistants_turn_is_found(chat_template):
    tokenizer = chat_model(chat_template)
    end = ENDS[chat_template]
    id = tokenizer.convert_tokens_to_ids(end)
    assert turn_end(ChatTemplate(), tokenizer) == (id, end)
    assert list(check_turn_end(ChatTemplate(), tokenizer, [id])) == []
    other = 5 if id != 5 else 6
    (said,) = check_turn_end(ChatTemplate(), tokenizer, [other])
    assert f"Add {id} to eos_token_id" in said


def test_a_plain_template_has_no_turns_to_end():
    assert list(check_turn_end(PlainTemplate(), chat_model(CHATML), [])) == []


# ---------------------------------------------------------------------- unknown words


def fitted(tokenizer, *questions, template=None):
    """The questions, each a text or a text with rephrasings, as the data module measures them."""
    groups = []
    for number, (question, *rephrasings) in enumerate(questions):
        groups.append(QuestionGroup(str(number), question, tuple(rephrasings), ("1",)))
    template = template or PlainTemplate("{question}")
    return PromptRenderer(PromptAugmentation({template.name: template}), tokenizer).fitting(groups, 4096)


@pytest.fixture(scope="module")
def starter():
    return AutoTokenizer.from_pretrained(starter_path())


@pytest.mark.parametrize("unknown", range(5))
def test_more_than_5_percent_of_unknown_tokens_are_refused(starter, unknown):
    """60 tokens: 3 are 5 %, 4 are more."""
    words = ["zebra"] * unknown + ["1"] * (60 - unknown)
    found = fitted(starter, [" ".join(words[:20])], [" ".join(words[20:40]), " ".join(words[40:])])
    assert (sum(found.unknown_tokens), sum(found.prompt_tokens)) == (unknown, 60)
    if unknown <= 3:
        check_words("train", found, starter)
    else:
        with pytest.raises(ValueError, match=r"(?s)6\.7%.*train.*zebra.*model=smollm2_135m "):
            check_words("train", found, starter)


def test_three_questions_are_shown_as_the_model_reads_them(starter):
    found = fitted(starter, ["1 + 1 = ?"], *[[f"What is half of {n}?", f"Halve {n}\n"] for n in range(5)])
    with pytest.raises(ValueError, match="unknown") as error:
        check_words("train", found, starter)
    shown = [line for line in str(error.value).splitlines() if line.startswith("- ")]
    assert [line.split(" is read as ")[0] for line in shown] == [
        "- 'What is half of 0?'", r"- 'Halve 0\\n'", "- 'What is half of 1?'",
    ]  # fmt: skip
    assert all("<unk>" in line for line in shown)


def test_a_token_that_also_begins_or_ends_texts_is_not_unknown():
    """As in GPT-2 and SmolLM2, whose unknown token is the end of texts; bytes can spell everything."""
    tokenizer = copy.deepcopy(chat_model(CHATML))
    tokenizer.unk_token = "<|im_end|>"
    found = fitted(tokenizer, ["Wie weit ist 東京?"], template=ChatTemplate())
    assert tokenizer.unk_token_id in tokenizer(ChatTemplate().render("a", tokenizer))["input_ids"]
    assert found.unknown_tokens == [0]
    check_words("test", found, tokenizer)


def test_a_tokenizer_without_an_unknown_token_knows_everything():
    tokenizer = chat_model(CHATML)
    assert tokenizer.unk_token is None
    check_words("test", fitted(tokenizer, ["東京"]), tokenizer)


def test_no_questions_have_no_unknown_words(starter):
    check_words("test", fitted(starter), starter)
