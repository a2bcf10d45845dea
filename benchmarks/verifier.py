r"""How the verifier scores the reference answers of real data: their own, and those of other rows.

    python benchmarks/verifier.py --data ../shared/data

Of each dataset of the catalogue that lies in the folder: every reference answer in a box against itself (those that are
not correct are listed by id), and `--pairs` answers of other rows, drawn at random. Pairs whose answers are spelled
alike, or are the same integer or fraction, are set aside. The rest should be wrong; what is found correct nevertheless
is listed, to be read: `0.5` and `\frac12` are equal, and are meant to be.
"""

import argparse
import random
from itertools import islice, repeat
from pathlib import Path

import datasets

from tagrpo.datamodules.sources.catalogue import CATALOGUE
from tagrpo.datamodules.sources.hub import HubSource
from tagrpo.datamodules.sources.rows import locate
from tagrpo.rewards import MathReward, MixedReward, MultipleChoiceReward
from tagrpo.rewards.extraction import exact_value, normalize_answer
from tagrpo.types import QuestionGroup


def boxed(answer: str) -> str:
    return rf"Therefore the answer is $\boxed{{{answer}}}$."


def same(reference: tuple[str, ...], answer: str) -> bool:
    """Whether an answer is spelled like a reference, or is the same integer or fraction."""
    spellings = set(map(normalize_answer, reference))
    values = set(map(exact_value, spellings)) - {None}
    normal = normalize_answer(answer)
    return normal in spellings or exact_value(normal) in values


def own_answers(reward: MixedReward, groups: list[QuestionGroup]) -> None:
    pairs = [(group, answer) for group in groups for answer in group.answer]
    scores = reward.score_batch([boxed(answer) for _, answer in pairs], [group.answer for group, _ in pairs])
    wrong = [(*pair, score) for pair, score in zip(pairs, scores, strict=True) if not score.correct]
    print(f"  own answers    {len(pairs) - len(wrong)} of {len(pairs)} correct")
    for group, answer, score in wrong:
        print("    not correct:", group.id, answer, score)


def other_answers(reward: MixedReward, groups: list[QuestionGroup], count: int, rng: random.Random) -> None:
    drawn = (rng.sample(groups, 2) for _ in repeat(None))
    pairs = list(islice((pair for pair in drawn if not same(pair[0].answer, pair[1].answer[0])), count))
    scores = reward.score_batch([boxed(other.answer[0]) for _, other in pairs], [group.answer for group, _ in pairs])
    correct = [pair for pair, score in zip(pairs, scores, strict=True) if score.correct]
    failed = sum(score.failure is not None for score in scores)
    print(f"  other answers  {len(correct)} of {count} correct, {failed} without a verdict")
    for group, other in correct:
        print(f"    correct: {group.id} {group.answer}  by {other.id} {other.answer[0]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description="How the verifier scores reference answers of real data.")
    parser.add_argument("--data", type=Path, required=True, help="folder with copies, such as amc.jsonl")
    parser.add_argument("--pairs", type=int, default=2000, help="answers of other rows, for each dataset")
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    with MixedReward(MultipleChoiceReward(), MathReward(workers=2)) as reward:
        for name in CATALOGUE:
            if locate(arguments.data, name) == arguments.data:
                continue
            source = HubSource(name, path=arguments.data)
            groups = source.load()
            print(f"{name}: {len(groups)} questions", *(source.report.warnings if source.report else ()))
            own_answers(reward, groups)
            other_answers(reward, groups, arguments.pairs, random.Random(0))


if __name__ == "__main__":
    main()
