"""Cog-DRIFT's curriculum against the authors' sampler and data set, written anew."""

from __future__ import annotations

import numpy as np
import pytest

from tagrpo.contrib.cog_drift.curriculum import EasiestFirst
from tagrpo.datamodules.memory import Record, Visit
from tagrpo.types import QuestionGroup

QUESTION = QuestionGroup("q", "open", ("four", "ten", "gap"), ("49",), {"level": 5}, ("format",) * 3)


def by_the_sampler(scores, threshold, formats):
    """dinobby/Cog-DRIFT at 39d7a84: adaptive_sampler.py with a window of one batch, adaptive_rl_dataset.py."""
    current = formats[0]
    for batch in scores:
        if np.mean(batch) > threshold and formats.index(current) + 1 < len(formats):
            current = formats[formats.index(current) + 1]
    return current


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("formats", [("four", "ten", "gap"), ("gap",), ()])
def test_the_format_is_that_of_the_authors_sampler(threshold, formats):
    rng, reached = np.random.default_rng(0), set()
    for visits in [0, 1, 2, 3, 5, 9] * 20:
        scores = rng.random((visits, 8)) < rng.random((visits, 1))
        record = Record(visits=[Visit((8,), (int(row.sum()),)) for row in scores])
        found = EasiestFirst(threshold).asked(
            QUESTION._replace(rephrasings=formats, kinds=("format",) * len(formats)), record
        )
        assert found.question == by_the_sampler(scores, threshold, [*formats, "open"])
        assert found == QUESTION._replace(question=found.question, rephrasings=(), kinds=())
        reached.add(found.question)
    assert threshold == 1.0 or len(reached) == len(formats) + 1, "every format was asked"


def test_half_of_the_responses_are_not_enough_at_one_half():
    for right, question in ((4, "four"), (5, "ten")):
        assert EasiestFirst().asked(QUESTION, Record(visits=[Visit((8,), (right,))])).question == question


def test_an_impossible_threshold_is_refused():
    for threshold in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"data\.curriculum\.threshold"):
            EasiestFirst(threshold)
