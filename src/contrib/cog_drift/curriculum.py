"""Asks each question in one format: the easiest first, a harder one as soon as it is solved often (Cog-DRIFT)."""

from ...datamodules.memory import Curriculum, Record
from ...types import QuestionGroup


class EasiestFirst(Curriculum):
    """Asks a question in one wording at a time: its rephrasings from the first on, then the original for good.

    It moves on after each visit whose share of correct responses is above `threshold`; order rephrasings from
    easy to hard, such as four choices, ten choices and a gap to fill. Read in the authors' code (dinobby/Cog-DRIFT,
    adaptive_sampler.py, with a window of one batch); the paper, arXiv 2604.04767, is known at second hand.

    Departures: the share is that of verdicts, without the authors' format reward of 0.2; and of each question only the
    newest 64 visits are remembered, so that a hard one may fall back when those that moved it on are forgotten.

    Args:
        threshold: Share of correct responses, 0..1; the authors run 0.5.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"Expected data.curriculum.threshold to lie between 0 and 1, but got {threshold}.")
        self.threshold = threshold

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:
        """Return the question in the wording that its visits have reached, as if it had no other."""
        formats = [*group.rephrasings, group.question]
        level = sum(visit.rate > self.threshold for visit in record.visits)
        return group._replace(question=formats[min(level, len(formats) - 1)], rephrasings=(), kinds=())
