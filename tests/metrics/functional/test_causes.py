"""Why questions give no gradient, one hand-made question per cause."""

from __future__ import annotations

import pytest
import torch

from tagrpo.metrics.functional import CAUSES, zero_gradient_causes

# (rewards, correct, advantages, truncated, prompt, masked, clipped) of the responses to one question.
QUESTIONS = {
    "all_right": ([1, 1], [1, 1], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]),
    "all_wrong": ([0, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 1], [0, 0]),
    "truncated": ([0, 0], [0, 0], [0, 0], [1, 1], [0, 0], [0, 0], [0, 0]),
    "unpooled": ([1, 1, 0, 0], [1, 1, 0, 0], [0] * 4, [0] * 4, [0, 0, 1, 1], [0] * 4, [0] * 4),
    "masked": ([1, 0, 0], [1, 0, 0], [0, 1, -1], [0, 1, 1], [0, 0, 0], [0, 1, 1], [0, 0, 0]),
    "clipped": ([1, 0, 0], [1, 0, 0], [1, -1, -1], [0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1]),
    "other": ([1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    "none": ([1, 0], [1, 0], [1, -1], [0, 0], [0, 0], [0, 0], [1, 0.9]),
    "shaped": ([0.5, 0.5], [1, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]),
}


def causes_of(names, **left_out):
    columns = list(zip(*(QUESTIONS[name] for name in names), strict=True))
    rewards, correct, advantages, truncated, prompt, masked, clipped = (
        torch.tensor([x for part in column for x in part], dtype=torch.float32) for column in columns
    )
    sizes = torch.tensor([len(QUESTIONS[name][0]) for name in names])
    group = (100 - torch.arange(len(names))).repeat_interleave(sizes)  # descending ids
    options = {"masked": masked.bool(), "clipped": clipped} | left_out
    found = zero_gradient_causes(
        advantages, rewards, correct.bool(), truncated.bool(), group, group * 10 + prompt.long(), **options
    )
    assert tuple(found) == CAUSES
    flags = torch.stack(list(found.values()))
    assert flags.sum(0).max() <= 1, "a question has one cause at most"
    return [[name for name, f in found.items() if f[i]] for i in reversed(range(len(names)))]


def test_each_cause_is_told_from_the_others():
    names = list(QUESTIONS)
    expected = [[name] for name in names[:-2]] + [[], ["other"]]
    assert causes_of(names) == expected
    assert [causes_of([name])[0] for name in names] == expected, "a question's cause does not depend on the others"


@pytest.mark.parametrize("name", ["masked", "clipped"])
def test_what_the_module_does_not_return_counts_as_nothing(name):
    assert causes_of([name], masked=None, clipped=None) == [[]]
    assert causes_of(["clipped"], clipped=torch.tensor([float("nan")] * 3)) == [[]]
