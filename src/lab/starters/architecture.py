"""The starter policy before training: its tokenizer, its network, the prompt that it expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from .examples import ANSWER_PATTERN, TOKEN_PATTERN, arithmetic_vocabulary

UNKNOWN = "<unk>"


def prompt_text(question: str) -> str:
    """The prompt that the starter is trained on."""
    return f"{question} <sep>"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the word-level tokenizer of the embedded task: one token per word, digit or punctuation mark.

    Decoding gives the text back exactly: digits are joined, and no space goes before `. , ; : ?`. Two numbers
    in a row therefore come back as one. Words outside the vocabulary become `<unk>`.

    >>> build_tokenizer().tokenize("He buys 14. <sep>")
    ['He', 'buys', '1', '4', '.', '<sep>']
    """
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "sep_token": "<sep>", "unk_token": "<unk>"}
    # Digits are joined.
    return _word_level(arithmetic_vocabulary(), TOKEN_PATTERN, special, [(r"(?<=[0-9]) (?=[0-9])", "")])


def build_answer_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build the word-level tokenizer of a task whose correct responses can be listed: one token per word of `words`.

    No two sequences of tokens before the stop token are decoded to the same answer: no token is left out in decoding,
    and a number is one token. So `<eos>` pads too, and `<sep>` and `<unk>` are ordinary words.

    >>> build_answer_tokenizer(["12", "24", "Make", "from", ".", ","]).tokenize("Make 24 from 12, 3. <sep>")
    ['Make', '24', 'from', '12', ',', '<unk>', '.', '<sep>']
    """
    special = {"pad_token": "<eos>", "eos_token": "<eos>"}
    return _word_level(["<sep>", UNKNOWN, *words], ANSWER_PATTERN, special, [])


def _word_level(
    words: Sequence[str], pattern: str, special: Mapping[str, str], joins: Sequence[tuple[str, str]]
) -> PreTrainedTokenizerFast:
    """A tokenizer of special tokens and words, which `pattern` finds; decoding puts spaces between, but for `joins`."""
    ids = {word: i for i, word in enumerate(dict.fromkeys([*special.values(), *words]))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Sequence(
        [
            # Without word pieces, this decoder puts a space before each token but the first.
            decoders.WordPiece(prefix="<piece>", cleanup=False),
            decoders.Fuse(),
            *(decoders.Replace(Regex(found), text) for found, text in [*joins, (r" (?=[.,;:?])", "")]),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
        **special,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Build the untrained policy; its weights come from torch's global random state."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)
