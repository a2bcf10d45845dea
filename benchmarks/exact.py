r"""Exact pass@k against sampling: do draws agree with it, and what does each cost?

    PYTHONPATH=. python benchmarks/exact.py --task shortest_path --regime easy runs/starters/shortest_path RUN/model

For each policy and temperature, 4,096 responses to each of 500 test questions are drawn and scored by the task's
verifier. They are drawn by transformers' own forward, all draws of a question together: how many of those that share a
prefix go on with each token is a multinomial draw, which is what independent draws count. If the exact probabilities
are right, then

- no question lies outside its 99.99 % binomial interval (of 3,000 questions, 0.3 would by chance, at most);
- 95 % intervals cover the probabilities of 93 to 97 % of the questions. Intervals of counts are conservative, the more
  so the smaller the probability. Those of Stevens (1950), which randomise where a count lies on the bound, cover
  exactly 95 %, and are used here.

Then 200 questions are evaluated both ways on one thread, exactly and by 256 draws each of the transformers engine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from workload import seconds

from examples.starters.parts import prompt_text
from examples.starters.warmstart import TASKS, exact_solve_rate
from tagrpo.rollouts import TransformersEngine
from tagrpo.types import QuestionGroup, Request, SamplingConfig

ROWS = 2048  # of one forward of the engine
LONGEST = 16  # tokens of a response; the longest correct ones have 14
FAR, NEAR = 0.9999, 0.95
QUESTIONS, DRAWS, TEMPERATURES = 500, 4096, (0.7, 1.0, 1.3)
OUTPUT = Path("benchmarks/results/exact.json")


class Policy:
    """A policy, its engine, and the task's verifier."""

    def __init__(self, folder: str, task: str) -> None:
        self.model, self.plain = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.engine = TransformersEngine(folder, max_rows=ROWS)
        self.engine.sync(self.model.named_parameters())
        self.verifier = TASKS[task].verifier()

    def prompts(self, groups: list[QuestionGroup]) -> list[Tensor]:
        return [torch.tensor(self.tokenizer(prompt_text(group.question)).input_ids) for group in groups]

    def exact(self, groups: list[QuestionGroup], sampling: SamplingConfig) -> Tensor:
        limits = sampling.temperature, sampling.max_new_tokens
        return exact_solve_rate(self.model, self.tokenizer, groups, self.verifier, *limits)

    @torch.no_grad()
    def drawn(self, group: QuestionGroup, draws: int, sampling: SamplingConfig, generator: np.random.Generator) -> int:
        """Correct ones of `draws` responses to one question."""
        eos, correct = self.tokenizer.eos_token_id, 0
        cache, ids = DynamicCache(), self.prompts([group])[0][None]
        prefixes: list[list[int]] = [[]]
        counts = np.array([draws])
        for length in range(1, sampling.max_new_tokens + 1):
            logits = self.plain(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1]
            p = (logits.double() / sampling.temperature).softmax(-1).numpy()
            found = generator.multinomial(counts, p / p.sum(-1, keepdims=True))
            rows, tokens = found.nonzero()
            ended = (tokens == eos) | (length == sampling.max_new_tokens)
            for row, token in zip(rows[ended].tolist(), tokens[ended].tolist(), strict=True):
                text = self.tokenizer.decode([*prefixes[row], token], skip_special_tokens=True)
                correct += found[row, token] * self.verifier(text, group.answer).correct
            rows, tokens = rows[~ended], tokens[~ended]
            if not len(rows):
                break
            counts = found[rows, tokens]
            prefixes = [[*prefixes[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
            cache.batch_select_indices(torch.from_numpy(rows))
            ids = torch.from_numpy(tokens)[:, None]
        return int(correct)

    def sampled(self, groups: list[QuestionGroup], draws: int, sampling: SamplingConfig, seed: int) -> Tensor:
        """[Q] correct ones of `draws` responses of the engine to each question."""
        counts = torch.zeros(len(groups), dtype=torch.long)
        completions = self.engine.generate(Request(self.prompts(groups), [draws] * len(groups), sampling, seed))
        for row, (group, drawn) in enumerate(zip(groups, completions, strict=True)):
            texts = self.tokenizer.batch_decode([c.token_ids for c in drawn], skip_special_tokens=True)
            verdicts = {text: self.verifier(text, group.answer).correct for text in set(texts)}
            counts[row] = sum(verdicts[text] for text in texts)
        return counts


def agreement(p: Tensor, counts: Tensor, draws: int, seed: int = 0) -> dict[str, float]:
    """How many questions lie outside their intervals."""
    p, k = p.numpy(), counts.numpy()
    below, at = binom.cdf(k - 1, draws, p), binom.pmf(k, draws, p)
    place = below + torch.rand(len(k), generator=torch.Generator().manual_seed(seed), dtype=torch.double).numpy() * at
    tail = (1 - FAR) / 2
    return {
        "questions": len(k),
        "mean_exact": float(p.mean()),
        "mean_sampled": float((k / draws).mean()),
        "outside_9999": int(((below + at <= tail) | (1 - below <= tail)).sum()),
        "covered_95": float((abs(2 * place - 1) < NEAR).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", help="folders: the untrained policy, the trained one, …")
    parser.add_argument("--task", choices=[name for name, task in TASKS.items() if task.verifier], required=True)
    parser.add_argument("--regime", default="easy")
    options = parser.parse_args()
    torch.set_num_threads(1)
    groups = TASKS[options.task].source("test_id", options.regime, QUESTIONS, 0).load()
    results = []
    for folder in options.policies:
        policy = Policy(folder, options.task)
        for seed, temperature in enumerate(TEMPERATURES):
            sampling = SamplingConfig(temperature=temperature, max_new_tokens=LONGEST)
            generator = np.random.default_rng(seed)
            counts = torch.tensor([policy.drawn(group, DRAWS, sampling, generator) for group in groups])
            found = agreement(policy.exact(groups, sampling), counts, DRAWS)
            found = {"policy": folder, "temperature": temperature, **found}
            print(json.dumps(found), flush=True)
            results.append(found)
        sampling, few = SamplingConfig(max_new_tokens=LONGEST), groups[:200]
        exact, _ = seconds(lambda: policy.exact(few, sampling))  # noqa: B023
        sampled, _ = seconds(lambda: policy.sampled(few, 256, sampling, 0))  # noqa: B023
        results.append({"policy": folder, "exact_seconds": exact, "sampled_seconds": sampled})
        print(json.dumps(results[-1]), flush=True)
    known = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    known[f"{options.task}/{options.regime}"] = results
    OUTPUT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
