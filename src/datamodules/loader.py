"""Loader of question groups that resumes with the next batch, even in the middle of an epoch."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..seeds import derive_seed
from ..types import QuestionBatch, QuestionGroup


def batch_size_advice(questions: int, world_size: int = 1, mini_batches: int = 1) -> str:
    """Return advice on the largest `data.batch_size` for a number of training questions.

    Args:
        questions: Number of training questions.
        world_size: Number of ranks, which share a batch evenly.
        mini_batches: Number of optimizer steps per batch, each from at least one question.

    >>> batch_size_advice(12), batch_size_advice(13, world_size=2)
    ('Set data.batch_size=12, or use more questions.', 'Set data.batch_size=12, or use more questions.')
    >>> batch_size_advice(1, mini_batches=2)
    'Set data.batch_size=1 policy.mini_batches=1, or use more questions.'
    """
    largest = questions // world_size * world_size
    if largest == 0:
        return f"Use at least {world_size} questions, one for each rank."
    fewer = f" policy.mini_batches={largest}" if largest < mini_batches else ""
    return f"Set data.batch_size={largest}{fewer}, or use more questions."


@dataclass(eq=False, repr=False)
class QuestionLoader:
    """Loader of batches of question groups, sharded over ranks and shuffled by (seed, epoch).

    Every rank follows the same order and takes its slice of each global batch.

    In training, `iter` continues after the last batch that was taken, or, after a resume, after the batch
    at which `state_dict` was called. In evaluation (neither `shuffle` nor `drop_last`), `iter` restarts at
    the first batch of the first epoch, unless the run is resumed in the middle of an evaluation.
    """

    groups: Sequence[QuestionGroup]
    # from groups and the number of the epoch
    make_batch: Callable[[Sequence[QuestionGroup], int], QuestionBatch]
    batch_size: int  # questions over all ranks
    _: KW_ONLY
    shuffle: bool  # whether each epoch has a different order
    drop_last: bool  # whether to leave out the incomplete batch at the end of an epoch
    seed: int = 0  # of the order, and of the chances of `serve_by`
    rank: int = 0
    world_size: int = 1
    epoch: int = field(default=0, init=False)
    cursor: int = field(default=0, init=False)
    served: int = field(default=0, init=False)
    _resumed: bool = field(default=False, init=False)
    _chances: list[Callable[[str], float]] = field(default_factory=list, init=False)
    _ordered: tuple[int, list[int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.drop_last and self.batch_size % self.world_size:
            raise ValueError(
                f"Expected data.batch_size to be a multiple of the {self.world_size} ranks, but got {self.batch_size}."
            )
        if self.drop_last and len(self.groups) < self.batch_size:
            raise ValueError(
                f"Expected at least data.batch_size={self.batch_size} training questions, but the source has "
                f"{len(self.groups)}. {batch_size_advice(len(self.groups), self.world_size)}"
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self.groups), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[QuestionBatch]:
        """Yield the rest of the current epoch, or a new epoch if the current one is used up.

        Yields nothing if `draw` used up the epoch before the run was resumed; the trainer then ends the
        epoch.
        """
        resumed = self._resumed and self.served < len(self)
        self._resumed = False
        if not resumed:
            self.served = 0
            if not (self.shuffle or self.drop_last):
                self.epoch = self.cursor = 0
            self._begin_epoch_if_used_up()
        while not self._used_up():
            self.served += 1
            yield self._next()

    def draw(self) -> QuestionBatch:
        """Return one more batch, for dynamic sampling; start the next epoch if the current one is used up."""
        self._begin_epoch_if_used_up()
        return self._next()

    def peek(self, count: int) -> list[QuestionBatch]:
        """Return the next `count` batches without taking them.

        Batches come from the next epoch if the current one is used up.
        """
        before = self.epoch, self.cursor
        try:
            return [self.draw() for _ in range(count)]
        finally:
            self.epoch, self.cursor = before

    def serve_by(self, chance: Callable[[str], float]) -> None:
        """Serve each question with probability `chance(id)`, from 0 to 1.

        The remaining questions are skipped, so that an epoch gets shorter. If fewer questions than a batch
        has would be served, all questions are served. The choice depends on seed, epoch and chance alone.

        `chance` may change over time, but must be equal on all ranks. Each further call adds a chance; a
        question is then served if it passes all of them.
        """
        self._chances.append(chance)

    def _places(self) -> list[int]:
        """Return the positions of the questions still to be served, in the order of the epoch."""
        if self._chances:
            draws = torch.rand(len(self.groups), generator=self._generator("chance")).tolist()
            ids = [group.id for group in self.groups]
            rows = set()
            for row, id in enumerate(ids):
                if all(draws[row] < chance(id) for chance in self._chances):
                    rows.add(row)
            if len(rows) >= self.batch_size:
                order = self._order()
                return [place for place in range(self.cursor, len(order)) if order[place] in rows]
        return list(range(self.cursor, min(len(self) * self.batch_size, len(self.groups))))

    def _used_up(self) -> bool:
        return len(self._places()) < (self.batch_size if self.drop_last else 1)

    def _begin_epoch_if_used_up(self) -> None:
        if self._used_up():
            self.epoch += 1
            self.cursor = 0

    def _next(self) -> QuestionBatch:
        places = self._places()[: self.batch_size]
        order = self._order()
        self.cursor = places[-1] + 1
        mine = places[
            self.rank * len(places) // self.world_size : (self.rank + 1) * len(places) // self.world_size
        ]
        return self.make_batch([self.groups[order[place]] for place in mine], self.epoch)

    def _order(self) -> list[int]:
        """Return the rows of `groups` in the order of the current epoch."""
        if self._ordered is None or self._ordered[0] != self.epoch:
            rows = torch.arange(len(self.groups))
            order = torch.randperm(len(rows), generator=self._generator("order")) if self.shuffle else rows
            self._ordered = self.epoch, order.tolist()
        return self._ordered[1]

    def _generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, purpose, self.epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resume.

        The state is the epoch, the position in the epoch, the number of batches served since `iter`, and a
        digest of the questions and the seed.
        """
        place = {"epoch": self.epoch, "cursor": self.cursor, "served": self.served}
        return {**place, "questions": len(self.groups), "digest": self._digest, "seed": self.seed}

    @cached_property
    def _digest(self) -> str:
        """Digest of ids, texts, rephrasings and answers, in order."""
        return hashlib.sha256(repr([tuple(group[:4]) for group in self.groups]).encode()).hexdigest()[:16]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batch at which `state_dict` was called, with the same questions and seed."""
        then = state["questions"], state["digest"], state["seed"]
        now = (len(self.groups), self._digest, self.seed)
        if then != now:
            raise ValueError(
                "Expected to resume on {} questions with digest {} and seed {}, but the data has {} with "
                "digest {} and seed {}. Resume with data.train and seed as they were.".format(*then, *now)
            )
        self.epoch = state["epoch"]
        self.cursor = state["cursor"]
        self.served = state["served"]
        self._resumed = True
