"""Does the premise of TA-GRPO hold for SmolLM2-135M before any training? Sampling alone.

    python -m studies.smollm2.premise sample    # about two core-hours; the same command goes on where it was interrupted
    python -m studies.smollm2.premise page      # the tables of README.md, from the responses kept beside this file

All 210 products of two factors from 2 to 21 are asked in the eight wordings of data=multiplication, 64 responses of at
most 16 tokens each, at temperature 1. All wordings of a question name its factors in the same order.

Expected, written down before the responses were sampled: (1) wordings of one question differ in difficulty by more than
a standard deviation of 5 points; (2) of 4 wordings × 8 responses fewer questions get equal rewards than of 32 responses
to one wording; (3) responses to two wordings are further apart than two responses to one, also among wrong ones alone.
"""

import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from tagrpo.callbacks import sentence_encoder
from tagrpo.files import write_section
from tagrpo.lab.tasks.multiplication import FAMILIES, TRAINED

from ..benchmark.digest import read
from .training import PAGE

Array = NDArray[np.float64]
FACTORS, RESPONSES, MAX_NEW_TOKENS = range(2, 22), 64, 16
G, N = 8, 3
EMBEDDED = 16
"""Responses to each wording whose distances are measured."""
SAMPLED, KEPT = Path("runs/premise.jsonl"), Path(__file__).with_suffix(".jsonl.gz")


def questions() -> Iterator[tuple[int, int]]:
    """Factors in the order in which all wordings name them; drawn once, so that any first part is a fair sample."""
    rng = random.Random(0)
    pairs = [(a, b) for a in FACTORS for b in FACTORS if a <= b]
    rng.shuffle(pairs)
    yield from ((a, b) if rng.random() < 0.5 else (b, a) for a, b in pairs)


def sample() -> None:
    """Write one line per question: its factors, and per wording the responses and whether each is correct."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tagrpo.datamodules.templates import ChatTemplate
    from tagrpo.rewards.plain_answer import PlainAnswerReward
    from tagrpo.rollouts.engines.transformers import TransformersEngine
    from tagrpo.seeds import derive_seed
    from tagrpo.starter.smollm2 import make_smollm2, smollm2_folder
    from tagrpo.types import Request, SamplingConfig

    folder = smollm2_folder()
    make_smollm2(folder)
    tokenizer, engine = AutoTokenizer.from_pretrained(folder), TransformersEngine(str(folder))
    engine.sync(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    template, reward = ChatTemplate(), PlainAnswerReward("number")
    sampling = SamplingConfig(temperature=1.0, max_new_tokens=MAX_NEW_TOKENS)
    SAMPLED.parent.mkdir(exist_ok=True)
    known = SAMPLED.read_text().count("\n") if SAMPLED.exists() else 0
    for row, (a, b) in enumerate(questions()):
        if row < known:
            continue
        texts = [
            template.render(FAMILIES[wording].layout.format(first=a, others=b), tokenizer)
            for wording in TRAINED
        ]
        prompts = [
            tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0] for text in texts
        ]
        seed = derive_seed(0, "premise", row)
        responses = engine.generate(Request(prompts, [RESPONSES] * len(TRAINED), sampling, seed))
        line: dict[str, Any] = {"factors": [a, b], "wordings": {}}
        for wording, completions in zip(TRAINED, responses, strict=True):
            told = tokenizer.batch_decode([c.token_ids for c in completions], skip_special_tokens=True)
            correct = [int(reward(text, str(a * b)).correct) for text in told]
            line["wordings"][wording] = {"responses": told, "correct": correct}
        with SAMPLED.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(row + 1, a, b, [sum(each["correct"]) for each in line["wordings"].values()], flush=True)
    KEPT.write_bytes(gzip.compress(SAMPLED.read_bytes(), mtime=0))


def uniform(correct: Array, draws: int, wordings: int = 1) -> Array:
    """[Q] probability that `draws` responses to each of `wordings` wordings are all right or all wrong.

    Drawn from the sampled ones without replacement, hence unbiased; the mean over all choices of wordings.

    Args:
        correct: [Q, W] correct responses, of `RESPONSES`.
        draws: Responses to each wording.
        wordings: How many are pooled.
    """
    right, wrong = (comb(count, draws) / comb(RESPONSES, draws) for count in (correct, RESPONSES - correct))
    chosen = [list(some) for some in combinations(range(correct.shape[1]), wordings)]
    return np.mean([right[:, some].prod(1) + wrong[:, some].prod(1) for some in chosen], 0)


def spread(correct: Array) -> Array:
    """[Q] unbiased variance of the success rate over the wordings of [Q, W], without what sampling adds."""
    rate = correct / RESPONSES
    return np.asarray(rate.var(1, ddof=1) - (rate * (1 - rate)).mean(1) / (RESPONSES - 1))


def told(values: Array, of_mean: Callable[[Array], Array] = np.asarray, digits: int = 1) -> str:
    """A function of the mean over questions of `values` [Q], and its 95 % bootstrap interval over them."""
    rows = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    found = (of_mean(values.mean()), *np.percentile(of_mean(values[rows].mean(1)), [2.5, 97.5]))
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*found, d=digits)


def distances(line: Mapping[str, Any], encode: Callable[[list[str]], Any]) -> dict[str, dict[str, float]]:
    """`all`, `right`, `wrong` → mean of 1 − cosine over pairs of responses to one wording, and to two; where both are.

    Args:
        line: A question, as `sample` writes it.
        encode: Texts → [R, D] embeddings.
    """
    texts = [text for each in line["wordings"].values() for text in each["responses"][:EMBEDDED]]
    correct = np.array([each["correct"][:EMBEDDED] for each in line["wordings"].values()], dtype=bool).ravel()
    wording = np.repeat(np.arange(len(line["wordings"])), EMBEDDED)
    place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    vectors = np.asarray(encode(list(place)), dtype=np.float64)[[place[text] for text in texts]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    apart, same, pair = 1 - vectors @ vectors.T, wording[:, None] == wording, ~np.eye(len(texts), dtype=bool)
    found = {}
    for name, rows in {"all": np.ones_like(correct), "right": correct, "wrong": ~correct}.items():
        chosen = pair & rows[:, None] & rows
        if (chosen & same).any() and (chosen & ~same).any():
            found[name] = {
                "one": float(apart[chosen & same].mean()),
                "two": float(apart[chosen & ~same].mean()),
            }
    return found


def section(questions: Sequence[Mapping[str, Any]], encode: Callable[[list[str]], Any]) -> Iterator[str]:
    """The tables, line by line."""
    names = list(questions[0]["wordings"])
    correct = np.array(
        [[sum(q["wordings"][name]["correct"]) for name in names] for q in questions], dtype=np.float64
    )
    rate = 100 * correct / RESPONSES
    alone, as_many, pooled = (100 * uniform(correct, *how) for how in ((G,), ((N + 1) * G,), (G, N + 1)))
    yield from (f"| mean over the {len(questions)} questions, 95 % interval | |", "|---|---|")
    yield f"| correct responses, % | {told(rate.mean(1))} |"
    yield f"| equal rewards: {G} responses to one wording, % | {told(alone)} |"
    yield f"| equal rewards: {(N + 1) * G} responses to one wording, % | {told(as_many)} |"
    yield f"| equal rewards: {G} responses to each of {N + 1} wordings, % | {told(pooled)} |"
    yield f"| the latter are fewer by, points | {told(as_many - pooled)} |"
    deviation = told(1e4 * spread(correct), lambda variance: np.sqrt(np.maximum(variance, 0)))
    yield f"| standard deviation of a question's success rate over wordings, points | {deviation} |"
    measured = [distances(question, encode) for question in questions]
    for name, kind in {"all": "", "right": "right ", "wrong": "wrong "}.items():
        one, two = np.array([[each[name]["one"], each[name]["two"]] for each in measured if name in each]).T
        yield f"| distance of two {kind}responses to one wording ({len(one)} questions) | {told(one, digits=3)} |"
        yield f"| … to two wordings: further apart by | {told(two - one, digits=3)} |"
    yield from ("", "| wording | correct, % | equal rewards of 8, % |", "|---|---|---|")
    for column, name in enumerate(names):
        equal = 100 * uniform(correct[:, [column]], G)
        yield f"| {FAMILIES[name].layout.format(first='a', others='b')} | {told(rate[:, column])} | {told(equal)} |"


def page() -> None:
    """Write the tables into README.md."""
    write_section(PAGE, "premise", "\n".join(section(read(KEPT), sentence_encoder("package"))))


if __name__ == "__main__":
    {"sample": sample, "page": page}[sys.argv[1]]()
