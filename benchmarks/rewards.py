r"""Responses scored per second in groups of 32, against math-verify on every response.

    python benchmarks/rewards.py --data math_train.jsonl

Each question gets a solve rate from Beta(0.5, 0.5) (most are nearly solved or nearly hopeless) and
32 responses: its worked solution, and a box. Right ones spell the reference as it is or a little otherwise;
wrong ones draw from twelve answers to questions of the same subject and kind (integer or not) with Zipf
weights, so that a few wrong answers are common and the rest rare. Without --data, all of it is generated.

Each way is timed once, after as many other questions: math-verify's parser gets faster as it sees more of its
grammar, and training is long. Compare the ratios. CPU rates count this process and its workers, so that they
hold on a machine that others use as well.
"""

import argparse
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

from math_verify import parse, verify

from tagrpo.rewards import MathReward, Score
from tagrpo.rewards.extraction import extract_answer, extract_reference, normalize_answer

GROUP = 32
Question = tuple[str, str, str]
"""(solution, answer, kind)"""
Sampled = tuple[list[str], list[str]]
"""(responses, references)"""


def load(path: Path | None, rng: random.Random) -> list[Question]:
    if path is None:
        return [generate(rng) for _ in range(1000)]
    questions = []
    with path.open() as lines:
        for row in map(json.loads, lines):
            answer = extract_reference(row["solution"])
            if answer:
                kind = f"{row['type']} {normalize_answer(answer).lstrip('-').isdecimal()}"
                questions.append((row["solution"], answer, kind))
    return questions


def generate(rng: random.Random) -> Question:
    prose = "Let us compute, step by step. " * 30
    if rng.random() < 0.64:  # the share of integers among the answers of MATH
        return prose, str(rng.randint(-99, 999)), "integer"
    numerator, root, denominator = rng.randint(1, 99), rng.randint(2, 30), rng.randint(2, 40)
    return prose, rf"\frac{{{numerator}\sqrt{{{root}}}}}{{{denominator}}}", "formula"


def respell(answer: str, rng: random.Random) -> str:
    return rng.choice([answer, answer, answer.replace(r"\frac", r"\dfrac"), f" {answer} "])


def sample(questions: list[Question], groups: int, rng: random.Random) -> Sampled:
    """Responses and references of `groups` questions."""
    by_kind: dict[str, list[str]] = {}
    for _, answer, kind in questions:
        by_kind.setdefault(kind, []).append(answer)
    responses = []
    references = []
    for solution, answer, kind in rng.sample(questions, groups):
        rate = rng.betavariate(0.5, 0.5)
        wrong = rng.sample(by_kind[kind], min(12, len(by_kind[kind])))
        weights = [1 / rank for rank in range(1, len(wrong) + 1)]
        prose = solution.replace(r"\boxed", "")
        for _ in range(GROUP):
            final = respell(answer, rng) if rng.random() < rate else rng.choices(wrong, weights)[0]
            responses.append(rf"{prose} So the answer is $\boxed{{{final}}}$.")
            references.append(answer)
    return responses, references


def with_workers(workers: int, *parts: Sampled) -> tuple[list[Score], float, float]:
    """Scores and wall seconds of the last part, CPU seconds of all."""
    before = os.times()
    with MathReward(workers=workers) as reward:
        for part in parts:
            start = time.perf_counter()
            scores = reward.score_batch(*part)
            wall = time.perf_counter() - start
    if failures := Counter(score.failure for score in scores if score.failure):
        print(f"without a verdict: {dict(failures)}")
    return scores, wall, sum(os.times()[:4]) - sum(before[:4])


def naively(sampled: Sampled, count: int) -> tuple[list[bool], float]:
    """Verdicts of math-verify on the first `count`, and the CPU seconds they took."""

    def verified(response: str, reference: str) -> bool:
        return verify(parse(f"${reference}$"), parse(response))

    start = time.process_time()
    verdicts = [verified(response, reference) for response, reference in list(zip(*sampled, strict=True))[:count]]
    return verdicts, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="How many responses are scored per second.")
    parser.add_argument("--data", type=Path, help="JSON lines with `solution` and `type`, as in MATH")
    parser.add_argument("--groups", type=int, default=256, help="questions, of 32 responses each")
    parser.add_argument("--naive", type=int, default=64, help="questions that math-verify verifies alone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    questions = load(arguments.data, rng)
    warm, timed = sample(questions, arguments.groups, rng), sample(questions, arguments.groups, rng)
    total = len(timed[0])

    _, _, start_up = with_workers(arguments.workers, warm)
    scores, wall, cpu = with_workers(arguments.workers, warm, timed)
    naively(warm, arguments.naive * GROUP)
    verdicts, naive_cpu = naively(timed, arguments.naive * GROUP)
    naive_rate = len(verdicts) / naive_cpu
    rate = total / (cpu - start_up)

    distinct = len({(normalize_answer(extract_answer(r) or ""), ref) for r, ref in zip(*timed, strict=True)})
    agree = sum(score.correct == verdict for score, verdict in zip(scores, verdicts, strict=False))
    correct = sum(score.correct for score in scores)
    distinct_answers = f"{distinct / arguments.groups:.1f} distinct answers a group"
    print(f"{total} responses, {correct / total:.0%} correct, {distinct_answers}")
    print(f"MathReward         {total / wall:6.0f} responses/s with {arguments.workers} workers")
    print(f"                   {rate:6.0f} per CPU second, {rate / naive_rate:.1f} x math-verify alone")
    print(f"math-verify alone  {naive_rate:6.0f} per CPU second; {agree}/{len(verdicts)} verdicts agree")


if __name__ == "__main__":
    main()
