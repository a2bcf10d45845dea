from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rephrasing.calls import Usage, read_reply
from tagrpo.rephrasing.rephraser import read_rephrasings

from .conftest import MALFORMED


@pytest.mark.parametrize("kind", MALFORMED)
def test_no_reply_breaks_the_reader(kind):
    start = time.process_time()
    reply = read_reply(MALFORMED[kind].decode(errors="replace"))
    assert bool(reply.text) != bool(reply.fault)
    assert reply.usage == Usage()
    assert isinstance(reply.model, str)
    (reply.text + reply.fault).encode()  # can be written
    assert time.process_time() - start < 5


def test_a_well_formed_reply_is_read_whole():
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    body = {"id": "c1", "model": "m-2026", "usage": usage}
    body["choices"] = [{"finish_reason": "stop", "message": {"content": "<think>1, 2</think> Add 1."}}]
    reply = read_reply(json.dumps(body), "now")
    assert (reply.text, reply.fault, reply.model) == ("Add 1.", "", "m-2026")
    assert reply.usage == Usage(prompt_tokens=9, completion_tokens=3)
    assert reply.time == "now"


@pytest.mark.parametrize("text", ["", "<think>for ever", " \n"])
def test_why_there_is_no_text_is_said(text):
    choice = {"message": {"content": text}, "finish_reason": "length"}
    assert read_reply(json.dumps({"choices": [choice]})).fault == "it was cut off at its limit of tokens"
    choice["finish_reason"] = "stop"
    assert read_reply(json.dumps({"choices": [choice]})).fault.startswith("it holds no text: ")


NAMES = [
    "choices",
    "message",
    "content",
    "finish_reason",
    "usage",
    "prompt_tokens",
    "prompt_tokens_details",
    "model",
    "id",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud83d</think>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
)


@given(st.text() | st.binary().map(lambda body: body.decode(errors="replace")) | JSON.map(json.dumps))
def test_any_body_is_a_text_or_the_reason_why_there_is_none(body):
    reply = read_reply(body)
    assert bool(reply.text) != bool(reply.fault)
    assert all(type(count) is int and count >= 0 for count in reply.usage)
    (reply.text + reply.model).encode()
    read_rephrasings(reply.text)
