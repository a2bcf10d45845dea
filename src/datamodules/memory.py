"""Memory of questions (how often each was sampled and solved, and with which answers), curricula and replay.

The memory is equal on every rank and part of checkpoints. A run that does not read the memory has no memory.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..distributed import gather_objects
from ..types import History, QuestionBatch, QuestionGroup, Rollouts
from ..types.checks import found, name_of, own_code

MOST_VISITS = 64  # newest visits kept of each question, about one an epoch
# different answers counted for each question; beyond this, the rarest (and oldest) is forgotten
MOST_ANSWERS = 256
LONGEST_ANSWER = 64  # characters of an answer; longer ones are kept as a digest


class Visit(NamedTuple):
    """Counts of new responses to a question in one batch: for the original, then for each rephrasing."""

    samples: tuple[int, ...]  # replayed responses do not count
    correct: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Share of correct responses over all phrasings, from 0 to 1."""
        return sum(self.correct) / sum(self.samples)


@dataclass
class Record:
    """Results of the training responses to one question."""

    samples: int = 0  # responses so far, to all phrasings
    correct: int = 0  # correct responses so far
    solved_in_full: bool = False  # whether all responses of some visit were correct
    visits: list[Visit] = field(default_factory=list)  # the newest `MOST_VISITS`, oldest first
    # final answer (None: without one) → how often given
    answers: dict[str | None, int] = field(default_factory=dict)
    _plain: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def plain(self) -> tuple[Any, ...]:
        """Copy in plain containers, cached until something is added."""
        if self._plain is None:
            visits = [tuple(visit) for visit in self.visits]
            self._plain = (self.samples, self.correct, self.solved_in_full, visits, dict(self.answers))
        return self._plain

    def add(self, visit: Visit, answers: Counter[str | None]) -> None:
        """Add the responses of one batch."""
        self._plain = None
        self.samples += sum(visit.samples)
        self.correct += sum(visit.correct)
        self.solved_in_full = self.solved_in_full or visit.rate == 1.0
        self.visits = [*self.visits, visit][-MOST_VISITS:]
        for answer, count in answers.items():
            self.answers[answer] = self.answers.get(answer, 0) + count
        while len(self.answers) > MOST_ANSWERS:
            del self.answers[min(self.answers, key=self.answers.__getitem__)]


UNKNOWN = Record()  # of a question that was never sampled; not to be changed


class QuestionMemory:
    """Records of all questions that were sampled in training, by question id."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def __getitem__(self, question_id: str) -> Record:
        return self.records.get(question_id, UNKNOWN)

    def remember(self, batch: QuestionBatch) -> list[Visit]:
        """Add the new responses of all ranks to the records, and return a visit per question. Collective.

        Sets `batch.rollouts.history` to the results before this batch.
        """
        assert batch.rollouts is not None
        batch.rollouts = replace(batch.rollouts, history=self._history(batch.groups, batch.rollouts))
        seen = _seen(batch.groups, batch.rollouts)
        visits = []
        for part in gather_objects(seen):
            for id, visit, answers in part:
                self.records.setdefault(id, Record()).add(visit, answers)
                visits.append(visit)
        return visits

    def _history(self, groups: Sequence[QuestionGroup], rollouts: Rollouts) -> History:
        records = [self[group.id] for group in groups]
        rows = rollouts.question
        same = [
            records[q].answers.get(_kept(a), 0) for q, a in zip(rows.tolist(), rollouts.answers, strict=True)
        ]
        return History(
            samples=torch.tensor([record.samples for record in records], dtype=torch.long)[rows],
            correct=torch.tensor([record.correct for record in records], dtype=torch.long)[rows],
            same_answer=torch.tensor(same, dtype=torch.long),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all records in plain containers."""
        return {id: record.plain for id, record in self.records.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.records = {}
        for id, (samples, correct, in_full, visits, answers) in state.items():
            known = [Visit(*visit) for visit in visits]
            self.records[id] = Record(samples, correct, in_full, known, dict(answers))


@runtime_checkable
class Curriculum(Protocol):
    """Rule that chooses, from the records of questions, which questions are served with which rephrasings.

    By default, all questions are served with all rephrasings.
    """

    def chance(self, record: Record) -> float:  # noqa: ARG002
        """Return the probability that a question with this record is served at its turn, from 0 to 1."""
        return 1.0

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:  # noqa: ARG002
        """Return the question with the rephrasings to sample; by default with all rephrasings."""
        return group

    def observe(self, visits: Sequence[Visit]) -> None:
        """Update the curriculum from a batch's visits, also if dynamic sampling drops the batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, without the `QuestionMemory`, which is saved separately."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`."""


class Replay(Protocol):
    """Protocol of buffers whose past successes join the responses to training batches.

    `tagrpo.contrib.exgrpo` replays the policy's successes; `tagrpo.contrib.luffy` replays demonstrations.
    """

    memory: QuestionMemory
    """Earlier results on the training questions; the pipeline keeps them up to date."""

    def substitute(self, batch: QuestionBatch, iteration: int, policy: Any) -> QuestionBatch:
        """Return `batch` with a past success in the field `past` of some prompts. Collective.

        `policy` is a `SampledPolicy`.
        """

    def observe(self, batch: QuestionBatch) -> dict[str, float]:
        """Record a rolled-out batch, which is already in `memory`. Return the scalars to log. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, equal on every rank."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


@runtime_checkable
class Chooser(Protocol):
    """Protocol of data modules that can choose questions by earlier results."""

    needs_memory: bool
    """Whether the data module chooses questions by `memory`."""
    memory: QuestionMemory
    """The results that the data module reads; `RolloutCallback` sets it to the pipeline's memory."""

    def observe(self, visits: list[Visit]) -> None:
        """Record the results of a rolled-out training batch, including questions that are then dropped."""


class CheckedCurriculum:
    """Wrapper that checks what a curriculum returns.

    Each error message is one sentence and names the curriculum's class.

    Args:
        curriculum: The curriculum that `data.curriculum` chooses.
    """

    def __init__(self, curriculum: Curriculum) -> None:
        self.curriculum = curriculum

    def chance(self, record: Record) -> float:
        """Return the probability that a question is served.

        Raises:
            TypeError: if the curriculum does not return a number.
            ValueError: if the number is not from 0 to 1.
        """
        with own_code(self.curriculum, "data.curriculum"):
            value = self.curriculum.chance(record)
        expected = (
            f"Expected the chance of {name_of(self.curriculum)} (data.curriculum) to be a number from 0 to 1"
        )
        scalar = (
            isinstance(value, Tensor)
            and value.dim() == 0
            and value.device.type == "cpu"
            and value.is_floating_point()
        )
        if not scalar and not isinstance(value, Real):
            raise TypeError(f"{expected}, but got {found(value)}.")
        if not 0 <= value <= 1:
            raise ValueError(f"{expected}, but got {found(value)}.")
        return float(value)

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:
        """Return a question with the rephrasings to sample, as the curriculum chooses.

        Raises:
            TypeError: if the curriculum does not return a `QuestionGroup` with a text as question and a tuple
                of texts as rephrasings.
            ValueError: if the returned id differs from the question's id, or if there are kinds, but not one
                per rephrasing.
        """
        with own_code(self.curriculum, "data.curriculum"):
            asked = self.curriculum.asked(group, record)
        expected = f"Expected {name_of(self.curriculum)} (data.curriculum) to return question {group.id!r}"
        if not isinstance(asked, QuestionGroup):
            raise TypeError(f"{expected} as a QuestionGroup, but got {found(asked)}.")
        texts = asked.rephrasings
        if not isinstance(asked.question, str):
            raise TypeError(f"{expected} with a text as question, but got {found(asked.question)}.")
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{expected} with a tuple of texts as rephrasings, but got {found(texts)}.")
        if asked.id != group.id:
            raise ValueError(f"{expected} with its id, but got {found(asked.id)}.")
        if asked.kinds and len(asked.kinds) != len(texts):
            raise ValueError(
                f"{expected} with kinds for {len(texts)} rephrasings or none, but got {found(asked.kinds)}."
            )
        return asked

    def observe(self, visits: Sequence[Visit]) -> None:
        """Pass the visits of a sampled batch to the curriculum."""
        with own_code(self.curriculum, "data.curriculum"):
            self.curriculum.observe(visits)


def _seen(
    groups: Sequence[QuestionGroup], rollouts: Rollouts
) -> list[tuple[str, Visit, Counter[str | None]]]:
    """Return the questions of this rank with new responses, each with the responses' verdicts and answers."""
    width = 1 + max(rollouts.rephrasing.tolist(), default=0)
    samples = [[0] * width for _ in groups]
    correct = [[0] * width for _ in groups]
    answers: list[Counter[str | None]] = [Counter() for _ in groups]
    columns = (rollouts.question, rollouts.rephrasing, rollouts.correct, rollouts.replayed)
    for q, n, right, replayed, answer in zip(*(c.tolist() for c in columns), rollouts.answers, strict=True):
        if not replayed:
            samples[q][n] += 1
            correct[q][n] += right
            answers[q][_kept(answer)] += 1
    each = zip(groups, samples, correct, answers, strict=True)
    return [(group.id, Visit(tuple(n), tuple(c)), given) for group, n, c, given in each if sum(n)]


def _kept(answer: str | None) -> str | None:
    if answer is None or len(answer) <= LONGEST_ANSWER:
        return answer
    return hashlib.sha256(answer.encode()).hexdigest()
