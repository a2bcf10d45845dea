"""Products of two small numbers, in several wordings: a task for small pretrained language models."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from .generated import Asked, Family, ListSource, Split

FAMILIES: Mapping[str, Family] = {
    "times": Family(layout="What is {first} times {others}?"),
    "product": Family(layout="What is the product of {first} and {others}?"),
    "multiply": Family(layout="Multiply {first} by {others}."),
    "calculate": Family(layout="Calculate {first} × {others}."),
    "compute": Family(layout="Compute {first} x {others} and tell me the result."),
    "symbol": Family(layout="{first} * {others} = ?"),
    "groups": Family(layout="How many are {first} groups of {others}?"),
    "boxes": Family(layout="There are {first} boxes with {others} apples each. How many apples are there?"),
    "multiplied": Family(layout="How much is {first} multiplied by {others}?"),
    "rows": Family(layout="One row has {others} chairs. How many chairs do {first} rows have?"),
}
UNSEEN = ("multiplied", "rows")
"""Families that are never trained."""
TRAINED = tuple(name for name in FAMILIES if name not in UNSEEN)
_TRAINED = {"mixed": TRAINED}


class MultiplicationSource(ListSource):
    """Source of questions such as "What is 7 times 12?", each in several wordings.

    With factors up to 15, there are 54 products for training and 36 for tests; a · b and b · a are the same
    problem. Originals and rephrasings use eight wordings. The split `test_phrasing` has the products of
    `test_id` in two other wordings.

    Args:
        split: One of `splits`.
        regime: None, or `mixed`.
        size: Number of distinct questions.
        num_rephrasings: N rephrasings, each in a different family; None is 7.
        seed: Seed for drawing the products of the split.
        largest_factor: Factors are 2 … `largest_factor`, in every split.

    >>> group = MultiplicationSource("train", size=1, num_rephrasings=1).load()[0]
    >>> group.question, group.rephrasings, group.answer
    ('What is 3 times 10?', ('How many are 10 groups of 3?',), ('30',))
    """

    families = FAMILIES
    splits: ClassVar[Mapping[str, Split]] = {
        "train": Split(buckets=range(6), originals=_TRAINED),
        "validation": Split(buckets=range(6, 7), originals=_TRAINED),
        "test_id": Split(buckets=range(7, 10), originals=_TRAINED),
        "test_phrasing": Split(buckets=range(7, 10), originals={"mixed": UNSEEN}),
    }
    rephrasings = _TRAINED

    def __init__(
        self,
        split: str = "train",
        regime: str | None = None,
        size: int = 512,
        num_rephrasings: int | None = 3,
        seed: int = 0,
        largest_factor: int = 15,
    ) -> None:
        super().__init__(split, regime, size, num_rephrasings, seed)
        if largest_factor < 2:
            raise ValueError(f"Expected `largest_factor` to be at least 2 but got {largest_factor}.")
        self.largest_factor = largest_factor

    def sample(self, rng: random.Random) -> Asked:
        """Draw two factors."""
        a, b = sorted(rng.choices(range(2, self.largest_factor + 1), k=2))
        return Asked(f"{a} * {b}", (str(a * b),), {"factors": (a, b)}, ((str(a), str(b)), {}))
