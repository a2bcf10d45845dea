"""The averages that papers print follow from their entries and the groups of data/evaluation, but for two misprints."""

from __future__ import annotations

from functools import cache

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.datamodules.sources.catalogue import CATALOGUE
from tagrpo.metrics.evaluation import averages, summarise
from tests.helpers import counted

pytestmark = pytest.mark.pages

BENCHMARKS = ("amc", "olympiadbench", "aime24", "aime25", "minerva", "gpqa_diamond")
# TA-GRPO, Table 1: AMC, OlympiadBench, AIME24, AIME25, average, Minerva, GPQA-Diamond, average. Base, GRPO, GRPO w/ DS,
# TA-GRPO on Qwen3-1.7B, Qwen3-4B, Llama-3.2-1B, Llama-3.2-3B.
TABLE_1 = """
62.70 60.04 32.54 29.13 46.10 49.64 61.10 55.37
76.06 66.03 39.37 32.34 53.45 51.34 66.91 59.13
77.49 67.31 40.38 33.21 54.60 52.18 67.94 60.06
83.74 70.45 47.42 37.14 59.69 53.07 76.52 64.80
79.98 68.08 45.44 36.32 57.45 57.19 77.84 67.52
84.16 70.55 46.47 42.11 60.82 58.25 78.96 68.60
85.07 71.46 47.39 42.95 61.72 58.97 79.63 69.30
88.08 74.53 57.37 45.92 66.73 60.81 84.85 72.83
50.98 33.89 17.96 00.83 25.92 25.98 50.49 38.23
52.81 35.10 19.43 01.67 27.25 29.26 52.68 40.97
53.74 35.88 20.04 01.79 27.86 29.87 53.42 41.65
59.46 38.49 22.79 04.68 31.36 30.98 59.11 45.05
69.75 48.76 33.07 07.66 39.81 42.30 60.57 51.44
70.99 50.70 35.10 11.47 42.06 44.49 63.75 54.12
72.18 51.79 36.42 12.38 43.19 45.42 64.78 55.10
81.25 55.60 39.64 17.28 48.44 46.82 68.74 57.78
"""
SIX = {3: 61.39, 7: 68.59}
"""Row of TABLE_1 → the average over all six that section 5.5 reports of it (Fig. 7)."""
# Prompt augmentation, Table 2: AIME24, AMC, MATH500, Minerva, Olympiad, AVG benchmark, AVG question.
TABLE_2 = """
16.7 43.4 61.8 15.1 28.4 33.1 37.4
23.3 49.9 75.4 26.3 38.3 42.6 48.4
20.0 53.0 74.2 25.7 37.6 42.1 47.7
23.3 50.6 75.4 26.8 41.3 43.5 49.8
20.0 53.0 77.6 30.1 38.7 43.9 50.1
23.3 54.9 76.9 26.0 39.4 44.1 49.6
23.3 53.5 78.4 31.3 39.4 45.2 50.9
20.0 49.4 80.4 29.7 41.2 44.1 51.8
"""
# Pass@k training, Table 5: AIME 2024, AIME 2025, OlymMATH-Easy, OlymMATH-Hard, Avg.; Pass@1, then Pass@k of each model.
TABLE_5 = """
1.5 0.1 1.7 1.1 1.1
13.6 1.1 3.8 2.0 5.1
12.7 1.7 3.7 1.7 5.0
14.6 1.3 4.1 2.0 5.5
17.3 2.1 14.4 9.2 10.8
26.7 6.6 4.0 6.3 10.9
32.0 12.9 8.8 7.7 15.4
32.1 8.6 7.7 7.5 14.0
3.4 0.2 0.8 0.5 1.0
4.4 0.9 1.4 1.1 2.0
7.1 1.8 1.5 1.4 3.0
8.7 0.9 1.8 1.6 3.3
17.9 4.3 7.5 7.6 9.3
32.1 7.7 4.1 6.2 12.5
40.0 10.6 8.9 8.2 17.0
29.7 8.7 7.9 6.8 13.3
22.7 20.5 6.6 0.6 12.6
36.7 28.8 16.7 2.5 21.2
36.5 27.0 17.6 2.4 20.9
42.3 30.4 20.7 3.4 24.2
44.2 31.5 22.6 4.4 25.7
61.4 37.2 36.7 5.2 35.1
76.0 49.4 51.7 17.5 48.7
79.3 55.5 59.3 17.4 52.9
71.7 57.8 60.5 18.9 52.2
77.2 57.7 62.7 21.2 54.7
43.2 31.5 22.2 1.4 24.6
48.5 35.5 27.9 3.1 28.8
48.2 36.5 28.1 3.3 29.0
50.3 39.3 32.3 3.5 31.4
80.9 59.1 66.0 13.7 54.9
79.5 59.4 69.1 22.5 57.6
80.9 66.7 72.7 23.3 60.9
81.0 61.9 68.9 22.7 58.6
"""
MISPRINTS = {("competition", 66.73): 66.475, ("pass_at_k_four", 1.0): 1.225}
"""What is printed, and what follows from its entries: TA-GRPO on Qwen3-4B, and Llama-3.1-8B before any training."""


def rows(text):
    return [[float(number) for number in line.split()] for line in text.split("\n") if line]


@cache
def groups(evaluation):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return OmegaConf.to_container(
            compose("train", ["data=benchmarks", f"data/evaluation={evaluation}"]).averages
        )


def averaged(evaluation, **accuracies):
    """Averages over benchmarks with these accuracies, in percent, of as many questions as they have."""
    report = {}
    for name, percent in accuracies.items():
        questions = {str(i): (10_000, round(100 * percent)) for i in range(CATALOGUE[name].questions)}
        report[name] = summarise(counted(questions), [1])
    found = averages(report, groups(evaluation))
    return {
        name: [100 * group[key][1]["value"] for key in ("pass_at_k", "by_question")]
        for name, group in found.items()
    }


def agree(name, found, printed, digits):
    """Whether an average is the printed one, whose entries are rounded as it is, or the one that should stand there."""
    return found == pytest.approx(MISPRINTS.get((name, printed), printed), abs=1.02 * 10**-digits)


@pytest.mark.parametrize("number", range(16))
def test_the_averages_of_ta_grpo_are_those_of_its_table_and_its_figure(number):
    row = rows(TABLE_1)[number]
    found = averaged("benchmarks", **dict(zip(BENCHMARKS, [*row[:4], *row[5:7]], strict=True)))
    assert list(found) == ["competition", "out_of_distribution", "ta_grpo_six"]
    assert agree("competition", found["competition"][0], row[4], 2)
    assert agree("out_of_distribution", found["out_of_distribution"][0], row[7], 2)
    if number in SIX:
        assert agree("ta_grpo_six", found["ta_grpo_six"][0], SIX[number], 2)


@pytest.mark.parametrize("row", rows(TABLE_2))
def test_the_averages_of_prompt_augmentation_are_those_over_benchmarks_and_over_questions(row):
    names = ("aime24", "amc", "math500", "minerva", "olympiadbench")
    found = averaged("benchmarks", **dict(zip(names, row[:5], strict=True)))
    assert list(found) == ["prompt_augmentation_five"]
    by_benchmark, by_question = found["prompt_augmentation_five"]
    assert agree("", by_benchmark, row[5], 1)
    assert agree("", by_question, row[6], 1)


@pytest.mark.parametrize("row", rows(TABLE_5))
def test_the_averages_of_pass_at_k_training_are_those_over_its_four_benchmarks(row):
    names = ("aime24", "aime25", "olymmath_easy", "olymmath_hard")
    found = averaged("pass_at_k", **dict(zip(names, row[:4], strict=True)))
    assert list(found) == ["pass_at_k_four"]
    assert agree("pass_at_k_four", found["pass_at_k_four"][0], row[4], 1)
