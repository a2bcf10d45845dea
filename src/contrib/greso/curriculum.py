"""Curriculum that often skips questions whose latest visits had no gradient (GRESO)."""

from collections.abc import Sequence
from typing import Any

from ...datamodules.memory import Curriculum, Record, Visit


class SkipUniform(Curriculum):
    """Curriculum that skips questions with some probability if they had no gradient before.

    This is GRESO (arXiv 2506.02177). A question is easy if all responses of its last z visits were correct,
    and hard if all were wrong. It is then served with probability max(p^z, 0.01), where p begins at `easy` or
    at `hard`. A question whose last visit had both correct and wrong responses is always served. Both p adapt
    after each sampled batch: p falls by `step` if the share of easy (or hard) visits in the batch reaches its
    target, and otherwise rises by `step`. It stays between `least` and `most`.

    The rule follows the authors' code (Infini-AI-Lab/GRESO, presampling_selector.py and ray_trainer.py). As
    in this code, the target for easy questions is a third of the targeted share of questions without
    gradient, and the target for hard questions two thirds. The authors' code calls a question easy if at
    least 98 % of its responses are right, and hard if at most 11 % are right: the same rule for eight
    responses. Departures: p adapts from the start, not from the second epoch; with dynamic sampling, p adapts
    after each drawn batch, and the size of the draws does not adapt.

    Args:
        easy: p of easy questions at the start.
        hard: p of hard questions at the start.
        target: Targeted share of visits without gradient, of easy and hard questions together.
        step: How much p changes after a batch.
        least: Smallest p.
        most: Largest p.
    """

    def __init__(
        self,
        easy: float = 0.5,
        hard: float = 0.5,
        target: float = 0.25,
        step: float = 0.01,
        least: float = 0.05,
        most: float = 0.95,
    ) -> None:
        if (
            not 0 < least <= min(easy, hard)
            or not max(easy, hard) <= most <= 1
            or not 0 <= target <= 1
            or step < 0
        ):
            raise ValueError(
                "Expected 0 < least ≤ easy, hard ≤ most ≤ 1, 0 ≤ target ≤ 1 and step ≥ 0 in "
                f"data.curriculum, but got easy={easy}, hard={hard}, target={target}, step={step}, "
                f"least={least} and most={most}."
            )
        self.chances = {1.0: easy, 0.0: hard}
        self.targets = {1.0: target / 3, 0.0: 2 * target / 3}
        self.step, self.least, self.most = step, least, most

    def chance(self, record: Record) -> float:
        """Return p^z, at least 0.01, for z visits without gradient since the last visit with a gradient."""
        latest = record.visits[-1].rate if record.visits else None
        if latest not in self.chances:
            return 1.0
        count = next(
            (n for n, visit in enumerate(reversed(record.visits)) if visit.rate != latest), len(record.visits)
        )
        return max(self.chances[latest] ** count, 0.01)

    def observe(self, visits: Sequence[Visit]) -> None:
        """Adapt p of easy and of hard questions to their shares of the visits; do nothing without visits."""
        if not visits:
            return
        for rate, target in self.targets.items():
            share = sum(visit.rate == rate for visit in visits) / len(visits)
            changed = self.chances[rate] + (-self.step if share >= target else self.step)
            self.chances[rate] = min(max(changed, self.least), self.most)

    def state_dict(self) -> dict[str, Any]:
        """Return p of easy and p of hard questions."""
        return {"chances": dict(self.chances)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore p of easy and p of hard questions."""
        self.chances = dict(state["chances"])
