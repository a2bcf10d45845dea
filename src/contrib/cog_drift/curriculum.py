"""Curriculum that asks each question in its easiest format first and then in harder formats (Cog-DRIFT)."""

from ...datamodules.memory import Curriculum, Record
from ...types import QuestionGroup


class EasiestFirst(Curriculum):
    """Curriculum of one wording at a time: a question's rephrasings in order, then only the original.

    A question moves to its next wording after each visit with a share of correct responses above `threshold`.
    Order rephrasings from easy to hard, such as four choices, ten choices and a gap to fill. The rule follows
    the authors' code (dinobby/Cog-DRIFT, adaptive_sampler.py, with a window of one batch); the paper, arXiv
    2604.04767, was not read.

    Departures: the share is computed from verdicts, without the authors' format reward of 0.2; and only the
    newest 64 visits of each question are remembered, so that a question may return to an easier wording when
    older visits are forgotten.

    Args:
        threshold: Share of correct responses, 0..1; the authors use 0.5.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(
                f"Expected data.curriculum.threshold to lie between 0 and 1, but got {threshold}."
            )
        self.threshold = threshold

    def asked(self, group: QuestionGroup, record: Record) -> QuestionGroup:
        """Return the question with its current wording alone, which depends on the past visits."""
        formats = [*group.rephrasings, group.question]
        level = sum(visit.rate > self.threshold for visit in record.visits)
        return group._replace(question=formats[min(level, len(formats) - 1)], rephrasings=(), kinds=())
