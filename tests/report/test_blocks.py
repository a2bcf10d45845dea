"""Texts of tokens: byte-level BPE, and no tokenizer at all."""

from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tagrpo.report.blocks import pieces_of

TEXTS = ["the sum is 42", "数学 ∑ \U0001f9ee, naïve\n\tline", "a\u202eb\0c"]


@pytest.fixture
def byte_level(tmp_path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<eos>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS[:1] * 4, trainer)
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_give_text_back_and_parts_of_a_letter_are_marked(byte_level, tmp_path, text):
    ids = [*byte_level.encode(text).ids, 0]
    *tokens, last = map(pieces_of(tmp_path, {}), ids)
    assert last == ["<eos>"], "a special token stands apart"
    others = len(text.encode()) - len(text.encode("ascii", "ignore"))
    assert re.sub("\ufffd+", "", "".join(tokens)) == re.sub(r"[^\0-\x7f]", "", text)
    assert "".join(tokens).count("\ufffd") == others, "a token is a byte"


def test_without_a_tokenizer_tokens_are_numbers(tmp_path):
    settings = {"data": {"tokenizer": str(tmp_path)}, "model": {"path": None}}
    assert list(map(pieces_of(tmp_path, settings), [3, 7])) == ["#3 ", "#7 "]
