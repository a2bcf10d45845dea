"""Starter policies that differ only in how much they have seen of a question's reformulations.

    python -m examples.starters.exposed --task countdown --seed 0 --output runs/exposed/countdown/seed0

The questions are those of the regime `reformulated`. A base policy learns the task in two phrasings that it is never
asked in. It is then trained on in branches of equally many steps, of which the phrasing of the originals has the same
small share: `low` sees no reformulations, `high` the wordings until it solves as many as the task demands, and `all`
all kinds. The policies to use are weighted means of the weights of two branches. `gap0` to `gap4` lie between `low` and
`high`: originals are about equally hard for them, and the gap, the success on the wordings minus that on the originals,
grows in equal steps. `kinds` lies between `low` and `all`, where originals are still solved seldom. The folder of a
policy holds, in `starter.json`, its exact success on validation questions.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tagrpo.files import write_json
from tagrpo.lab.exact import correct_tokens, exact_success
from tagrpo.lab.tasks.arithmetic import ArithmeticSource, ChainReward
from tagrpo.lab.tasks.arithmetic.source import MAX_VALUE
from tagrpo.lab.tasks.countdown import CountdownReward, CountdownSource
from tagrpo.lab.tasks.countdown.source import ONES, TENS
from tagrpo.lab.tasks.generated import REFORMULATIONS, Family, GeneratedSource
from tagrpo.lab.tasks.shortest_path import ShortestPathReward, ShortestPathSource
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import save_model
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import EnumeratingVerifier, QuestionGroup

from .arithmetic import arithmetic_vocabulary
from .countdown import countdown_vocabulary
from .parts import (
    SupervisedExample,
    build_answer_tokenizer,
    build_model,
    draw_training,
    prompt_text,
    vocabulary_of,
)
from .shortest_path import shortest_path_vocabulary
from .warmstart import MAX_NEW_TOKENS, batches, fit, problem_sequence

log = logging.getLogger(__name__)

REGIME = "reformulated"
AIDS = ("format", "hint")
"""Kinds that help with a question that is not understood, learned around a base phrasing with its words shuffled."""
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
    solved: float
    """Success on the wordings that `high` is trained to, if its rounds are enough, and that `gap4` then has."""


TASKS: Mapping[str, Task] = {
    "arithmetic": Task(
        ArithmeticSource,
        ChainReward,
        lambda: [*filter(str.isalpha, arithmetic_vocabulary()), *"+-*=", *map(str, range(MAX_VALUE + 1))],
        {"narrative": 0.6, "symbol": 0.4},
        5000,
        0.25,
    ),
    "countdown": Task(
        CountdownSource,
        CountdownReward,
        lambda: [*countdown_vocabulary(), *ONES, *TENS],
        {"make": 0.6, "symbol": 0.4},
        2000,
        0.28,
    ),
    "shortest_path": Task(
        ShortestPathSource,
        ShortestPathReward,
        shortest_path_vocabulary,
        {"plain": 0.6, "symbol": 0.4},
        1000,
        0.5,
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
        shares |= {
            name: share / len(forms[kind]) for kind, share in self.kinds.items() for name in forms[kind]
        }
        rest = 1 - sum(shares.values())
        return shares | {name: rest * share for name, share in task.base.items()}


ORIGINAL = 0.02
BRANCHES: Mapping[str, Exposure] = {
    "high": Exposure(original=ORIGINAL, kinds={"wording": 0.4}),
    "low": Exposure(original=ORIGINAL),
    "all": Exposure(original=ORIGINAL, kinds=dict.fromkeys(KINDS, 0.15)),
}
"""Name of a branch → what it is trained on."""
GAPS: Mapping[str, float] = {f"gap{n}": n / 4 for n in range(5)}
"""Policy between `low` and `high` → where its success on the wordings lies between that of `low` and that of `high`, or
`Task.solved` where `high` went beyond it."""
POLICIES = (*GAPS, "kinds")
HALVINGS = 8
"""Of the interval in which a mean's weight is sought."""


@dataclass(frozen=True, kw_only=True)
class ExposedConfig:
    """How the starters are trained."""

    task: str
    seed: int = 0
    steps: int | None = None  # of the base policy; None: the task's
    round_steps: int = 200
    rounds: int = 8  # of a branch, at most
    batch_size: int = 32
    learning_rate: float = 2e-3  # peak of a cosine that ends at a tenth of it
    round_learning_rate: float = 1.5e-3  # the same in every round
    seldom: float = 2.0  # success on originals that `kinds` has, over that of `low`
    validation_questions: int = 192


class Starters:
    """The policies of a task and a seed, each made when it is asked for and not there.

    Args:
        output: Folder of their folders.
        config: How they are trained.
    """

    def __init__(self, output: Path, config: ExposedConfig) -> None:
        self.output, self.config, self.task = output, config, TASKS[config.task]

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Knows every word of the task."""
        texts = [reformulation.layout for reformulation in REFORMULATIONS.values()]
        return build_answer_tokenizer(vocabulary_of(map(_as_family, [*texts, "or"]), self.task.vocabulary()))

    @cached_property
    def validation(self) -> list[QuestionGroup]:
        """Questions with reformulations of all kinds."""
        return self.task.source(
            "validation", REGIME, self.config.validation_questions, num_rephrasings=None
        ).load()

    @cached_property
    def wordings(self) -> list[QuestionGroup]:
        """The same with their wordings alone."""
        return [of_kind(group, "wording") for group in self.validation]

    @cached_property
    def correct(self) -> Mapping[str, list[Tensor]]:
        """Id of each of these questions → all correct responses in tokens."""
        verifier, stop = self.task.verifier(), [self.tokenizer.eos_token_id]
        return {
            group.id: correct_tokens(
                verifier.correct_responses(group.answer), self.tokenizer, stop, MAX_NEW_TOKENS
            )
            for group in self.validation
        }

    def folder(self, name: str) -> Path:
        """That of a policy."""
        folder = self.output / name
        if not (folder / "starter.json").exists():
            model, report = self._made(name)
            report = {**asdict(self.config), **report, "success": self.success(model, self.validation)}
            log.info("%s: %s", folder, {kind: round(rate, 3) for kind, rate in report["success"].items()})
            save_model(model, self.tokenizer, folder)
            write_json(folder / "starter.json", report)
        return folder

    def report(self, name: str) -> dict[str, Any]:
        """What a policy was made with, and its exact success."""
        return dict(json.loads((self.folder(name) / "starter.json").read_text()))

    def success(self, model: Qwen3ForCausalLM, groups: Sequence[QuestionGroup]) -> dict[str, float]:
        """Mean exact success on `original`s and on each kind of reformulation."""
        texts = [(kind, group, text) for group in groups for kind, text in
                 zip(("original", *group.kinds), (group.question, *group.rephrasings), strict=True)]  # fmt: skip
        prompts = [torch.tensor(self.tokenizer(prompt_text(text)).input_ids) for _, _, text in texts]
        scorer = Scorer(CausalPolicy(copy.deepcopy(model).eval()))
        found = exact_success(scorer, prompts, [self.correct[group.id] for _, group, _ in texts])
        by_kind = defaultdict(list)
        for (kind, _, _), rate in zip(texts, found.tolist(), strict=True):
            by_kind[kind].append(rate)
        return {kind: fmean(rates) for kind, rates in sorted(by_kind.items())}

    def _made(self, name: str) -> tuple[Qwen3ForCausalLM, dict[str, Any]]:
        if name in POLICIES:
            low = self.report("low")["success"]
            if name == "kinds":
                return self._between("all", "original", self.config.seldom * low["original"])
            most = min(self.task.solved, self.report("high")["success"]["wording"])
            return self._between("high", "wording", low["wording"] + GAPS[name] * (most - low["wording"]))
        if name in BRANCHES:
            return self._branch(name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            base = build_model(self.tokenizer)
        loss = self._train(
            base, self.task.base, self.config.steps or self.task.steps, self.config.learning_rate
        )
        return base, {"loss": loss}

    def _load(self, name: str) -> Qwen3ForCausalLM:
        return Qwen3ForCausalLM.from_pretrained(self.folder(name))

    def _train(
        self, model: Qwen3ForCausalLM, shares: Mapping[str, float], steps: int, rate: float, number: int = 0
    ) -> float:
        rng = random.Random(f"{self.config.seed}/{number}")
        stream = batches(
            lambda: problem_sequence(self.tokenizer, rng, lambda rng: draw_example(self.task, shares, rng)),
            self.config.batch_size,
            rng,
        )
        return fit(model, (next(stream) for _ in range(steps)), steps, rate)

    def _branch(self, name: str) -> tuple[Qwen3ForCausalLM, dict[str, Any]]:
        """Train the base on in rounds: `high` until it solves as many wordings as it should, the others for as long."""
        model, shares, config = self._load("base"), BRANCHES[name].shares(self.task), self.config
        other = None if name == "high" else self.report("high")["rounds"]
        for number in range(1, (other or config.rounds) + 1):
            loss = self._train(model, shares, config.round_steps, config.round_learning_rate, number)
            if not other and self.success(model, self.wordings)["wording"] >= self.task.solved:
                break
        return model, {"shares": shares, "rounds": number, "loss": loss}

    def _between(self, branch: str, kind: str, aim: float) -> tuple[Qwen3ForCausalLM, dict[str, Any]]:
        """The mean of `low` and a branch with a success on one kind of questions that is the aim, by bisection."""
        model, other = self._load("low"), self._load(branch).state_dict()
        low = copy.deepcopy(model.state_dict())

        def mean(weight: float) -> dict[str, Tensor]:
            return {name: low[name].lerp(other[name], weight) for name in low}

        weight, step = 0.0, 1.0
        for _ in range(HALVINGS):
            step /= 2
            model.load_state_dict(mean(weight + step))
            weight += step if self.success(model, self.wordings)[kind] <= aim else 0.0
        model.load_state_dict(mean(weight))
        return model, {"weight": weight}


def of_kind(group: QuestionGroup, kind: str) -> QuestionGroup:
    """The question with its reformulations of one kind."""
    return group.select_rephrasings(row for row, name in enumerate(group.kinds) if name == kind)


def _as_family(layout: str) -> Family:
    return Family(layout=layout)


def draw_example(task: Task, shares: Mapping[str, float], rng: random.Random) -> SupervisedExample:
    """Draw a problem of the training split, told by the shares, with an answer that fits what is told."""
    source = task.source("train", REGIME)
    name = rng.choices(list(shares), list(shares.values()))[0]
    asked = draw_training(source.splits, lambda: source.sample(rng))
    if name not in REFORMULATIONS:
        return SupervisedExample(source.phrase(asked, name, rng), rng.choice(asked.answers), name)
    question = source.phrase(asked, rng.choices(list(task.base), list(task.base.values()))[0], rng)
    if REFORMULATIONS[name].kind in AIDS:
        words = question.split()
        question = " ".join(rng.sample(words, len(words)))
    told = source.reformulate(asked, question, name, rng)
    answers = fitting(told, task.verifier().correct_responses(asked.answers))
    return SupervisedExample(told, rng.choice(answers), name)


def fitting(told: str, answers: Sequence[str]) -> Sequence[str]:
    """The answers that a hint is a part of, or that are among the choices; without either, all of them.

    >>> fitting("From a1 to b2. Hint: up.", ["up right", "right up"])
    ['up right']
    >>> fitting("From a1 to b2. Choose: up up or right up or left up.", ["up right", "right up"])
    ['right up']
    """
    if hint := re.search(r"Hint: (.*)\.$", told):
        begun = [answer for answer in answers if answer.startswith(hint[1])]
        return begun or [answer for answer in answers if hint[1] in answer]
    if choices := re.search(r"Choose: (.*)\.$", told):
        return [answer for answer in answers if answer in choices[1].split(" or ")]
    return answers


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", nargs="*", default=POLICIES, choices=[*BRANCHES, *POLICIES])
    parser.add_argument("--steps", type=int, help="of the base policy; those of the task without it")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # as fast as two for so small a model, and sums are always in the same order
    config = ExposedConfig(task=arguments.task, seed=arguments.seed, steps=arguments.steps)
    starters = Starters(arguments.output, config)
    for name in arguments.policies:
        starters.folder(name)


if __name__ == "__main__":
    main()
