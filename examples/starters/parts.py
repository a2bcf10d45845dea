"""Shared by the starter policies of the embedded tasks: examples to learn from, tokenizers, the network."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tagrpo.datamodules.sources.base import Source
from tagrpo.lab.tasks.generated import Asked, Family, ListSource, Split, bucket
from tagrpo.types import EnumeratingVerifier

UNKNOWN = "<unk>"
ANSWER_PATTERN = r"<sep>|[a-z][0-9]\b|[0-9]+|[A-Za-z]+|[^\sA-Za-z0-9]"
"""One token in tasks whose answers can be listed: a word, a number, a cell of a grid, a punctuation mark."""
LARGE_SHARE = 0.05
"""Share of examples as large as `test_size`: a policy that has never read such a number can't even copy it."""


class SupervisedExample(NamedTuple):
    """A question with a written response; problems come from the buckets of the training split."""

    question: str
    response: str
    family: str


class Starter(NamedTuple):
    """A task's part in `warmstart`: its questions, its words, and how long to train."""

    source: Callable[..., Source]  # of the validation questions
    example: Callable[[random.Random], SupervisedExample]
    build_tokenizer: Callable[[], PreTrainedTokenizerFast]
    verifier: type[EnumeratingVerifier] | None = None
    """Lists all correct answers, for an exact validation accuracy; None: answers are sampled."""
    settings: Mapping[str, Any] = {}  # changes to the defaults of `WarmstartConfig`


def draw_family(rng: random.Random, families: Mapping[str, Any]) -> str:
    """The name of a family, drawn by the `share` of each."""
    return rng.choices(list(families), [family.share for family in families.values()])[0]


def draw_training(splits: Mapping[str, Split], draw: Callable[[], Asked]) -> Asked:
    """Draw until the problem is of the training split."""
    while bucket(asked := draw()) not in splits["train"].buckets:
        pass
    return asked


def draw_problem(
    rng: random.Random, source: type[ListSource], sizes: Sequence[Any], sample: Callable[..., Asked]
) -> tuple[str, Asked]:
    """A family by its share, and a problem of the training split of one of the sizes, or as large as `test_size`."""
    family = draw_family(rng, source.families)
    size, large = rng.choice(sizes), rng.random() < LARGE_SHARE
    return family, draw_training(source.splits, lambda: sample(rng, size, large=large))


def vocabulary_of(families: Iterable[Family], words: Iterable[str]) -> list[str]:
    """`words` and those of the families' layouts, sorted.

    >>> vocabulary_of([Family(layout="Make {target} from {numbers}.", link=" and ")], ["24"])
    ['.', '24', 'Make', 'and', 'from']
    """
    texts = [f"{re.sub('{[a-z]+}', ' ', family.layout)} {family.link}" for family in families]
    return sorted({*words, *re.findall(ANSWER_PATTERN, " ".join(texts))})


def prompt_text(question: str) -> str:
    """The prompt that the starter is trained on."""
    return f"{question} <sep>"


def build_answer_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build the word-level tokenizer of a task whose correct responses can be listed: one token per word of `words`.

    No two sequences of tokens before the stop token are decoded to the same answer: no token is left out in decoding,
    and a number is one token. So `<eos>` pads too, and `<sep>` and `<unk>` are ordinary words.

    >>> build_answer_tokenizer(["12", "24", "Make", "from", ".", ","]).tokenize("Make 24 from 12, 3. <sep>")
    ['Make', '24', 'from', '12', ',', '<unk>', '.', '<sep>']
    """
    special = {"pad_token": "<eos>", "eos_token": "<eos>"}
    return word_level_tokenizer(["<sep>", UNKNOWN, *words], ANSWER_PATTERN, special, [])


def word_level_tokenizer(
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
