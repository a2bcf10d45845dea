"""Starter policies that differ only in how much they have seen of a question's reformulations.

    python -m examples.starters.exposed --task countdown --seed 0 --output runs/exposed/countdown/seed0

The questions are those of the regime `reformulated`. A base policy learns the task in two phrasings that it is never
asked in. It is then trained on in branches of equally many steps: the phrasing of the originals has the same small
share of each branch, and the reformulations have a share that differs. So originals are about equally hard in all
branches, and the gap, the success on the reformulations minus that on the originals, grows with the share of the
reformulations. The folder of a branch holds its policy, and in `starter.json` its exact success on validation
questions.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from tagrpo.lab.exact import correct_tokens, exact_success
from tagrpo.lab.tasks.arithmetic import ArithmeticSource, ChainReward
from tagrpo.lab.tasks.arithmetic.source import MAX_VALUE
from tagrpo.lab.tasks.countdown import CountdownReward, CountdownSource
from tagrpo.lab.tasks.generated import REFORMULATIONS, Family, GeneratedSource
from tagrpo.lab.tasks.shortest_path import ShortestPathReward, ShortestPathSource
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import save_model
from tagrpo.packing.policy import CausalPolicy
from tagrpo.runs.files import write_json
from tagrpo.types import EnumeratingVerifier, QuestionGroup

from .arithmetic import arithmetic_vocabulary
from .countdown import countdown_vocabulary
from .parts import SupervisedExample, build_answer_tokenizer, build_model, draw_training, prompt_text, vocabulary_of
from .shortest_path import shortest_path_vocabulary
from .warmstart import MAX_NEW_TOKENS, batches, fit, problem_sequence

log = logging.getLogger(__name__)

REGIME = "reformulated"
KINDS = ("wording", *dict.fromkeys(reformulation.kind for reformulation in REFORMULATIONS.values()))


class Task(NamedTuple):
    """A task's part in the starters."""

    source: type[GeneratedSource]
    verifier: type[EnumeratingVerifier]
    vocabulary: Callable[[], Sequence[str]]
    base: Mapping[str, float]
    """Phrasing → its share of the base policy's examples."""
    steps: int
    """Of the base policy."""


TASKS: Mapping[str, Task] = {
    "arithmetic": Task(
        ArithmeticSource,
        ChainReward,
        lambda: [*filter(str.isalpha, arithmetic_vocabulary()), *"+-*=", *map(str, range(MAX_VALUE + 1))],
        {"narrative": 0.6, "symbol": 0.4},
        1500,
    ),
    "countdown": Task(CountdownSource, CountdownReward, countdown_vocabulary, {"make": 0.6, "symbol": 0.4}, 2000),
    "shortest_path": Task(
        ShortestPathSource, ShortestPathReward, shortest_path_vocabulary, {"plain": 0.6, "symbol": 0.4}, 1500
    ),
}


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """What a branch is trained on: shares of its examples; the rest are those of the base policy."""

    original: float
    """Of the phrasing of the originals."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Kind of reformulation → its share, in equal parts of its three forms."""

    def shares(self, task: Task) -> dict[str, float]:
        """Phrasing or reformulation → its share."""
        (original,) = task.source.splits["train"].originals[REGIME]
        forms = defaultdict(list)
        for name in task.source.rephrasings[REGIME]:
            forms[REFORMULATIONS[name].kind if name in REFORMULATIONS else "wording"].append(name)
        shares = {original: self.original}
        shares |= {name: share / len(forms[kind]) for kind, share in self.kinds.items() for name in forms[kind]}
        rest = 1 - sum(shares.values())
        return shares | {name: rest * share for name, share in task.base.items()}


ORIGINAL = 0.02
WORDINGS = (0.04, 0.07, 0.09, 0.12, 0.4)
BRANCHES: Mapping[str, Exposure] = {
    **{f"gap{n}": Exposure(original=ORIGINAL, kinds={"wording": share}) for n, share in enumerate(WORDINGS)},
    "kinds": Exposure(original=ORIGINAL, kinds=dict.fromkeys(KINDS, 0.15)),
}
"""Name of a branch → what it is trained on. In `gap0` wordings are solved about as often as the original."""


@dataclass(frozen=True, kw_only=True)
class ExposedConfig:
    """How the starters are trained."""

    task: str
    seed: int = 0
    steps: int | None = None  # of the base policy; None: the task's
    branch_steps: int = 300
    batch_size: int = 32
    learning_rate: float = 2e-3  # peak of a cosine that ends at a tenth of it
    branch_learning_rate: float = 1.5e-3
    validation_questions: int = 192


def make(output: Path, config: ExposedConfig, branches: Mapping[str, Exposure] = BRANCHES) -> dict[str, Any]:
    """Train the base policy and its branches, and write each to a folder of `output`; branch → its report.

    A folder that is there is kept: branches go on from a base policy that was made before.
    """
    task = TASKS[config.task]
    words = [reformulation.layout for reformulation in REFORMULATIONS.values()]
    tokenizer = build_answer_tokenizer(vocabulary_of(map(_as_family, [*words, "or"]), task.vocabulary()))
    validation = task.source("validation", REGIME, config.validation_questions, num_rephrasings=None).load()
    if not (output / "base" / "starter.json").exists():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            base = build_model(tokenizer)
        report = _train(base, tokenizer, task.base, config.steps or task.steps, config.learning_rate, config)
        _write(output / "base", base, tokenizer, validation, config, report)
    for name, exposure in branches.items():
        if not (output / name / "starter.json").exists():
            model = Qwen3ForCausalLM.from_pretrained(output / "base")
            shares = exposure.shares(task)
            report = _train(model, tokenizer, shares, config.branch_steps, config.branch_learning_rate, config)
            _write(output / name, model, tokenizer, validation, config, report)
    return {name: json.loads((output / name / "starter.json").read_text()) for name in ("base", *branches)}


def _as_family(layout: str) -> Family:
    return Family(layout=layout)


def draw_example(task: Task, shares: Mapping[str, float], rng: random.Random) -> SupervisedExample:
    """Draw a problem of the training split, told by the shares, with one of its answers.

    What stands around a question is learned around the phrasings of the base: no reformulation teaches the original.
    """
    source = task.source("train", REGIME)
    name = rng.choices(list(shares), list(shares.values()))[0]
    asked = draw_training(source.splits, lambda: source.sample(rng))
    around = rng.choices(list(task.base), list(task.base.values()))[0] if name in REFORMULATIONS else name
    question = source.phrase(asked, around, rng)
    told = source.reformulate(asked, question, name, rng) if name in REFORMULATIONS else question
    return SupervisedExample(told, rng.choice(asked.answers), name)


def _train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    shares: Mapping[str, float],
    steps: int,
    learning_rate: float,
    config: ExposedConfig,
) -> dict[str, Any]:
    task, rng, start = TASKS[config.task], random.Random(config.seed), time.process_time()
    stream = batches(
        lambda: problem_sequence(tokenizer, rng, lambda rng: draw_example(task, shares, rng)), config.batch_size, rng
    )
    loss = fit(model, (next(stream) for _ in range(steps)), steps, learning_rate)
    return {"shares": dict(shares), "steps": steps, "loss": loss, "cpu_seconds": round(time.process_time() - start, 1)}


def _write(
    output: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    validation: Sequence[QuestionGroup],
    config: ExposedConfig,
    report: dict[str, Any],
) -> None:
    success = success_by_kind(model, tokenizer, validation, TASKS[config.task].verifier())
    report = {**asdict(config), **report, "success": success}
    log.info("%s: %s", output, {kind: round(rate, 3) for kind, rate in report["success"].items()})
    save_model(model, tokenizer, output)
    write_json(output / "starter.json", report)


def success_by_kind(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[QuestionGroup],
    verifier: EnumeratingVerifier,
) -> dict[str, float]:
    """Mean exact success on `original`s and on each kind of reformulation."""
    texts = [(kind, group, text) for group in groups for kind, text in
             zip(("original", *group.kinds), (group.question, *group.rephrasings), strict=True)]  # fmt: skip
    stop = [tokenizer.eos_token_id]
    right = {
        group.id: correct_tokens(verifier.correct_responses(group.answer), tokenizer, stop, MAX_NEW_TOKENS)
        for group in groups
    }
    prompts = [torch.tensor(tokenizer(prompt_text(text)).input_ids) for _, _, text in texts]
    scorer = Scorer(CausalPolicy(copy.deepcopy(model).eval()))
    found = exact_success(scorer, prompts, [right[group.id] for _, group, _ in texts])
    by_kind = defaultdict(list)
    for (kind, _, _), rate in zip(texts, found.tolist(), strict=True):
        by_kind[kind].append(rate)
    return {kind: fmean(rates) for kind, rates in sorted(by_kind.items())}


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--branches", nargs="*", default=list(BRANCHES), choices=BRANCHES)
    parser.add_argument("--steps", type=int, help="of the base policy; those of the task without it")
    parser.add_argument("--branch-steps", type=int, default=ExposedConfig.branch_steps)
    parser.add_argument("--branch-rate", type=float, default=ExposedConfig.branch_learning_rate)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # as fast as two for so small a model, and sums are always in the same order
    chosen = {name: BRANCHES[name] for name in arguments.branches}
    config = ExposedConfig(
        task=arguments.task,
        seed=arguments.seed,
        steps=arguments.steps,
        branch_steps=arguments.branch_steps,
        branch_learning_rate=arguments.branch_rate,
    )
    make(arguments.output, config, chosen)


if __name__ == "__main__":
    main()
