"""The path of a method without sampling noise, beside sampled ones.

    python benchmarks/dynamics.py

All start from the same starter policy and learn from the same batches, with plain SGD, whose steps average to the exact
one. Success is exact for both: only the updates differ.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from transformers import AutoTokenizer

from tagrpo.analysis.plots import COLOURS, finished, panels, save, styled
from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import PlainTemplate, PromptAugmentation
from tagrpo.lab.dynamics import add_expected_gradient
from tagrpo.lab.exact import BatchSuccess
from tagrpo.lab.warmstart import TASKS
from tagrpo.metrics.functional import exact_pass_at_k
from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rollouts import RolloutPipeline, SamplingConfig, TransformersEngine
from tagrpo.seeds import derive_seed
from tagrpo.types import AdvantageStrategy, QuestionBatch

STRATEGIES: dict[str, AdvantageStrategy] = {
    "mean baseline": GroupAdvantage("prompt", scale="none"),
    "GRPO": GroupAdvantage("prompt"),
    "pass@4": PassAtKAdvantage(4, group_by="prompt"),
}
TASK, REGIME = "shortest_path", "easy"
STEPS, EVERY, SEEDS, LR = 48, 8, 3, 0.02
BATCH, SAMPLES, KS = 8, 8, (1, 100)
SAMPLING = SamplingConfig(max_new_tokens=12)


class Study:
    """A task, its starter policy and its questions."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.verifier = TASKS[TASK].verifier()
        self.success = BatchSuccess(self.verifier, self.tokenizer, [self.tokenizer.eos_token_id], SAMPLING)
        source = TASKS[TASK].source
        groups = source("train", REGIME, BATCH * STEPS, 0).load()
        self.batches = [self.batch(groups[BATCH * step : BATCH * (step + 1)]) for step in range(STEPS)]
        self.test = self.batch(source("test_id", REGIME, 96, 0).load())

    def batch(self, groups: list) -> QuestionBatch:
        renderer = PromptRenderer(PromptAugmentation({"plain": PlainTemplate("{question} <sep>")}), self.tokenizer)
        return QuestionBatch(groups=groups, prompts=renderer.prompts(groups, epoch=0, num_samples=SAMPLES))

    def start(self) -> tuple[Scorer, torch.optim.Optimizer]:
        policy = CausalPolicy(load_causal_lm(self.folder))
        return Scorer(policy), torch.optim.SGD(policy.parameters(), LR)

    def path(self, steps: Iterator[Scorer]) -> list[list[float]]:
        """Every so many steps, exact pass@k of the test questions."""
        return [
            exact_pass_at_k(self.success(scorer, self.test), KS).mean(0).tolist()
            for step, scorer in enumerate(steps)
            if step % EVERY == 0
        ]

    def exact(self, strategy: AdvantageStrategy) -> Iterator[Scorer]:
        scorer, optimizer = self.start()
        yield scorer
        for batch in self.batches:
            optimizer.zero_grad()
            add_expected_gradient(scorer, batch.prompts, self.success.correct(batch), strategy)
            optimizer.step()
            yield scorer

    def sampled(self, strategy: AdvantageStrategy, seed: int) -> Iterator[Scorer]:
        scorer, optimizer = self.start()
        engine = partial(TransformersEngine, self.folder)
        decode = partial(self.tokenizer.batch_decode, skip_special_tokens=True)
        pipeline = RolloutPipeline(engine, self.verifier, decode, SAMPLING, seed=derive_seed(seed, "dynamics"))
        loss = PolicyLoss(kl_coef=0.0, aggregation="constant", max_length=1)
        options = UpdateOptions(anchor="own", mini_batches=1, max_grad_norm=math.inf)
        update = PolicyUpdate(scorer, strategy, loss, optimizer, options)
        yield scorer
        for step, batch in enumerate(self.batches):
            update(pipeline.roll_out(batch, scorer.policy.model, step).rollouts, num_questions=BATCH)
            yield scorer
        pipeline.close()


@styled
def drawn(paths: dict[str, dict[str, list]]) -> Figure:
    """One panel per k: the exact path thick, the sampled ones thin."""
    figure, axes = panels(len(KS))
    for column, (ax, k) in enumerate(zip(axes, KS, strict=True)):
        for colour, (name, found) in zip(COLOURS, paths.items(), strict=False):
            for index, path in enumerate([found["exact"], *found["sampled"]]):
                look = {"linewidth": 0.6, "alpha": 0.6} if index else {"linewidth": 2, "label": name}
                values = [100 * row[column] for row in path]
                ax.plot([EVERY * i for i in range(len(path))], values, color=colour, **look)
        ax.set(title=f"pass@{k}", xlabel="optimizer step")
    return finished(figure, axes, "% of test questions, exact")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=f"runs/starters/{TASK}", help="folder of the starter policy")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(options.model)
    paths: dict[str, dict[str, list]] = {}
    for name, strategy in STRATEGIES.items():
        exact = study.path(study.exact(strategy))
        sampled = [study.path(study.sampled(strategy, seed)) for seed in range(SEEDS)]
        paths[name] = {"exact": exact, "sampled": sampled}
        ends = [[round(x, 4) for x in path[-1]] for path in (exact, *sampled)]
        print(name, "start", [round(x, 4) for x in exact[0]], "end: exact", ends[0], "sampled", ends[1:], flush=True)
    save(drawn(paths), Path("docs/dynamics.png"))
    results = {"steps": STEPS, "lr": LR, "paths": paths}
    Path("benchmarks/results/dynamics.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
