"""Make a starter policy for the embedded task: `python -m tagrpo.warmstart --output DIR --seed 0`.

A Qwen3 of half a million parameters is trained from nothing, first on chains of arithmetic facts, then on
word problems with written solutions. It stops at a validation accuracy, not at a time: a policy that hardly
solves anything gives reinforcement learning nothing to select from. About four minutes on one core; the same
seed gives the same weights on the same machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers
from tokenizers import Regex, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from .datamodules.sources.arithmetic import ArithmeticSource, supervised_example
from .datamodules.sources.word_problems import ANSWER_MARKER, MAX_VALUE, TOKEN_PATTERN, Operation, vocabulary
from .types import QuestionGroup

log = logging.getLogger(__name__)

IGNORED = -100
MAX_NEW_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class WarmstartConfig:
    """How long and how the starter is trained."""

    seed: int = 0
    chain_steps: int = 500
    """Steps on chains of arithmetic facts; the first part of the schedule."""
    word_steps: int = 1600
    """Steps on word problems."""
    extra_steps: int = 400
    """Steps of one extension, with a learning-rate schedule of its own, while the gate is not met."""
    max_extensions: int = 4
    batch_size: int = 32
    learning_rate: float = 2e-3
    """Peak of a cosine that ends at a tenth of it."""
    gate: float = 0.40
    """Validation accuracy to reach: the mean pass@1 of answers sampled at temperature 1."""
    validation_questions: int = 192
    validation_samples: int = 4


class TrainingSequence(NamedTuple):
    """Tokens, and which of them are learned."""

    token_ids: Tensor
    """[L] long."""
    labels: Tensor
    """[L] long: the token itself, or -100 where nothing is learned."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the word-level tokenizer of the embedded task: one token per word, digit or punctuation mark.

    Decoding gives the text back exactly: digits are joined, and no space goes before `. , ; : ?`. Two numbers
    in a row therefore come back as one. Words outside the vocabulary become `<unk>`.

    >>> tokenizer = build_tokenizer()
    >>> tokenizer.tokenize("He buys 14. <sep>")
    ['He', 'buys', '1', '4', '.', '<sep>']
    >>> tokenizer.decode(tokenizer("9 + 5 = 14 #### 14<eos>").input_ids, skip_special_tokens=True)
    '9 + 5 = 14 #### 14'
    """
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "sep_token": "<sep>", "unk_token": "<unk>"}
    ids = {word: i for i, word in enumerate([*special.values(), *vocabulary()])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN_PATTERN), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Sequence(
        [
            # Without word pieces, this decoder puts a space before each token but the first.
            decoders.WordPiece(prefix="<piece>", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=[0-9]) (?=[0-9])"), ""),
            decoders.Replace(Regex(r" (?=[.,;:?])"), ""),
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


def warmstart(output: Path, config: WarmstartConfig) -> dict[str, Any]:
    """Train a starter policy and write it to `output` as a Hugging Face folder.

    Returns:
        What `warmstart.json` holds: the configuration, the steps taken, the loss at the end, the validation
        accuracy over all questions and by family, and the versions of the libraries.

    Raises:
        RuntimeError: the gate was not met within all extensions; nothing is written.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        rng = random.Random(config.seed)
        tokenizer = build_tokenizer()
        model = build_model(tokenizer)
        chains = batches(lambda: chain_sequence(tokenizer, rng), config.batch_size, rng)
        problems = batches(lambda: problem_sequence(tokenizer, rng), config.batch_size, rng)
        validation = ArithmeticSource(
            "validation", size=config.validation_questions, num_rephrasings=0
        ).load()

        schedule = [*islice(chains, config.chain_steps), *islice(problems, config.word_steps)]
        for extension in range(config.max_extensions + 1):
            if extension > 0:
                schedule = list(islice(problems, config.extra_steps))
            loss = fit(model, schedule, config.learning_rate)
            solved = solve_rate(model, tokenizer, validation, config.validation_samples)
            accuracy = solved.mean().item()
            log.info("extension %d: loss %.3f, validation accuracy %.3f", extension, loss, accuracy)
            if accuracy >= config.gate:
                break
        else:
            raise RuntimeError(
                f"Expected a validation accuracy of at least {config.gate} but got {accuracy:.3f} with seed "
                f"{config.seed} after {config.chain_steps} + {config.word_steps} steps and "
                f"{config.max_extensions} extensions of {config.extra_steps}. Nothing was written. "
                "Raise `word_steps` or `max_extensions`, or lower `gate`."
            )

    families = [str(group.metadata["family"]) for group in validation]
    report = {
        **asdict(config),
        "steps": config.chain_steps + config.word_steps + extension * config.extra_steps,
        "loss": loss,
        "validation_accuracy": accuracy,
        "validation_accuracy_by_family": {
            family: solved[[name == family for name in families]].mean().item()
            for family in dict.fromkeys(families)
        },
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
    }
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "warmstart.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def fit(
    model: Qwen3ForCausalLM, schedule: Sequence[Sequence[TrainingSequence]], learning_rate: float
) -> float:
    """Take one AdamW step per batch, warming up over 50 steps and then following a cosine down to a tenth.

    Returns:
        The loss, averaged over the last 50 steps; nats per learned token.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / len(schedule))),
    )
    losses: deque[float] = deque(maxlen=50)
    for batch in schedule:
        # Padding lies behind what is learned, where causal attention can't see it: no mask is needed.
        token_ids = pad_sequence([sequence.token_ids for sequence in batch], batch_first=True)
        labels = pad_sequence(
            [sequence.labels for sequence in batch], batch_first=True, padding_value=IGNORED
        )
        loss = model(input_ids=token_ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def solve_rate(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[QuestionGroup],
    num_samples: int,
) -> Tensor:
    """Sample answers to the original questions at temperature 1 from torch's global random state.

    Returns:
        [Q] float32: the share of the samples whose text after the last marker is a reference answer.
    """
    model.eval()
    inputs = tokenizer([prompt_text(group.question) for group in groups], padding=True, return_tensors="pt")
    outputs = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=True,
        top_k=0,
        num_return_sequences=num_samples,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    texts = tokenizer.batch_decode(outputs[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    answers = [text.rpartition(ANSWER_MARKER)[2].strip() for text in texts]
    correct = [answer in groups[i // num_samples].answer for i, answer in enumerate(answers)]
    return torch.tensor(correct, dtype=torch.float32).view(len(groups), num_samples).mean(dim=1)


def prompt_text(question: str) -> str:
    """Return the prompt that the starter is trained on.

    >>> prompt_text("Compute 2 + 3 = ?")
    'Compute 2 + 3 = ? <sep>'
    """
    return f"{question} <sep>"


def problem_sequence(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> TrainingSequence:
    """Draw a word problem with its solution; the solution is learned."""
    example = supervised_example(rng)
    prompt = tokenizer(prompt_text(example.question)).input_ids
    return _sequence([(prompt, False), (tokenizer(example.response + tokenizer.eos_token).input_ids, True)])


def chain_sequence(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> TrainingSequence:
    """Draw a chain of five arithmetic facts, `23 + 5 = 28 - 9 = 19 …`; the results are learned."""
    value = rng.randint(0, MAX_VALUE)
    parts = [(f"{tokenizer.sep_token} {value}", False)]
    while len(parts) < 11:
        operation = rng.choice(
            [*2 * [Operation("+", rng.randint(2, 9)), Operation("-", rng.randint(2, 9))], Operation("*", 2)]
        )
        if operation.valid_for(value):
            value = operation(value)
            parts += [(f"{operation.symbol} {operation.operand} =", False), (str(value), True)]
    return _sequence([(tokenizer(text).input_ids, learned) for text, learned in parts])


def batches(
    draw: Callable[[], TrainingSequence], batch_size: int, rng: random.Random
) -> Iterator[list[TrainingSequence]]:
    """Yield batches without end. Each holds sequences of like length, so that little is padded."""
    while True:
        drawn = sorted((draw() for _ in range(8 * batch_size)), key=lambda sequence: len(sequence.token_ids))
        by_length = [drawn[i : i + batch_size] for i in range(0, len(drawn), batch_size)]
        rng.shuffle(by_length)
        yield from by_length


def _sequence(parts: Sequence[tuple[list[int], bool]]) -> TrainingSequence:
    token_ids = [token for ids, _ in parts for token in ids]
    labels = [token if learned else IGNORED for ids, learned in parts for token in ids]
    return TrainingSequence(torch.tensor(token_ids), torch.tensor(labels))


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description="Train a starter policy for the embedded task.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # as fast as two for so small a model, and sums keep their order
    report = warmstart(arguments.output, WarmstartConfig(seed=arguments.seed))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
