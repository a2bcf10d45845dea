"""Settings as arguments of a command, read by Hydra's own parser."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.overrides import override
from tests.helpers import parsed_by_hydra


@pytest.mark.shell
@given(st.text(max_size=12).filter(lambda text: text.isprintable() and "${" not in text))
def test_a_shell_and_hydra_read_the_text(text):
    (word,) = shlex.split(shlex.quote(override("data.train.columns.answer", text)))
    parsed = parsed_by_hydra(word)
    assert parsed.key_or_group == "data.train.columns.answer"
    assert parsed.value() == text or str(parsed.value()) == text


@pytest.mark.shell
@pytest.mark.parametrize(
    "text", ["null", "True", "FALSE", "inf", "NaN", "12", "1e5", "[1]", "{a: 1}", "", "a,b", "x=y", "#", "~"]
)
def test_what_hydra_would_read_as_another_value_stays_text(text):
    value = parsed_by_hydra(override("name", text)).value()
    assert str(value) == text
    assert isinstance(value, str) or hasattr(value, "quote")


def test_a_path_that_needs_no_quotes_has_none():
    assert override("root", Path("/runs/a-b_c.d@1:2+3")) == "root=/runs/a-b_c.d@1:2+3"
