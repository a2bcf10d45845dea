"""Which way responses push: parameter gradients of a run's policy, by what the responses were sampled from.

The gradient of a response is A ∇ mean_t (w_t · log π(token t | score prompt)): the policy term of GRPO's loss where the
policy is the one that sampled (ratio 1, `aggregation=sequence_mean`). Score prompt and weights are the run's own: the
original question or the sampled prompt (`policy.anchor`), and min(π(t | original) / π(t | sampled prompt), c) with
`policy.prompt_correction` c, else 1. The KL term is left out; its gradient is zero where training starts.

With few responses, noise makes two gradients of one expectation nearly orthogonal. Responses are therefore dealt into
sets with as many to each question, and sets are compared: two sets of responses to the same prompts differ by noise
alone, and their cosine is the most that any other can be expected to reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tagrpo.analysis.replay import read_rollouts
from tagrpo.analysis.runs import RunFiles
from tagrpo.modules.causal_policy import CausalPolicy
from tagrpo.modules.experience import Anchor, truncated_weights
from tagrpo.modules.model import load_causal_lm
from tagrpo.modules.scorer import PromptedResponses, Scorer

SET_SIZE = 4
"""Responses to each prompt in a set."""
TOKEN_BUDGET = 16384
KINDS = ("original, original", "rephrasing, itself", "original, rephrasing", "rephrasing, another")
"""What two sets may have been sampled from; the first two are the noise that the others must be read against."""
PROMPT = ["iteration", "question", "rephrasing", "template"]


@dataclass(frozen=True)
class GradientSets:
    """Gradients of S disjoint sets of responses to the same questions."""

    rephrasings: Sequence[int]
    """[S] what each was sampled from: 0 for the originals, n ≥ 1 for the n-th rephrasings."""
    gradients: Tensor
    """[S, parameters] float64, means over the responses of a set, those without a gradient included."""

    def norms(self) -> dict[str, float]:
        """Mean L2 norm of `original` and, where there are any, of `rephrasing` sets."""
        lengths = self.gradients.norm(dim=1).tolist()
        return _means((("rephrasing" if v else "original"), x) for v, x in zip(self.rephrasings, lengths, strict=True))

    def cosines(self) -> dict[str, float]:
        """Kind of `KINDS` → mean cosine over the pairs of that kind."""
        table = (normalize(self.gradients, dim=1) @ normalize(self.gradients, dim=1).T).tolist()
        pairs = combinations(range(len(self.rephrasings)), 2)
        return _means((kind_of(self.rephrasings[a], self.rephrasings[b]), table[a][b]) for a, b in pairs)

    def cosines_with(self, other: GradientSets) -> dict[str, float]:
        """`original` and `rephrasing` → mean cosine with the sets of another run from the same policy.

        Runs of one seed begin with the same responses to the originals: as many sets of `other` as there are sets of
        originals here are passed over.
        """
        theirs = normalize(other.gradients[self.rephrasings.count(0) :], dim=1)
        table = (normalize(self.gradients, dim=1) @ theirs.T).tolist()
        return _means(
            ("rephrasing" if v else "original", x) for v, row in zip(self.rephrasings, table, strict=True) for x in row
        )


def _means(named: Iterator[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for name, value in named:
        found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def kind_of(first: int, second: int) -> str:
    """Which of `KINDS` two sets of these rephrasings are.

    >>> [kind_of(*pair) for pair in ((0, 0), (2, 2), (0, 2), (1, 2))] == list(KINDS)
    True
    """
    if first == second:
        return KINDS[1] if first else KINDS[0]
    return KINDS[3] if first and second else KINDS[2]


def gradients_at_the_start(run: RunFiles) -> GradientSets:
    """Of the first iteration's responses, at the policy that sampled them.

    Raises:
        FileNotFoundError: the policy that the run started from is not where it was, or no rollouts were recorded.
    """
    return _measured(run, CausalPolicy(load_causal_lm(run.config["model"]["path"])), range(1))


def gradients_at_the_end(run: RunFiles) -> GradientSets | None:
    """Of the responses of the last eighth of training, at its last checkpoint; None where there is none.

    The policies that sampled them are some updates older, which at the end of a learning-rate schedule are small.

    Raises:
        FileNotFoundError: no rollouts were recorded.
    """
    path = run.last_checkpoint
    if path is None:
        return None
    policy = CausalPolicy(load_causal_lm(run.config["model"]["path"]))
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in weights.items()})
    total = run.ledger["iterations"]
    return _measured(run, policy, range(total - math.ceil(total / 8), total))


def _measured(run: RunFiles, policy: CausalPolicy, iterations: range) -> GradientSets:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.config["data"]["tokenizer"], trust_remote_code=False)

    def tokenize(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    rows = read_rollouts(run.path)
    settings = run.config["policy"]
    chosen = rows[rows["iteration"].isin(iterations)]
    return gradient_sets(policy, tokenize, chosen, settings["anchor"], settings.get("prompt_correction"))


def gradient_sets(
    policy: CausalPolicy,
    tokenize: Callable[[str], Sequence[int]],
    rollouts: pd.DataFrame,
    anchor: Anchor,
    correction: float | None = None,
) -> GradientSets:
    """Gradients of sets of `SET_SIZE` responses to each prompt of one rephrasing.

    Args:
        policy: At which they are taken.
        tokenize: Prompt → token ids, as in training.
        rollouts: Responses of one or several iterations, with `prompt`, `token_ids` and `advantage`.
        anchor: Score prompt: `original` or `own`.
        correction: Largest token weight of `policy.prompt_correction`; None for none.

    Raises:
        KeyError: an original question was not sampled.
        ValueError: responses were recorded without tokens.
    """
    if "token_ids" not in rollouts:
        raise ValueError("Expected token_ids of the responses, but they were not saved. Record with tokens=true.")
    scorer = Scorer(policy, token_budget=TOKEN_BUDGET)
    responses = prompted(tokenize, rollouts, anchor)
    weights: dict[int, Tensor] = {}
    if correction is not None:
        everything = torch.arange(len(rollouts))
        own = scorer.score(prompted(tokenize, rollouts, "own"), everything).logprobs
        weights = truncated_weights(scorer.score(responses, everything).logprobs, own, correction)
    deal = rollouts.groupby(PROMPT, sort=False).cumcount().to_numpy() // SET_SIZE
    rephrasings, advantages = rollouts["rephrasing"].to_numpy(), rollouts["advantage"].to_numpy(dtype=float)
    keys = sorted(set(zip(rephrasings.tolist(), deal.tolist(), strict=True)))
    gradients = []
    for rephrasing, number in keys:
        members = np.flatnonzero((rephrasings == rephrasing) & (deal == number))
        policy.zero_grad()
        for part in scorer.micro_batches(responses, torch.from_numpy(members[advantages[members] != 0])):
            terms = [
                advantages[row] * (logprobs * weights[row] if weights else logprobs).mean()
                for row, (logprobs, _) in part.items()
            ]
            (torch.stack(terms).sum() / len(members)).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
        gradients.append(torch.cat([part.flatten() for part in parts]).double())
    return GradientSets([rephrasing for rephrasing, _ in keys], torch.stack(gradients))


def prompted(tokenize: Callable[[str], Sequence[int]], rollouts: pd.DataFrame, anchor: Anchor) -> PromptedResponses:
    """The recorded responses, each under the score prompt that `anchor` chooses.

    Raises:
        KeyError: an original question was not sampled.
    """
    texts = rollouts["prompt"].tolist()
    if anchor == "original":
        original = rollouts[rollouts["rephrasing"] == 0].groupby(["question", "template"])["prompt"].first()
        texts = [original[key] for key in zip(rollouts["question"], rollouts["template"], strict=True)]
    index = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    return PromptedResponses(
        prompts=[torch.tensor(tokenize(text)) for text in index],
        prompt=torch.tensor([index[text] for text in texts]),
        responses=[torch.tensor(np.asarray(ids), dtype=torch.long) for ids in rollouts["token_ids"]],
    )
