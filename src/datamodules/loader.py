"""A loader over question groups that resumes at the next group, in the middle of an epoch too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..types import QuestionBatch, QuestionGroup


class QuestionLoader:
    """Batches of question groups, sharded over ranks, shuffled by (seed, epoch).

    Every rank walks the same order and takes its slice of each global batch; a question and its rephrasings stay
    in one slice. The cursor is the state: `state_dict` right after a batch resumes with the next one, and each
    call of `iter` without a loaded state starts where the last epoch ended. What is left of an epoch below a whole
    batch is dropped when `drop_last`, so that every update sees a batch of full size.

    Args:
        groups: Questions.
        make_batch: Turns groups and the number of the epoch into a batch.
        batch_size: Questions per batch over all ranks.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Leave the incomplete batch at the end of an epoch out.
        seed: Of the order.
        rank: This process.
        world_size: Number of processes.

    Raises:
        ValueError: batches can't be shared out evenly in training, or there are too few questions for one.
    """

    def __init__(
        self,
        groups: Sequence[QuestionGroup],
        make_batch: Callable[[Sequence[QuestionGroup], int], QuestionBatch],
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if drop_last and batch_size % world_size:
            raise ValueError(
                f"Expected data.batch_size to be a multiple of the {world_size} ranks, but got {batch_size}."
            )
        if drop_last and len(groups) < batch_size:
            raise ValueError(
                f"Expected at least data.batch_size={batch_size} training questions, but the source has {len(groups)}. "
                "Lower data.batch_size or use a larger source."
            )
        self.groups = groups
        self.make_batch = make_batch
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.cursor = 0
        self.served = 0
        self._resumed = False

    def __len__(self) -> int:
        """Batches of an epoch."""
        whole = len(self.groups) // self.batch_size
        return whole if self.drop_last else -(-len(self.groups) // self.batch_size)

    def __iter__(self) -> Iterator[QuestionBatch]:
        """The rest of the current epoch, or a new epoch when it is used up.

        Draws may use an epoch up before the trainer has counted its batches. Right after a resume at that point there
        is nothing, so that the trainer ends its epoch, as it would have.
        """
        resumed, self._resumed = self._resumed and self.served < len(self), False
        if not resumed:
            self.served = 0
            self._begin_epoch_if_used_up()
        while self.cursor < self._end:
            self.served += 1
            yield self._next()

    def draw(self) -> QuestionBatch:
        """One more batch, out of turn, from the next epoch when this one is used up (dynamic sampling)."""
        self._begin_epoch_if_used_up()
        return self._next()

    def peek(self) -> QuestionBatch:
        """The batch that comes next, of the next epoch when this one is used up; it is not taken by that."""
        place = self.epoch, self.cursor
        try:
            return self.draw()
        finally:
            self.epoch, self.cursor = place

    @property
    def _end(self) -> int:
        return min(len(self) * self.batch_size, len(self.groups))

    def _begin_epoch_if_used_up(self) -> None:
        if self.cursor >= self._end:
            self.epoch, self.cursor = self.epoch + 1, 0

    def _next(self) -> QuestionBatch:
        rows = self._order()[self.cursor : self.cursor + self.batch_size]
        self.cursor += self.batch_size
        mine = rows[self.rank * len(rows) // self.world_size : (self.rank + 1) * len(rows) // self.world_size]
        return self.make_batch([self.groups[row] for row in mine], self.epoch)

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.groups)))
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**63)
        return torch.randperm(len(self.groups), generator=generator).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Epoch, cursor, batches served since `iter`, and what they refer to."""
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "served": self.served,
            "questions": len(self.groups),
            "seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batch at which `state_dict` was called.

        Raises:
            ValueError: the state belongs to other questions or another order.
        """
        if (state["questions"], state["seed"]) != (len(self.groups), self.seed):
            raise ValueError(
                f"Expected to resume on {state['questions']} questions with seed {state['seed']}, but the data has "
                f"{len(self.groups)} and seed {self.seed}. Resume with the data configuration of the checkpoint."
            )
        self.epoch, self.cursor, self.served = state["epoch"], state["cursor"], state["served"]
        self._resumed = True
