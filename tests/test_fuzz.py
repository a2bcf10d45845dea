"""Inputs that fuzzing has found to reach most branches are read as they were; scripts/fuzz.py says how to find more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

import fuzz_targets as fuzz  # noqa: E402

pytestmark = pytest.mark.pages


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_inputs_of_the_corpus_and_seeds_are_read_without_an_exception(target):
    kept = json.loads((TESTS / "fuzz_corpus" / f"{target}.json").read_text())
    assert len(kept) >= 10
    for content in [*fuzz.seeds(target), *(text.encode("latin-1") for text in kept)]:
        fuzz.TARGETS[target](content)


def test_what_is_asserted_can_fail(monkeypatch):
    monkeypatch.setattr("tagrpo.rephrasing.calls._fault", lambda *_: "")
    with pytest.raises(AssertionError):
        fuzz.replies(b'{"choices": [{"message": {}}]}')
