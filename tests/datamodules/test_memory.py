"""The memory of questions: counts by hand, ranks side by side, bounds, what a checkpoint keeps; curricula."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tagrpo.datamodules import memory as module
from tagrpo.datamodules.memory import (
    MOST_ANSWERS,
    MOST_VISITS,
    UNKNOWN,
    CheckedCurriculum,
    Chooser,
    Curriculum,
    QuestionMemory,
    Record,
    Visit,
)  # fmt: skip
from tagrpo.datamodules.templates import PlainTemplate
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup
from tests.helpers import on_two_ranks


def named(batch, *ids, answers=None):
    batch.groups = [group._replace(id=id) for group, id in zip(batch.groups, ids, strict=True)]
    if answers is not None:
        batch.rollouts = replace(batch.rollouts, answers=answers)
    return batch


def test_verdicts_and_answers_are_counted_by_question_and_verdicts_by_rephrasing_too(make_batch):
    memory = QuestionMemory()
    batch = named(
        make_batch([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]]]), "a", "b", answers=[*"5755", "5", None]
    )
    assert memory.remember(batch) == [Visit((2, 2), (1, 2)), Visit((2, 0), (0, 0))]
    assert memory["a"] == Record(4, 3, False, [Visit((2, 2), (1, 2))], {"5": 3, "7": 1})
    assert memory["b"] == Record(2, 0, False, [Visit((2, 0), (0, 0))], {"5": 1, None: 1})
    memory.remember(named(make_batch([[[1.0, 1.0]]]), "a", answers=["7", "5"]))
    assert (memory["a"].samples, memory["a"].correct, memory["a"].solved_in_full) == (6, 5, True)
    assert memory["a"].answers == {"5": 4, "7": 2}
    assert [visit.rate for visit in memory["a"].visits] == [0.75, 1.0]
    assert memory["never seen"] is UNKNOWN


def test_a_batch_is_told_what_was_known_before_it(make_batch):
    memory = QuestionMemory()
    first = named(make_batch([[[1.0, 0.0, 0.0]], [[0.0]]]), "a", "b", answers=["5", "7", "7", None])
    memory.remember(first)
    assert [column.tolist() for column in first.rollouts.history] == [[0] * 4] * 3
    second = named(
        make_batch([[[0.0, 0.0], [0.0]], [[1.0]], [[0.0]]]),
        "a",
        "new",
        "b",
        answers=["7", "8", "5", "7", None],
    )
    memory.remember(second)
    assert second.rollouts.history.samples.tolist() == [3, 3, 3, 0, 1]
    assert second.rollouts.history.correct.tolist() == [1, 1, 1, 0, 0]
    assert second.rollouts.history.same_answer.tolist() == [2, 0, 1, 0, 1]


def test_replayed_responses_are_no_news(make_batch):
    memory = QuestionMemory()
    batch = named(make_batch([[[1.0, 0.0]], [[1.0, 1.0]]]), "a", "b", answers=list("5577"))
    batch.rollouts = replace(batch.rollouts, replayed=torch.tensor([True, False, True, True]))
    assert memory.remember(batch) == [Visit((1,), (0,))]
    assert memory.records == {"a": Record(1, 0, False, [Visit((1,), (0,))], {"5": 1})}


def test_every_rank_remembers_the_questions_of_all(make_batch, monkeypatch):
    memories = [QuestionMemory(), QuestionMemory()]
    shares = [
        named(make_batch([[[1.0, 0.0]], [[1.0]]], seed=1), "a", "b"),
        named(make_batch([[[0.0]]], seed=2), "a"),
    ]
    on_two_ranks(monkeypatch, lambda rank: memories[rank].remember(shares[rank]), module)
    assert memories[0].records == memories[1].records
    assert (memories[0]["a"].samples, memories[0]["a"].correct) == (3, 1), "asked on both ranks"
    assert list(memories[0].records) == ["a", "b"]


def test_a_record_is_bounded_and_its_totals_are_not():
    record = Record()
    for number in range(MOST_VISITS + 6):
        record.add(Visit((2,), (number % 2,)), Counter({"often": 2}))
    assert len(record.visits) == 64
    assert (record.samples, record.correct) == (2 * (MOST_VISITS + 6), (MOST_VISITS + 6) // 2)
    for number in range(MOST_ANSWERS + 3):
        record.add(Visit((1,), (0,)), Counter({str(number): 1}))
    assert len(record.answers) == 256
    assert record.answers["often"] == 2 * (MOST_VISITS + 6), "the rarest go"
    assert "3" not in record.answers, "and the oldest of them first"
    assert str(MOST_ANSWERS + 2) in record.answers


def test_long_answers_are_told_apart_but_not_kept(make_batch):
    memory, long = QuestionMemory(), "9" * 5000
    memory.remember(named(make_batch([[[0.0, 0.0, 0.0]]]), "a", answers=[long, long, long + "1"]))
    assert sorted(memory["a"].answers.values()) == [1, 2]
    assert max(map(len, memory["a"].answers)) == 64
    batch = named(make_batch([[[0.0]]]), "a", answers=[long])
    memory.remember(batch)
    assert batch.rollouts.history.same_answer.tolist() == [2]
    memory.remember(named(make_batch([[[0.0, 0.0]]]), "b", answers=["9" * 64, "9" * 65]))
    assert ["9" * 64 in memory["b"].answers, "9" * 65 in memory["b"].answers] == [True, False]


def test_a_rank_without_questions_has_nothing_to_tell(make_batch):
    memory, batch = QuestionMemory(), make_batch([[[1.0]]])
    columns = {
        name: getattr(batch.rollouts, name)[:0] for name in ("question", "rephrasing", "replayed", "correct")
    }
    batch.groups, batch.rollouts = [], replace(batch.rollouts, answers=[], **columns)
    assert memory.remember(batch) == []
    assert memory.records == {}


def test_the_state_is_a_copy_in_plain_containers(make_batch, tmp_path):
    memory, again = QuestionMemory(), QuestionMemory()
    memory.remember(
        named(make_batch([[[1.0, 0.0], [1.0]], [[1.0]]]), "a", "b", answers=["5", None, "7", "7"])
    )
    torch.save(memory.state_dict(), tmp_path / "state.pt")
    before = memory.state_dict()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.records == memory.records
    assert list(again["a"].answers) == list(memory["a"].answers), "their order decides which is forgotten"
    memory.remember(named(make_batch([[[1.0]]]), "a"))
    assert again.state_dict() == before != memory.state_dict()


def test_only_what_has_changed_is_copied_again(make_batch):
    memory = QuestionMemory()
    memory.remember(named(make_batch([[[1.0, 0.0]], [[1.0]]]), "a", "b", answers=["5", "7", "7"]))
    first = memory.state_dict()
    memory.remember(named(make_batch([[[0.0]]]), "a", answers=["5"]))
    second = memory.state_dict()
    assert second["b"] is first["b"]
    assert first["a"] == (2, 1, False, [((2,), (1,))], {"5": 1, "7": 1}), "a state does not change afterwards"
    assert second["a"] == (3, 1, False, [((2,), (1,)), ((1,), (0,))], {"5": 2, "7": 1})


def visited(*right):
    """A question with two responses to each of two phrasings, of which so many were right at each visit."""
    return Record(visits=[Visit((2, 2), (min(r, 2), max(r - 2, 0))) for r in right])


class Unsolved(Curriculum):
    """Serves questions of which some response was wrong at the last visit, and new ones."""

    def chance(self, record):
        return float(not record.visits or record.visits[-1].rate < 1)


def datamodule_of(curriculum):
    from tagrpo.datamodules.lightning.questions import QuestionDataModule

    datamodule = QuestionDataModule(
        train=ArithmeticSource(size=8), evaluation={}, tokenizer=str(starter_path()),
        template=PlainTemplate("{question} <sep>"), batch_size=2, num_rephrasings=0, curriculum=curriculum,
    )  # fmt: skip
    datamodule.setup("fit")
    return datamodule


@pytest.mark.shell
def test_a_data_module_serves_what_its_curriculum_wants_by_what_is_remembered():
    datamodule = datamodule_of(Unsolved())
    assert datamodule.needs_memory
    loader = datamodule.train_dataloader()
    first = [group.id for batch in loader for group in batch.groups]
    assert len(first) == 8
    solved = first[:3]
    datamodule.memory.records = {id: visited(4 if id in solved else 1) for id in first}
    assert len({group.id for batch in loader for group in batch.groups} - set(solved)) == 4, (
        "five make two batches"
    )


class Counting(Curriculum):
    """Remembers how many visits there were."""

    seen = 0

    def observe(self, visits):
        self.seen += len(visits)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_a_curriculum_serves_every_question_unless_it_says_otherwise():
    assert Counting().chance(visited(0)) == Counting().chance(visited(4)) == 1.0


@pytest.mark.shell
def test_a_data_module_keeps_the_state_of_its_curriculum_and_refuses_what_is_none():
    one, other = datamodule_of(Counting()), datamodule_of(Counting())
    one.observe([Visit((2,), (0,))])
    other.load_state_dict(one.state_dict())
    assert other.curriculum.seen == one.curriculum.seen == 1
    with pytest.raises(TypeError, match=r"data\.curriculum"):
        datamodule_of(object())


class Odd(Curriculum):
    """Returns or raises what a test gives it."""

    def __init__(self, value):
        self.value = value

    def give(self, *_):
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    chance = asked = observe = give


GROUP = QuestionGroup("a", "q", ("r", "s"), ("1",))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 1.1, 10**400, torch.tensor(math.nan)])
def test_a_chance_is_from_0_to_1(value):
    with pytest.raises(ValueError, match=r"Odd \(data\.curriculum\)"):
        CheckedCurriculum(Odd(value)).chance(Record())


@pytest.mark.parametrize(
    "value", [None, "0.5", [0.5], 0.5j, torch.ones(1), torch.ones(2), torch.ones((), device="meta")]
)
def test_a_chance_is_a_number(value):
    with pytest.raises(TypeError, match=r"Odd \(data\.curriculum\)"):
        CheckedCurriculum(Odd(value)).chance(Record())


@pytest.mark.parametrize("value", [0, 1, 0.5, True, np.float32(0.5), torch.tensor(0.5), Fraction(1, 2)])
def test_numbers_of_any_kind_are_chances(value):
    assert CheckedCurriculum(Odd(value)).chance(Record()) == float(value)


@pytest.mark.parametrize(
    "value",
    [
        None, "q", tuple(GROUP), GROUP._replace(id="b"), GROUP._replace(id=3), GROUP._replace(question=None),
        GROUP._replace(rephrasings=["r"]), GROUP._replace(rephrasings=(3,)), GROUP._replace(kinds=("wording",)),
    ],
)  # fmt: skip
def test_what_is_asked_is_the_question_in_texts(value):
    with pytest.raises((TypeError, ValueError), match=r"Odd \(data\.curriculum\).*'a'"):
        CheckedCurriculum(Odd(value)).asked(GROUP, Record())


def test_other_wordings_may_be_asked():
    for group in (GROUP, GROUP._replace(question="r", rephrasings=(), kinds=())):
        assert CheckedCurriculum(Odd(group)).asked(GROUP, Record()) is group


def test_a_data_module_that_chooses_is_known_by_its_attributes():
    chooses = SimpleNamespace(needs_memory=True, memory=QuestionMemory(), observe=lambda visits: None)
    assert isinstance(chooses, Chooser)
    del chooses.memory
    assert not isinstance(chooses, Chooser)


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("bye"), StopIteration()])
def test_a_curriculum_ends_no_run_in_silence(error):
    curriculum = CheckedCurriculum(Odd(error))
    for call in (
        lambda: curriculum.chance(Record()),
        lambda: curriculum.asked(GROUP, Record()),
        lambda: curriculum.observe([]),
    ):
        with pytest.raises(RuntimeError, match=r"Odd \(data\.curriculum\)"):
            call()


@pytest.mark.shell
@pytest.mark.parametrize("value", [math.nan, 2.0, "1"])
def test_a_data_module_checks_its_curriculum(value):
    datamodule = datamodule_of(Odd(value))
    with pytest.raises((TypeError, ValueError), match=r"Odd \(data\.curriculum\)"):
        next(iter(datamodule.train_dataloader()))
