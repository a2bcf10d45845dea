from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.foreign import ForeignDataError
from tagrpo.rephrasing.calls import Usage, read_reply
from tagrpo.rephrasing.errors import NoCompletionError, read_error
from tagrpo.rephrasing.rephraser import read_judgement, read_rephrasings

from .conftest import MALFORMED, UNPAID, completion_of


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_reply_that_was_paid_for_is_a_text_or_a_fault(kind):
    reply = read_reply(MALFORMED[kind].decode(errors="replace"))
    assert bool(reply.text) != bool(reply.fault)
    assert reply.usage == (Usage(9, 4) if kind == "charged without a choice" else Usage())
    assert isinstance(reply.model, str)
    assert reply.fault.isprintable()
    (reply.text + reply.fault).encode()  # can be written


@pytest.mark.parametrize("kind", UNPAID)
def test_a_body_without_a_completion_is_no_reply(kind):
    with pytest.raises(NoCompletionError) as refused:
        read_reply(UNPAID[kind].decode())
    assert isinstance(refused.value, ForeignDataError)
    assert 400 <= refused.value.status <= 599
    assert str(refused.value).isprintable()
    for word in ("busy", "slow down", "provider", "Overloaded", "upstream timed out", "rate limit"):
        if word in UNPAID[kind].decode() and kind != "choices as text":
            assert refused.value.error.message == word


def test_a_well_formed_reply_is_read_whole():
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    body = {"id": "c1", "model": "m-2026", "usage": usage}
    body["choices"] = [{"finish_reason": "stop", "message": {"content": "<think>1, 2</think> Add 1."}}]
    reply = read_reply(json.dumps(body), "now")
    assert (reply.text, reply.fault, reply.model) == ("Add 1.", "", "m-2026")
    assert reply.usage == Usage(prompt_tokens=9, completion_tokens=3)
    assert reply.time == "now"


@pytest.mark.parametrize(
    "content",
    [
        "Add 1.",
        ["Add ", "1."],
        [{"type": "text", "text": "Add 1."}],
        {"type": "text", "text": "Add 1."},
        [{"type": "output_text", "text": "Add "}, {"text": "1."}],
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "Add 1."},
        ],
        [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "Add 1."}, {"type": "image_url"}],
        [{"type": "text", "text": "<think>hm"}, {"type": "text", "text": "</think>Add 1."}],
    ],
)
def test_content_is_a_text_or_parts_of_which_the_texts_count(content):
    reply = read_reply(completion_of({"content": content, "reasoning_content": "hm"}).decode())
    assert (reply.text, reply.fault) == ("Add 1.", "")


DRAFTS = [
    "<think>{}</think>",
    "{}</think>",
    "<thinking>{}</thinking>",
    "{}</thinking>",
    "<thought>{}</thought>",
    "{}</thought>",
    "<reasoning>{}</reasoning>",
    "{}</reasoning>",
    "<THINK>{}</THINK>",
    "[THINK]{}[/THINK]",
    "◁think▷{}◁/think▷",
    "<seed:think>{}</seed:think>",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>analysis<|message|>{}<|end|>\n<|channel|>commentary<|message|>hm<|end|><|channel|>final<|message|>",
    "<think>a</think><think>{}</think>",
    "<analysis>{}</analysis>",
    "<reflection>{}</reflection>",
    "<|think|>{}<|end|><|begin|>assistant<|content|>",
]


@pytest.mark.parametrize("marks", DRAFTS)
def test_drafts_in_thoughts_are_no_rephrasings(marks):
    draft, final = "<rephrasing>A draft.</rephrasing>", "<rephrasing>Add 1.</rephrasing>"
    reply = read_reply(completion_of({"content": marks.format(draft) + final}).decode())
    assert read_rephrasings(reply.text) == ["Add 1."]
    alone = read_reply(completion_of({"content": marks.format(draft)}).decode())
    assert read_rephrasings(alone.text) == []
    assert alone.fault.startswith("it holds no text: ")


@pytest.mark.parametrize(
    "opening", ["<think>", "<thought>", "<reasoning>", "[THINK]", "<|channel|>analysis<|message|>"]
)
def test_thoughts_that_never_end_hold_no_rephrasing(opening):
    reply = read_reply(
        completion_of({"content": f"{opening}\n<rephrasing>A draft.</rephrasing> or"}).decode()
    )
    assert (reply.text, reply.fault) == ("", "it holds no text: it ends within its thoughts")


@pytest.mark.parametrize(
    "reason", ["length", "max_tokens", "MAX_TOKENS", "model_length", "content_filter", "abort", "?"]
)
@pytest.mark.parametrize(
    "content", ["<rephrasing>A draft.</rephrasing> or", "EQUIVALENT: yes", "", "<think>for ever"]
)
def test_a_reply_that_did_not_finish_has_no_text(reason, content):
    reply = read_reply(json.dumps({"choices": [{"message": {"content": content}, "finish_reason": reason}]}))
    assert reply.text == ""
    assert reply.fault.startswith(("it was cut off at its limit of tokens", "it did not finish: "))


@pytest.mark.parametrize("reason", ["stop", "STOP", "end_turn", None, "", 3])
def test_a_finished_reply_has_a_text(reason):
    reply = read_reply(json.dumps({"choices": [{"message": {"content": "Add 1."}, "finish_reason": reason}]}))
    assert reply.text == "Add 1."


@pytest.mark.parametrize("text", ["", "<think>for ever", " \n"])
def test_why_there_is_no_text_is_said(text):
    choice = {"message": {"content": text}, "finish_reason": "length"}
    assert read_reply(json.dumps({"choices": [choice]})).fault == "it was cut off at its limit of tokens"
    choice["finish_reason"] = "stop"
    assert read_reply(json.dumps({"choices": [choice]})).fault.startswith("it holds no text: ")


@pytest.mark.parametrize(
    ("body", "status", "parameter"),
    [
        ('{"error": {"message": "m", "code": 402}}', 402, ""),
        ('{"error": {"message": "m", "code": "insufficient_quota"}}', 429, ""),
        (
            '{"error": {"message": "m", "type": "invalid_request_error", "param": "max_tokens"}}',
            400,
            "max_tokens",
        ),
        ('{"error": {"message": "m", "type": "authentication_error"}}', 401, ""),
        ('{"error": {"message": "m", "status": "RESOURCE_EXHAUSTED"}}', 429, ""),
        ('{"error": {"message": "m", "code": 1302}}', None, ""),
        ('{"statusCode": 429, "message": "m"}', 429, ""),
        ('{"error": {"http_code": 503, "message": "m"}}', 503, ""),
        ('{"__type": "ThrottlingException", "message": "m"}', 429, ""),
        ('{"fault": {"faultstring": "m", "detail": {"errorcode": "policies.ratelimit"}}}', 429, ""),
        ('{"error": {"message": "m", "code": true}}', None, ""),
        ('{"detail": [{"loc": ["body", "top_k"], "msg": "m", "type": "int_parsing"}]}', None, "top_k"),
    ],
)
def test_an_error_is_read_in_any_wrapping(body, status, parameter):
    for wrapped in (body, f"[{body}]", f'{{"data": {body}}}'):
        error = read_error(wrapped)
        assert (error.message, error.status, error.parameter) == ("m", status, parameter)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Too many requests", 429),
        ("Rate limit exceeded", 429),
        ("The model is overloaded.", 503),
        # Refusals for good need a code: their words occur in passing errors, too.
        ("No permission to exceed it", None),
        ("Not found", None),
    ],
)
def test_a_message_without_a_code_tells_whether_to_wait(said, status):
    for body in ({"error": said}, {"error": {"message": said}}, {"message": said, "success": False}):
        assert read_error(json.dumps(body)).status == status


@pytest.mark.parametrize("reason", ["error", "ERROR", "network_error", "server_error", "failed"])
def test_a_server_that_broke_off_was_not_paid(reason):
    body = {"choices": [{"message": {"content": "Add"}, "finish_reason": reason}]}
    with pytest.raises(NoCompletionError):
        read_reply(json.dumps(body))


@pytest.mark.parametrize("error", [{"errors": [{"message": "slow"}]}, {"object": "error", "message": "slow"}])
def test_an_error_beside_a_choice_is_an_error(error):
    body = {"choices": [{"message": {"content": "Add 1."}, "finish_reason": "stop"}]}
    assert read_reply(json.dumps({**body, "errors": [], "object": "chat.completion"})).text == "Add 1."
    with pytest.raises(NoCompletionError):
        read_reply(json.dumps({**body, **error}))


@pytest.mark.parametrize("reason", ["stop", "STOP", "end_turn", "end", "completed", "finished", None])
def test_a_reply_that_finished_has_its_text(reason):
    assert read_reply(
        json.dumps({"choices": [{"message": {"content": "Add 1."}, "finish_reason": reason}]})
    ).text


@pytest.mark.parametrize(
    "reply",
    [
        "<rephrasing>{}</rephrasing>",
        "<Rephrasing>\n{}\n</REPHRASING>",
        '<rephrasing id="1">{}</rephrasing>',
        "<rephrasing 1>{}</rephrasing>",
        "<rephrasing_1>{}</rephrasing_1>",
        "I write between <rephrasing> and </rephrasing>: <rephrasing>{}</rephrasing>",
        "`<rephrasing>` … `</rephrasing>`\n<rephrasing>{}</rephrasing>",
        "<rephrasing>...</rephrasing>\n<rephrasing>{}</rephrasing>",
        "<rephrasing>A draft. <rephrasing>{}</rephrasing>",
    ],
)
def test_rephrasings_stand_between_tags_and_mentions_do_not_count(reply):
    assert read_rephrasings(reply.format("Add 1 and 2.")) == ["Add 1 and 2."]


def test_what_a_server_says_is_shown_in_printable_characters():
    error = read_error(
        json.dumps({"error": {"message": "\x1b]0;pwned\x07 \u202e\ud800 \x9b2J", "code": "a\x1b[2J"}})
    )
    assert error.message == r"\x1b]0;pwned\x07 \u202e\ud800 \x9b2J"
    assert error.code == r"a\x1b[2J"
    odd = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "\x1b[2J"}]})
    assert read_reply(odd).fault == r"it did not finish: its finish_reason is \x1b[2J"


NAMES = [
    "choices", "message", "content", "finish_reason", "usage", "prompt_tokens", "completion_tokens", "model", "id",
    "error", "code", "type", "text", "refusal", "tool_calls", "param", "loc", "status", "equivalent",
]  # fmt: skip
WORDS = [
    "\ud83d</think>",
    "text",
    "length",
    "stop",
    "error",
    "EQUIVALENT: yes",
    "<|channel|>final<|message|>",
    "\x1b[",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
)
COMPLETIONS = st.builds(
    lambda choice, rest: {**rest, "choices": [choice]}, JSON, st.dictionaries(st.sampled_from(NAMES), JSON)
)


@given(
    st.text()
    | st.binary().map(lambda body: body.decode(errors="replace"))
    | JSON.map(json.dumps)
    | COMPLETIONS.map(json.dumps)
)
def test_any_body_is_a_text_a_fault_or_no_reply(body):
    error = read_error(body)
    assert (error.message + error.code + error.parameter).isprintable()
    try:
        reply = read_reply(body)
    except NoCompletionError:
        return
    assert bool(reply.text) != bool(reply.fault)
    assert all(type(count) is int and count >= 0 for count in reply.usage)
    (reply.text + reply.model).encode()
    assert reply.fault.isprintable()
    read_rephrasings(reply.text)
    read_judgement(reply.text)
