"""Products of two small numbers, asked in several wordings: a task for small pretrained language models."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .generated import Family, GeneratedSource, Split

FAMILIES: Mapping[str, Family] = {
    "times": Family(layout="What is {a} times {b}?"),
    "product": Family(layout="What is the product of {a} and {b}?"),
    "multiply": Family(layout="Multiply {a} by {b}."),
    "calculate": Family(layout="Calculate {a} × {b}."),
    "compute": Family(layout="Compute {a} x {b} and tell me the result."),
    "symbol": Family(layout="{a} * {b} = ?"),
    "groups": Family(layout="How many are {a} groups of {b}?"),
    "boxes": Family(layout="There are {a} boxes with {b} apples each. How many apples are there?"),
    "multiplied": Family(layout="How much is {a} multiplied by {b}?"),
    "rows": Family(layout="One row has {b} chairs. How many chairs do {a} rows have?"),
}
UNSEEN = ("multiplied", "rows")
"""Families that are not trained."""
TRAINED = tuple(name for name in FAMILIES if name not in UNSEEN)
_TRAINED = {"mixed": TRAINED}


@dataclass(frozen=True)
class Product:
    """The smaller of two factors, then the larger: a question and its mirror image fall into one split.

    >>> Product(3, 14).answers, Product(3, 14).key
    (('42',), '3 * 14')
    """

    smaller: int
    larger: int

    @property
    def key(self) -> str:
        """The product, unevaluated."""
        return f"{self.smaller} * {self.larger}"

    @property
    def answers(self) -> tuple[str, ...]:
        """The product as text."""
        return (str(self.smaller * self.larger),)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The factors."""
        return {"factors": (self.smaller, self.larger)}


class MultiplicationSource(GeneratedSource[Product]):
    """Questions such as "What is 7 times 12?", each asked in several wordings.

    Factors lie in 2..15; there are 54 products to train on and 36 to test. Originals and
    rephrasings are asked in eight wordings; the split `test_phrasing` asks for the products of `test_id` in two others.

    >>> group = MultiplicationSource("train", size=1, num_rephrasings=1).load()[0]
    >>> group.question, group.rephrasings, group.answer
    ('What is 3 times 10?', ('How many are 10 groups of 3?',), ('30',))
    """

    splits: ClassVar[Mapping[str, Split]] = {
        "train": Split(buckets=range(6), originals=_TRAINED),
        "validation": Split(buckets=range(6, 7), originals=_TRAINED),
        "test_id": Split(buckets=range(7, 10), originals=_TRAINED),
        "test_phrasing": Split(buckets=range(7, 10), originals={"mixed": UNSEEN}),
    }
    rephrasings: ClassVar[Mapping[str, Sequence[str]]] = _TRAINED

    def sample(self, rng: random.Random) -> Product:
        """Draw two factors."""
        return Product(*sorted(rng.choices(range(2, 16), k=2)))

    def phrase(self, problem: Product, family: str, rng: random.Random) -> str:
        """Ask for a product; `rng` picks which factor comes first."""
        a, b = rng.sample([problem.smaller, problem.larger], 2)
        return FAMILIES[family].tell(a=str(a), b=str(b))
