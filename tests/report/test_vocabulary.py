"""Bytes of tokens: byte-level BPE, SentencePiece, and no tokenizer at all."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tagrpo.report.vocabulary import Vocabulary, tokenizer_of

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
def test_tokens_of_bytes_give_any_text_back(byte_level, tmp_path, text):
    ids = np.array([*byte_level.encode(text).ids, 0])
    vocabulary = Vocabulary(np.unique(ids)[::-1], tokenizer_of(tmp_path, {}))
    places = vocabulary.places(ids)
    assert vocabulary.ids[places].tolist() == ids.tolist()
    assert vocabulary.text(places) == text == byte_level.decode(ids.tolist())
    columns = vocabulary.columns()
    assert columns["ids"][columns["special"] == 1].tolist() == [0]


def test_a_letter_that_was_cut_is_replaced(byte_level, tmp_path):
    ids = np.array(byte_level.encode("∑").ids[:-1])
    vocabulary = Vocabulary(np.unique(ids), tokenizer_of(tmp_path, {}))
    assert vocabulary.text(vocabulary.places(ids)) == "\ufffd" == byte_level.decode(ids.tolist())


def test_without_a_tokenizer_tokens_are_numbers(tmp_path):
    settings = {"data": {"tokenizer": str(tmp_path)}, "model": {"path": None}}
    vocabulary = Vocabulary(np.array([7, 3]), tokenizer_of(tmp_path, settings))
    assert vocabulary.text(vocabulary.places(np.array([3, 7]))) == "#3 #7 "
