"""Make a starter policy for an embedded task: `python -m examples.starters.warmstart --task countdown --output DIR`.

A Qwen3 of half a million parameters is trained from random weights on questions with written responses; that of
`arithmetic`, the one that ships with the package, on chains of arithmetic facts before. Training ends when a validation
accuracy is reached: a policy that hardly solves anything gives reinforcement learning nothing to select from. It takes
two to five minutes on one core. The same seed gives the same weights to the bit with the same machine and libraries.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3ForCausalLM

from tagrpo.files import write_json
from tagrpo.lab.exact import correct_tokens, exact_success
from tagrpo.lab.tasks.arithmetic.source import MAX_VALUE, Operation
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import save_model
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import EnumeratingVerifier, QuestionGroup

from . import arithmetic, countdown, shortest_path
from .arithmetic import ANSWER_MARKER, arithmetic_example
from .parts import Starter, SupervisedExample, build_model, prompt_text

log = logging.getLogger(__name__)

TASKS: Mapping[str, Starter] = {
    "arithmetic": arithmetic.STARTER,
    "arithmetic_templates": arithmetic.TEMPLATES_STARTER,
    "countdown": countdown.STARTER,
    "shortest_path": shortest_path.STARTER,
}
"""Name on the command line → what the starter of a task is made from."""

IGNORED = -100
MAX_NEW_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class WarmstartConfig:
    """How long and how the starter is trained."""

    task: str = "arithmetic"  # one of `TASKS`, whose settings replace the defaults below
    seed: int = 0
    chain_steps: int = 500  # on chains of arithmetic facts; the first part of the schedule
    word_steps: int = 1500  # on questions of the task
    extra_steps: int = (
        400  # of one extension, with a learning-rate schedule of its own, while the gate is not met
    )
    max_extensions: int = 4
    batch_size: int = 32
    learning_rate: float = 2e-3  # peak of a cosine that ends at a tenth of it
    gate: float = 0.40  # validation accuracy to reach: the mean pass@1 at temperature 1
    validation_questions: int = 192
    validation_samples: int = 4  # answers to each; none where pass@1 can be known exactly


class TrainingSequence(NamedTuple):
    """[L] long tokens, and [L] long labels: the token itself, or -100 where nothing is learned."""

    token_ids: Tensor
    labels: Tensor

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, *parts: tuple[str, bool]) -> TrainingSequence:
        """From texts, one after the other, and whether each is learned."""
        pairs = [(token, learned) for text, learned in parts for token in tokenizer(text).input_ids]
        labels = [token if learned else IGNORED for token, learned in pairs]
        return cls(torch.tensor([token for token, _ in pairs]), torch.tensor(labels))


def warmstart(output: Path, config: WarmstartConfig) -> dict[str, Any]:
    """Train a starter policy, write it to `output` as a Hugging Face folder, and return what `warmstart.json` holds.

    Raises:
        RuntimeError: the gate was not met within all extensions; nothing is written.
    """
    task = TASKS[config.task]
    validation = task.source("validation", size=config.validation_questions).load()
    tokenizer = task.build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build_model(tokenizer)
        steps, loss, solved = train_to_gate(model, tokenizer, validation, config)
    by_family = defaultdict(list)
    for group, rate in zip(validation, solved.tolist(), strict=True):
        by_family[group.metadata["family"]].append(rate)
    report = {
        **asdict(config),
        "steps": steps,
        "loss": loss,
        "validation_accuracy": solved.mean().item(),
        "validation_accuracy_by_family": {family: fmean(rates) for family, rates in by_family.items()},
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
    }
    save_model(model, tokenizer, output)
    write_json(output / "warmstart.json", report)
    return report


def train_to_gate(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    validation: Sequence[QuestionGroup],
    config: WarmstartConfig,
) -> tuple[int, float, Tensor]:
    """Train on chains and questions, then extend while the validation accuracy is below the gate.

    Returns steps, the mean loss of the last 50 (nats per learned token), and [Q] success rates in validation.
    """
    task, rng = TASKS[config.task], random.Random(config.seed)
    chains = batches(lambda: chain_sequence(tokenizer, rng), config.batch_size, rng)
    problems = batches(lambda: problem_sequence(tokenizer, rng, task.example), config.batch_size, rng)
    rounds = [config.chain_steps * [chains] + config.word_steps * [problems]]
    rounds += config.max_extensions * [config.extra_steps * [problems]]
    steps = 0
    for streams in rounds:
        loss = fit(model, map(next, streams), len(streams), config.learning_rate)
        steps += len(streams)
        if task.verifier is None:
            solved = solve_rate(model, tokenizer, validation, config.validation_samples)
        else:
            solved = exact_solve_rate(copy.deepcopy(model), tokenizer, validation, task.verifier())
        accuracy = solved.mean().item()
        log.info("%d steps: loss %.3f, validation accuracy %.3f", steps, loss, accuracy)
        if accuracy >= config.gate:
            return steps, loss, solved
    raise RuntimeError(
        f"Expected a validation accuracy of at least {config.gate} but got {accuracy:.3f} with seed "
        f"{config.seed} after {steps} steps, {config.max_extensions} extensions included. "
        "Raise `word_steps` or `max_extensions` of WarmstartConfig, or lower `gate`."
    )


def fit(
    model: Qwen3ForCausalLM,
    schedule: Iterable[Sequence[TrainingSequence]],
    num_steps: int,
    learning_rate: float,
) -> float:
    """One AdamW step per batch, with 50 steps of warm-up and a cosine; returns the mean loss of the last 50 steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / num_steps))
    )
    losses: deque[float] = deque(maxlen=50)
    for batch in schedule:
        # No mask is needed: padding follows what is learned, and causal attention does not look ahead.
        ids = pad_sequence([sequence.token_ids for sequence in batch], batch_first=True)
        labels = pad_sequence(
            [sequence.labels for sequence in batch], batch_first=True, padding_value=IGNORED
        )
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return fmean(losses)


@torch.no_grad()
def solve_rate(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[QuestionGroup],
    num_samples: int,
) -> Tensor:
    """[Q] float32: for each original question, the share of samples whose text after the last marker is correct.

    Samples are drawn at temperature 1 from torch's global random state.
    """
    model.eval()
    inputs = tokenizer([prompt_text(group.question) for group in groups], padding=True, return_tensors="pt")
    outputs = model.generate(  # type: ignore[misc]  # its annotation of `self` excludes every model class
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=True,
        top_k=0,
        num_return_sequences=num_samples,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    texts = tokenizer.batch_decode(outputs[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    finals = [text.rpartition(ANSWER_MARKER) for text in texts]
    correct = [
        bool(marker) and final.strip() in groups[i // num_samples].answer
        for i, (_, marker, final) in enumerate(finals)
    ]
    return torch.tensor(correct, dtype=torch.float32).view(len(groups), num_samples).mean(dim=1)


def exact_solve_rate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[QuestionGroup],
    verifier: EnumeratingVerifier,
    temperature: float = 1.0,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> Tensor:
    """[Q] float64, the probability that the answer to the original question is correct; takes the model over."""
    prompts = [torch.tensor(tokenizer(prompt_text(group.question)).input_ids) for group in groups]
    correct = [
        correct_tokens(
            verifier.correct_responses(group.answer), tokenizer, [tokenizer.eos_token_id], max_new_tokens
        )
        for group in groups
    ]
    return exact_success(Scorer(CausalPolicy(model.eval())), prompts, correct, temperature)


def problem_sequence(
    tokenizer: PreTrainedTokenizerBase,
    rng: random.Random,
    draw: Callable[[random.Random], SupervisedExample] = arithmetic_example,
) -> TrainingSequence:
    """Draw a question with a response; the response is learned."""
    question, response, _ = draw(rng)
    return TrainingSequence.of(
        tokenizer, (prompt_text(question), False), (response + tokenizer.eos_token, True)
    )


def chain_sequence(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> TrainingSequence:
    """Draw a chain of five arithmetic facts, `23 + 5 = 28 - 9 = 19 …`; the results are learned."""
    value = rng.randint(0, MAX_VALUE)
    parts = [(f"{tokenizer.sep_token} {value}", False)]
    while len(parts) < 11:
        add, subtract = Operation("+", rng.randint(2, 9)), Operation("-", rng.randint(2, 9))
        operation = rng.choice([add, subtract, add, subtract, Operation("*", 2)])
        if operation.valid_for(value):
            value = operation(value)
            parts += [(f"{operation.symbol} {operation.operand} =", False), (str(value), True)]
    return TrainingSequence.of(tokenizer, *parts)


def batches(
    draw: Callable[[], TrainingSequence], batch_size: int, rng: random.Random
) -> Iterator[list[TrainingSequence]]:
    """Yield batches without end. Each holds sequences of similar length, so that there is little padding."""
    while True:
        drawn = sorted((draw() for _ in range(8 * batch_size)), key=lambda sequence: len(sequence.token_ids))
        by_length = [drawn[i : i + batch_size] for i in range(0, len(drawn), batch_size)]
        rng.shuffle(by_length)
        yield from by_length


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description="Train a starter policy for an embedded task.")
    parser.add_argument("--task", choices=TASKS, default="arithmetic")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # as fast as two for so small a model, and sums are always in the same order
    settings = {"task": arguments.task, "seed": arguments.seed, **TASKS[arguments.task].settings}
    report = warmstart(arguments.output, WarmstartConfig(**settings))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
