"""Building blocks of the embedded tasks: disjoint splits, regimes of difficulty, families of phrasing."""

from __future__ import annotations

import random
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, NamedTuple

from ...datamodules.sources.base import Source
from ...types import QuestionGroup

NUM_BUCKETS = 10
PATIENCE = 10_000
"""Number of successive draws without a new problem after which a split is regarded as exhausted."""


class Reformulation(NamedTuple):
    """Text added around a question to change its difficulty; the answer does not change."""

    kind: str
    """Kind of change to the question, for `QuestionGroup.kinds`."""
    layout: str
    """Text with {question}, and a result of `GeneratedSource.aids`: {hint}, {choices} or {noise}."""


REFORMULATIONS: Mapping[str, Reformulation] = {
    **{f"format_{n}": Reformulation("format", "{question} Choose: {choices}.") for n in (1, 2, 3)},
    **{f"hint_{n}": Reformulation("hint", "{question} Hint: {hint}.") for n in (1, 2, 3)},
    **{f"harder_{n}": Reformulation("harder", "Of no use here: {noise}. {question}") for n in (1, 2, 3)},
    "template_1": Reformulation("template", "Question: {question} Answer:"),
    "template_2": Reformulation("template", "Solve this task. {question}"),
    "template_3": Reformulation("template", "{question} Give the solution:"),
}
"""Name → reformulation that adds text to a question instead of changing its wording.

The added text is an easier format (a choice of three answers), a hint (a part of the solution), irrelevant
facts, which make the question harder, or a template. Reformulations with equal layouts have different facts.
"""


class Asked(NamedTuple):
    """Content of a question, without its wording."""

    key: str  # equal for questions that ask the same
    answers: tuple[str, ...]
    facts: Mapping[str, Any]  # for `metadata`
    told: Any  # argument of `phrase`; of a `ListSource`, the items of a list, and other words by name


@dataclass(frozen=True, kw_only=True)
class Split:
    """Hash buckets of a split's problems, and families of its original questions."""

    buckets: range
    """Hash buckets of the problems; splits without a common bucket have no problem in common."""
    originals: Mapping[str, Sequence[str]]
    """Regime → families of its original questions."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Family of wordings for a list in any order, and the family's share of the supervised examples."""

    layout: str  # has words by name, and the list as {items}, or as {first} and {others}
    link: str = ", "  # joins the items
    share: float = 0.0  # 0 for a family that is never trained

    def tell(self, asked: Asked, rng: random.Random) -> str:
        """Fill in the layout, with the list in an order that `rng` draws."""
        items, words = asked.told
        items = rng.sample(items, len(items))
        told = {"items": self.link.join(items), "first": items[0], "others": self.link.join(items[1:])}
        return self.layout.format(**told, **words)


def splits_of(unseen: Sequence[str], **originals: Sequence[str]) -> Mapping[str, Split]:
    """Return splits for training, for validation and for three tests.

    The tests have the same kind of questions as training (`test_id`), questions in `unseen` families
    (`test_phrasing`), and larger questions (`test_size`). `originals` maps each regime to the families of its
    original questions.
    """
    hidden = dict.fromkeys(originals, unseen)
    return {
        "train": Split(buckets=range(6), originals=originals),
        "validation": Split(buckets=range(6, 7), originals=originals),
        "test_id": Split(buckets=range(7, 8), originals=originals),
        "test_phrasing": Split(buckets=range(8, 9), originals=hidden),
        "test_size": Split(buckets=range(9, 10), originals=originals),
    }


def bucket(asked: Asked) -> int:
    """Return the bucket of a problem, a hash in 0..9."""
    return zlib.crc32(asked.key.encode()) % NUM_BUCKETS


class GeneratedSource(Source):
    """Base class of sources of generated questions with rephrasings.

    The `metadata` of a question has `split`, `regime`, `family` (of the original), `rephrasing_families`, and
    the facts of the problem. Originals cycle through their families, with equal shares. A source with a
    smaller `size` has the first questions of a source with a larger size. If some rephrasings of a question
    are `REFORMULATIONS`, such as a hint or an easier format, the question lists the `kinds` of its
    rephrasings.

    Args:
        split: One of `splits`.
        regime: One of `rephrasings`; None is the first.
        size: Number of distinct questions; at most `largest_size`.
        num_rephrasings: N rephrasings, each in a different family; None is the largest N that the regime
            allows.
        seed: Seed for drawing the problems of the split.
    """

    splits: ClassVar[Mapping[str, Split]]
    rephrasings: ClassVar[Mapping[str, Sequence[str]]]
    """Regime → families of its rephrasings, and names of `REFORMULATIONS`."""
    largest_size: ClassVar[int] = 5000
    """Largest allowed `size`; the smallest split has about twice as many different problems."""

    def __init__(
        self,
        split: str = "train",
        regime: str | None = None,
        size: int = 512,
        num_rephrasings: int | None = 3,
        seed: int = 0,
    ) -> None:
        regime = regime or next(iter(self.rephrasings))
        for name, value, known in (("split", split, self.splits), ("regime", regime, self.rephrasings)):
            if value not in known:
                raise ValueError(f"Expected `{name}` to be one of {', '.join(known)} but got {value!r}.")
        if size > self.largest_size:
            raise ValueError(f"Expected `size` to be at most {self.largest_size} but got {size}.")
        self.split, self.regime, self.size, self.seed = split, regime, size, seed
        self.originals = self.splits[split].originals[regime]
        fewest = min(len(self._other_families(family)) for family in self.originals)
        self.num_rephrasings = fewest if num_rephrasings is None else num_rephrasings
        if self.num_rephrasings > fewest:
            raise ValueError(
                f"Expected `num_rephrasings` to be at most {fewest}, the number of other families in "
                f"the {regime} regime, but got {num_rephrasings}."
            )

    @abstractmethod
    def sample(self, rng: random.Random) -> Asked:
        """Draw a problem for the split and the regime; `load` skips problems of other splits' buckets."""

    @abstractmethod
    def phrase(self, asked: Asked, family: str, rng: random.Random) -> str:
        """Phrase a problem; `rng` chooses among the alternatives of a family."""

    def aids(self, asked: Asked, rng: random.Random) -> Mapping[str, str]:  # noqa: ARG002
        """Return the fields of `REFORMULATIONS` (`hint`, `choices`, `noise`); empty by default."""
        return {}

    def reformulate(self, asked: Asked, question: str, name: str, rng: random.Random) -> str:
        """Return a rephrasing of `question`: `name` is a family of wordings or one of `REFORMULATIONS`."""
        if name not in REFORMULATIONS:
            return self.phrase(asked, name, rng)
        return REFORMULATIONS[name].layout.format(question=question, **self.aids(asked, rng))

    def load(self) -> list[QuestionGroup]:
        """Generate the questions."""
        problems = self._problems()
        return [self._group(index, next(problems)) for index in range(self.size)]

    def _problems(self) -> Iterator[Asked]:
        """Yield distinct problems of the split.

        Raises:
            ValueError: if the task has no further problem.
        """
        rng, last = random.Random(f"{self.split}/{self.seed}"), 0
        seen: set[str] = set()
        for draw in count():
            if draw - last > PATIENCE:
                raise ValueError(f"Expected `size` to be at most {len(seen)}, the problems of {self.split}.")
            asked = self.sample(rng)
            if bucket(asked) in self.splits[self.split].buckets and asked.key not in seen:
                seen.add(asked.key)
                last = draw
                yield asked

    def _group(self, index: int, asked: Asked) -> QuestionGroup:
        rng = random.Random(f"{self.split}/{self.regime}/{self.seed}/{index}")
        original = self.originals[index % len(self.originals)]
        families = [original, *rng.sample(self._other_families(original), self.num_rephrasings)]
        question = self.phrase(asked, original, rng)
        rephrasings = [self.reformulate(asked, question, family, rng) for family in families[1:]]
        kinds = tuple(
            REFORMULATIONS[name].kind if name in REFORMULATIONS else "wording" for name in families[1:]
        )
        told = {"family": original, "rephrasing_families": tuple(families[1:])}
        return QuestionGroup(
            id=f"{self.split}-{self.regime}-{self.seed}-{index:05d}",
            question=question,
            rephrasings=tuple(rephrasings),
            answer=asked.answers,
            metadata={"split": self.split, "regime": self.regime, **told, **asked.facts},
            kinds=kinds if {*kinds} - {"wording"} else (),
        )

    def _other_families(self, original: str) -> Sequence[str]:
        return [family for family in self.rephrasings[self.regime] if family != original]


def choices(answers: Sequence[str], wrong: Iterator[str], rng: random.Random) -> str:
    """Return one of the correct `answers` and two answers from `wrong`, in random order.

    >>> choices(["up left"], iter(["up up", "up left", "up up", "left up"]), random.Random(0))
    'up up or up left or left up'
    """
    given = [rng.choice(answers)]
    while len(given) < 3:
        candidate = next(wrong)
        if candidate not in answers and candidate not in given:
            given.append(candidate)
    return " or ".join(rng.sample(given, 3))


class ListSource(GeneratedSource):
    """Generated source whose families phrase a list in any order."""

    families: ClassVar[Mapping[str, Family]]

    def phrase(self, asked: Asked, family: str, rng: random.Random) -> str:
        """Phrase a problem in a family."""
        return self.families[family].tell(asked, rng)
