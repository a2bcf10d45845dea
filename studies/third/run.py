"""Run the third edition, cell by cell: `python -m studies.third.run runs/third --workers 2`.

A cell is a task, a branch of its starters and a seed. Every run writes one file when it is done, and is skipped where
the file exists, so that the same command goes on where it was interrupted. All arms of a cell start from the same
policy and learn from the same questions in the same order. The same machine and libraries give the same bits.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from examples.expected_gradient import add_anchored_gradient, add_expected_gradient
from examples.starters.exposed import REGIME, TASKS, ExposedConfig, Starters, of_kind
from examples.starters.parts import prompt_text
from examples.starters.warmstart import MAX_NEW_TOKENS
from tagrpo.datamodules.loader import QuestionLoader
from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import PlainTemplate, PromptAugmentation
from tagrpo.files import write_json
from tagrpo.lab.exact import correct_tokens, exact_success
from tagrpo.lab.tasks.generated import GeneratedSource
from tagrpo.metrics.functional import exact_pass_at_k, zero_gradient_percentage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rollouts import RolloutPipeline, SamplingConfig, TransformersEngine
from tagrpo.types import QuestionBatch, QuestionGroup

from .design import ARMS, KS, RECIPES, SEEDS, STARTERS, UNTRAINED, Arm, Recipe, Run, kinds_of, runs_of

MAX_LENGTH = 8
"""Tokens by which the loss of a response is divided, whatever its own length, so that expected updates are exact."""
MAX_GRAD_NORM = 1.0
DRAWS = 256
"""Responses to each prompt in which the expected path of an anchored arm finds wrong ones."""


class Asked(NamedTuple):
    """Prompts that are evaluated, with all correct responses to each in tokens."""

    prompts: list[Tensor]
    correct: list[list[Tensor]]


class Cell:
    """What the runs of a cell share: questions, prompts, and the policy that they start from.

    Args:
        folder: Of the study.
        task: One of `TASKS`.
        branch: Of its starters.
        seed: Of the starters, the questions of training and tests, their order and all sampling.
        recipe: Sizes.
    """

    def __init__(self, folder: Path, task: str, branch: str, seed: int, recipe: Recipe) -> None:
        self.task, self.recipe, self.seed = TASKS[task], recipe, seed
        self.starter = starter(folder, task, branch, seed)
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.starter)
        self.verifier = self.task.verifier()
        self.renderer = PromptRenderer(
            PromptAugmentation({"plain": PlainTemplate("{question} <sep>")}), self.tokenizer
        )
        self.training = self._source("train", recipe.questions, seed).load()
        self.validation = self.asked(self._source("validation", recipe.validation_questions).load())

    def _source(self, split: str, size: int, seed: int = 0) -> GeneratedSource:
        return self.task.source(split, REGIME, size, num_rephrasings=None, seed=seed)

    def tests(self, kind: str) -> Mapping[str, Asked]:
        """The wording of the originals, one that nobody trains, and the reformulations of `kind`."""
        some = self.flat(self.test_questions[: self.recipe.test_questions // 4], kind)
        return {**self.tests_of_all, "reformulated": self.asked(some)}

    @cached_property
    def test_questions(self) -> list[QuestionGroup]:
        """Of the same kind as training, others for each seed."""
        return self._source("test_id", self.recipe.test_questions, self.seed).load()

    @cached_property
    def tests_of_all(self) -> Mapping[str, Asked]:
        """The tests that do not depend on the kind of reformulations."""
        unseen = self._source("test_phrasing", self.recipe.test_questions, self.seed).load()
        return {"original": self.asked(self.test_questions), "unseen": self.asked(unseen)}

    def flat(self, groups: Sequence[QuestionGroup], kind: str) -> list[QuestionGroup]:
        """The reformulations of one kind, as questions of their own."""
        some = (of_kind(group, kind) for group in groups)
        return [group._replace(question=text) for group in some for text in group.rephrasings]

    def asked(self, groups: Sequence[QuestionGroup]) -> Asked:
        """The originals of some questions."""
        return Asked(
            [torch.tensor(self.tokenizer(prompt_text(group.question)).input_ids) for group in groups],
            [self.correct(group) for group in groups],
        )

    def correct(self, group: QuestionGroup) -> list[Tensor]:
        """All correct responses in tokens."""
        texts = self.verifier.correct_responses(group.answer)
        return correct_tokens(texts, self.tokenizer, [self.tokenizer.eos_token_id], MAX_NEW_TOKENS)

    def batches(self, arm: Arm, kind: str) -> QuestionLoader:
        """Training batches; of every arm the same questions in the same order."""
        groups = [
            of_kind(group, kind) if arm.reformulations else group.select_rephrasings([])
            for group in self.training
        ]

        def batch(groups: Sequence[QuestionGroup], epoch: int) -> QuestionBatch:
            return QuestionBatch(
                groups=list(groups), prompts=self.renderer.prompts(groups, epoch, arm.samples)
            )

        return QuestionLoader(
            groups, batch, self.recipe.batch_size, shuffle=True, drop_last=True, seed=self.seed
        )

    def pipeline(self) -> RolloutPipeline:
        """Samples and scores with the weights that it is given."""
        return RolloutPipeline(
            partial(TransformersEngine, str(self.starter)),
            self.verifier,
            partial(self.tokenizer.batch_decode, skip_special_tokens=True),
            SamplingConfig(max_new_tokens=MAX_NEW_TOKENS),
            seed=self.seed,
        )


def starter(folder: Path, task: str, branch: str, seed: int) -> Path:
    """The policy to start from, made where it is missing."""
    return Starters(folder / "starters" / task / f"seed{seed}", ExposedConfig(task=task, seed=seed)).folder(
        branch
    )


def success(policy: CausalPolicy, asked: Asked) -> Tensor:
    """[Q] float64, exact."""
    return exact_success(Scorer(policy), asked.prompts, asked.correct)


Step = Callable[[QuestionBatch, int], dict[str, float]]
"""Learns from a batch; returns what is noted of it."""


def sampled_step(cell: Cell, policy: CausalPolicy, arm: Arm, optimizer: torch.optim.Optimizer) -> Step:
    """Updates as training makes them: one step on each batch of responses."""
    pipeline, loss = cell.pipeline(), PolicyLoss(kl_coef=0.0, aggregation="constant", max_length=MAX_LENGTH)
    options = UpdateOptions(anchor=arm.anchor, mini_batches=1, max_grad_norm=MAX_GRAD_NORM)
    update = PolicyUpdate(Scorer(policy), arm.strategy(), loss, optimizer, options)

    def step(batch: QuestionBatch, number: int) -> dict[str, float]:
        rollouts = pipeline.roll_out(batch, policy.model, number).rollouts
        result = update(rollouts, len(batch.groups))
        original, right = rollouts.rephrasing == 0, rollouts.correct.double()
        advantages = result.experience.advantages
        return {
            "without_gradient": float(zero_gradient_percentage(advantages, rollouts.question)) / 100,
            "correct_original": float(right[original].mean()),
            "correct_reformulated": float(right[~original].mean()) if arm.reformulations else 0.0,
        }

    return step


def expected_step(cell: Cell, policy: CausalPolicy, arm: Arm, optimizer: torch.optim.Optimizer) -> Step:
    """The same updates without sampling noise; anchored ones but for the wrong responses that `DRAWS` do not find."""
    strategy, scorer = arm.strategy(), Scorer(policy)
    pipeline = cell.pipeline() if arm.anchor == "original" else None

    def wrong_responses(batch: QuestionBatch, number: int, drawing: RolloutPipeline) -> list[list[Tensor]]:
        prompts = [prompt._replace(num_samples=DRAWS) for prompt in batch.prompts]
        drawn = drawing.roll_out(replace(batch, prompts=prompts), policy.model, number).rollouts
        found: list[dict[tuple[int, ...], Tensor]] = [{} for _ in prompts]
        for row, ids, right in zip(
            drawn.prompt.tolist(), drawn.token_ids, drawn.correct.tolist(), strict=True
        ):
            if not right:
                found[row][tuple(ids.tolist())] = ids
        return [list(different.values()) for different in found]

    def step(batch: QuestionBatch, number: int) -> dict[str, float]:
        by_question = [cell.correct(group) for group in batch.groups]
        correct = [by_question[prompt.question] for prompt in batch.prompts]
        if pipeline is None:
            p, listed = (
                add_expected_gradient(scorer, batch.prompts, correct, strategy, MAX_LENGTH),
                torch.ones(1),
            )
        else:
            wrong = wrong_responses(batch, number, pipeline)
            p, listed = add_anchored_gradient(scorer, batch.prompts, correct, wrong, strategy, MAX_LENGTH)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        original = torch.tensor([prompt.rephrasing == 0 for prompt in batch.prompts])
        return {
            "listed": float(listed.mean()),
            "correct_original": float(p[original].mean()),
            "correct_reformulated": float(p[~original].mean()) if arm.reformulations else 0.0,
        }

    return step


def train(cell: Cell, run: Run) -> dict[str, Any]:
    """One run from its policy to its tests.

    Returns:
        `validation`: at every evaluation its iteration and means of pass@k at `KS`; `training`: name → value at each
        iteration; `points`: `end`, `best1` and `best32`, the evaluations that were best in pass@1 and in pass@32, → the
        iteration; `tests`: iteration → wording → [Q] success; `seconds` of CPU by phase.
    """
    arm, seconds = ARMS[run.arm], Counter[str]()
    policy = CausalPolicy(load_causal_lm(str(cell.starter)))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=run.rate, betas=(0.9, 0.99), weight_decay=0.0)
    step = (sampled_step if run.path == "sampled" else expected_step)(cell, policy, arm, optimizer)
    loader, best = cell.batches(arm, run.kind), Best()
    validation: list[dict[str, Any]] = []
    noted: list[dict[str, float]] = []
    for number in range(cell.recipe.iterations + 1):
        if number % cell.recipe.validate_every == 0 or number == cell.recipe.iterations:
            with measured(seconds, "evaluation"):
                curve = exact_pass_at_k(success(policy, cell.validation), KS).mean(0)
            validation.append({"iteration": number, "pass": rounded(curve)})
            best.observe(policy, number, {f"best{k}": float(curve[KS.index(k)]) for k in (1, 32)})
        if number < cell.recipe.iterations:
            with measured(seconds, "training"):
                noted.append(step(loader.draw(), number))
    tests: dict[str, dict[str, list[float]]] = {}
    with measured(seconds, "evaluation"):
        asked = cell.tests(run.kind)
        for number, weights in best.weights.items():
            policy.load_state_dict(weights)
            tests[str(number)] = tested(policy, asked)
    return {
        "validation": validation,
        "training": {name: rounded(torch.tensor([each[name] for each in noted])) for name in noted[0]},
        "points": best.iterations,
        "tests": tests,
        "seconds": seconds,
    }


def untrained(cell: Cell, kinds: Sequence[str]) -> dict[str, Any]:
    """The policy that a cell starts from: its tests, and its success on every prompt of the training questions."""
    seconds, policy = Counter[str](), CausalPolicy(load_causal_lm(str(cell.starter)))
    forms = {"original": cell.training} | {kind: cell.flat(cell.training, kind) for kind in kinds}
    with measured(seconds, "evaluation"):
        tests = {kind: tested(policy, cell.tests(kind)) for kind in kinds}
        prompts = {name: rounded(success(policy, cell.asked(groups))) for name, groups in forms.items()}
    return {"tests": tests, "prompts": prompts, "seconds": seconds}


def tested(policy: CausalPolicy, tests: Mapping[str, Asked]) -> dict[str, list[float]]:
    """Wording → [Q] success on its test questions."""
    return {wording: rounded(success(policy, asked)) for wording, asked in tests.items()}


class Best:
    """Weights of a policy at the end, and where its validation was best."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.iterations: dict[str, int] = {}
        self.weights: dict[int, Mapping[str, Tensor]] = {}

    def observe(self, policy: CausalPolicy, number: int, values: Mapping[str, float]) -> None:
        """Keep the weights of this iteration, those of the best ones, and no others."""
        better = {name: value for name, value in values.items() if value > self.values.get(name, -1.0)}
        self.values |= better
        self.iterations |= dict.fromkeys([*better, "end"], number)
        self.weights[number] = copy.deepcopy(policy.state_dict())
        self.weights = {n: kept for n, kept in self.weights.items() if n in self.iterations.values()}


@contextmanager
def measured(seconds: Counter[str], phase: str) -> Iterator[None]:
    """Count CPU seconds."""
    start = time.process_time()
    yield
    seconds[phase] = round(seconds[phase] + time.process_time() - start, 2)  # type: ignore[assignment]


def rounded(values: Tensor) -> list[float]:
    """With five significant digits."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def run_cell(folder: Path, runs: Sequence[Run], recipe: Recipe) -> list[Path]:
    """Make those runs of a cell that have no file yet; returns the files that were written."""
    torch.set_num_threads(1)
    missing = [run for run in runs if not (folder / run.file).exists()]
    if not missing:
        return []
    cell = Cell(folder, missing[0].task, missing[0].branch, missing[0].seed, recipe)
    for run in missing:
        found = untrained(cell, kinds_of(run.branch)) if run.arm == UNTRAINED else train(cell, run)
        write_json(folder / run.file, {**asdict(run), "recipe": asdict(recipe), **found})
    return [folder / run.file for run in missing]


def run_cells(folder: Path, cells: Sequence[Sequence[Run]], recipe: Recipe) -> int:
    """The cells of one task and seed, whose starters have one base policy; returns the number of runs made."""
    return sum(len(run_cell(folder, runs, recipe)) for runs in cells)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", nargs="*", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--branches", nargs="*", default=list(STARTERS), choices=STARTERS)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS)
    parser.add_argument(
        "--rate", type=float, help="learning rate of all arms, sampled only; the plan's without it"
    )
    parser.add_argument("--iterations", type=int, help="those of the plan without it")
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    changes = {} if chosen.iterations is None else {"iterations": chosen.iterations}
    with ProcessPoolExecutor(chosen.workers) as pool:
        jobs = []
        for seed, task in product(chosen.seeds, chosen.tasks):
            runs = (list(runs_of(task, b, seed, chosen.arms, chosen.rate)) for b in chosen.branches)
            jobs.append(pool.submit(run_cells, chosen.folder, list(runs), replace(RECIPES[task], **changes)))
        for job in as_completed(jobs):
            print(
                f"{job.result()} runs made, {sum(each.done() for each in jobs)} of {len(jobs)} jobs done",
                flush=True,
            )


if __name__ == "__main__":
    main()
