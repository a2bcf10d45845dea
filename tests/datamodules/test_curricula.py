"""Curricula: what a data module serves, and what it keeps."""

from __future__ import annotations

import pytest

from tagrpo.datamodules.curricula import Curriculum
from tagrpo.datamodules.memory import Record, Visit
from tagrpo.datamodules.questions import QuestionDataModule
from tagrpo.datamodules.templates import PlainTemplate
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.starter import starter_path


def visited(*right):
    """A question with two responses to each of two phrasings, of which so many were right at each visit."""
    return Record(visits=[Visit((2, 2), (min(r, 2), max(r - 2, 0))) for r in right])


class Unsolved(Curriculum):
    """Serves questions of which some response was wrong at the last visit, and new ones."""

    def chance(self, record):
        return float(not record.visits or record.visits[-1].rate < 1)


def datamodule_of(curriculum):
    datamodule = QuestionDataModule(
        train=ArithmeticSource(size=8), evaluation={}, tokenizer=str(starter_path()),
        template=PlainTemplate("{question} <sep>"), batch_size=2, num_rephrasings=0, curriculum=curriculum,
    )  # fmt: skip
    datamodule.setup("fit")
    return datamodule


def test_a_data_module_serves_what_its_curriculum_wants_by_what_is_remembered():
    datamodule = datamodule_of(Unsolved())
    assert datamodule.needs_memory
    loader = datamodule.train_dataloader()
    first = [group.id for batch in loader for group in batch.groups]
    assert len(first) == 8
    solved = first[:3]
    datamodule.memory.records = {id: visited(4 if id in solved else 1) for id in first}
    assert len({group.id for batch in loader for group in batch.groups} - set(solved)) == 4, "five make two batches"


class Counting(Curriculum):
    """Remembers how many visits there were."""

    seen = 0

    def observe(self, visits):
        self.seen += len(visits)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_a_data_module_keeps_the_state_of_its_curriculum_and_refuses_what_is_none():
    one, other = datamodule_of(Counting()), datamodule_of(Counting())
    one.observe([Visit((2,), (0,))])
    other.load_state_dict(one.state_dict())
    assert other.curriculum.seen == one.curriculum.seen == 1
    with pytest.raises(TypeError, match=r"data\.curriculum to be a Curriculum .*no asked, chance"):
        datamodule_of(object())
