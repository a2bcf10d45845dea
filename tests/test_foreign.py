"""Foreign data is read as its contract says, or refused by the one error, with source, place, value and remedy."""

from __future__ import annotations

import json
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.foreign import Count, Finite, ForeignDataError, Message, Text, read, read_json
from tagrpo.rollouts.servers.server_replies import Generated, Models

SOURCE = {"source": "the server http://one:8000", "remedy": "Check rollout.engine.url."}


class Choice(Message):
    index: Count
    logprobs: list[Finite]
    text: Text = ""


class Reply(Message):
    choices: list[Choice]


GOOD = {"choices": [{"index": 0, "logprobs": [-0.5, 0], "unknown": {}}]}


def test_a_good_reply_is_read():
    reply = read(Reply, GOOD, **SOURCE)
    assert reply.choices[0].logprobs == [-0.5, 0.0]
    assert reply.choices[0].text == ""
    assert read_json(Reply, json.dumps(GOOD), **SOURCE) == reply


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, "but got None"),
        ([], "but got []"),
        ({}, "to have choices, but it is missing"),
        ({"choices": None}, "at choices"),
        ({"choices": [{"index": 0}]}, "to have choices[0].logprobs"),
        ({"choices": [{"index": -1, "logprobs": []}]}, "at choices[0].index"),
        ({"choices": [{"index": True, "logprobs": []}]}, "but got True"),
        ({"choices": [{"index": 1.0, "logprobs": []}]}, "but got 1.0"),
        ({"choices": [{"index": "1", "logprobs": []}]}, "but got '1'"),
        ({"choices": [{"index": 0, "logprobs": [float("nan")]}]}, "at choices[0].logprobs[0]"),
        ({"choices": [{"index": 0, "logprobs": [float("-inf")]}]}, "a finite number, but got -inf"),
        ({"choices": [{"index": 0, "logprobs": [True]}]}, "but got True"),
        ({"choices": [{"index": 0, "logprobs": [], "text": "\ud800"}]}, r"\ud800"),
        ({"choices": [{"index": 0, "logprobs": [], "text": 3}]}, "at choices[0].text"),
    ],
)
def test_what_breaks_the_contract_is_named(value, place):
    with pytest.raises(ForeignDataError) as caught:
        read(Reply, value, **SOURCE)
    message = str(caught.value)
    assert message.startswith("Expected the server http://one:8000")
    assert message.endswith("Check rollout.engine.url.")
    assert place in message


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "[Infinity]", b"\xff", "[" * 100_000, "9" * 10_000, '"\\ud800"']
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ForeignDataError, match=re.escape("Check rollout.engine.url.")):
        read_json(list[Text], text, **SOURCE)


def test_errors_are_short_and_obeyed_by_no_terminal():
    with pytest.raises(ForeignDataError) as caught:
        read(Count, "\x1b[2J\u202e\n" + "x" * 10_000, **SOURCE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    with pytest.raises(ForeignDataError) as caught:
        read(dict[str, Count], {"\x1b[31mred": -1}, **SOURCE)
    assert str(caught.value).isprintable()


def test_numbers_of_other_libraries_are_no_json():
    with pytest.raises(ForeignDataError):
        read(Count, np.int64(3), **SOURCE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["choices", "index", "logprobs", "text"]), inner)
    ),
)


@given(JSON)
def test_only_the_one_error_is_raised(value):
    try:
        reply = read(Reply, value, **SOURCE)
    except ForeignDataError:
        return
    assert all(choice.index >= 0 and np.isfinite(choice.logprobs).all() for choice in reply.choices)


@given(st.text() | st.binary())
def test_no_text_raises_another_error(text):
    try:
        read_json(Reply, text, **SOURCE)
    except ForeignDataError:
        return


@pytest.mark.parametrize("kind", [Reply, list[Count], dict[str, list[Count]], tuple[Count, ...]])
def test_the_check_of_a_list_stops_at_its_first_wrong_item(kind):
    wrong = {"choices": [-1] * 100_000} if kind is Reply else [-1] * 100_000
    wrong = (
        tuple(wrong)
        if kind == tuple[Count, ...]
        else {"a": wrong}
        if kind == dict[str, list[Count]]
        else wrong
    )
    tracemalloc.start()
    with pytest.raises(ForeignDataError, match=r"\[0\]"):
        read(kind, wrong, **SOURCE)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000, "an error for each item would take tens of megabytes"


@pytest.mark.shell
def test_every_list_of_every_message_stops_at_its_first_wrong_item():
    from tagrpo.callbacks.counts import StoredRecord
    from tagrpo.runs.checkpoints import WholeContent

    def lists(schema):
        if isinstance(schema, dict):
            if schema.get("type") in ("list", "tuple", "set", "frozenset"):
                yield schema
            for part in schema.values():
                yield from lists(part)
        elif isinstance(schema, list | tuple):
            for part in schema:
                yield from lists(part)

    found = 0
    for message in (Generated, Models, StoredRecord, WholeContent, Reply):
        for schema in lists(message.__pydantic_core_schema__):
            assert schema["fail_fast"] is True, message
            found += 1
    assert found > 5


@pytest.mark.parametrize("text", ["1e400", "-1e999", "[1.5, 2e308]", '{"a": {"b": 1E+400}}'])
def test_a_number_beyond_floating_point_is_not_read_as_infinity(text):
    for kind in (object, Finite, dict[str, object], list[object]):
        with pytest.raises(ForeignDataError, match=r"too large"):
            read_json(kind, text, **SOURCE)
    assert read_json(list[Finite], "[1e308, -1.5, 1e-400]", **SOURCE) == [1e308, -1.5, 0.0]
