"""Bytes of tokens: byte-level BPE, SentencePiece, and no tokenizer at all."""

from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tagrpo.report.pieces import Pieces, tokenizer_of

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


def bytes_of(tokens):
    """The bytes of tokens as they are shown, `\\xe2` for a byte of an incomplete letter."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), "".join(tokens).encode())


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_bytes_give_any_text_back(byte_level, tmp_path, text):
    ids = [*byte_level.encode(text).ids, 0]
    *tokens, last = Pieces(tokenizer_of(tmp_path, {})).shown(ids)
    assert last == ["<eos>"], "a special token stands apart"
    assert bytes_of(tokens).decode() == text == byte_level.decode(ids)


def test_a_letter_that_was_cut_is_shown_by_its_bytes(byte_level, tmp_path):
    tokens = Pieces(tokenizer_of(tmp_path, {})).shown(byte_level.encode("∑").ids[:-1])
    assert "".join(tokens) == r"\xe2\x88"


def test_without_a_tokenizer_tokens_are_numbers(tmp_path):
    settings = {"data": {"tokenizer": str(tmp_path)}, "model": {"path": None}}
    assert Pieces(tokenizer_of(tmp_path, settings)).shown([3, 7]) == ["#3 ", "#7 "]
