"""The comparison: each method in each trainer against ours, by default, and with the trainer's conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omegaconf import DictConfig

from .adapters import Answer
from .batch import Batch
from .methods import DIFFERENT, Convention, composed, conventions_between, switched
from .models import Models
from .ours import run_ours
from .outcome import Difference, Outcome, difference, gradient_share
from .reference import Finding, Formula, Reference, explain

METRICS: dict[str, dict[str, str]] = {
    "trl": {
        "entropy": "train/entropy",
        "kl": "train/kl",
        "clip_ratio/low_mean": "train/clip_low",
        "clip_ratio/high_mean": "train/clip_high",
        "grad_norm": "train/grad_norm",
        "loss": "train/loss",
    },
    "verl": {
        "actor/pg_clipfrac": "train/clipped",
        "actor/pg_clipfrac_lower": "train/clip_dual",
        "actor/kl_loss": "train/kl",
        "actor/entropy": "train/entropy",
        "actor/pg_loss": "train/loss",
    },
}
"""Trainer → its metrics that we have too, and our names."""


@dataclass(frozen=True)
class Worth:
    """What a convention changes on this batch, all else as ours."""

    convention: Convention
    gradient: float | None
    """Change of the gradient, as a share of its norm; None if the convention can't be switched alone."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One method in one trainer and in ours."""

    trainer: str
    method: str
    reason: str = ""
    """Why the trainer has no outcome; empty if it has one."""
    default: Difference | None = None
    """Difference of our defaults to the trainer."""
    conventional: Difference | None = None
    """Difference of ours with the trainer's conventions to the trainer."""
    worths: Sequence[Worth] = ()
    """The trainer's conventions, one at a time."""
    ours: Sequence[Finding] = ()
    """Where ours leaves the formula that the conventions give."""
    theirs: Sequence[Finding] = ()
    """Where the trainer leaves this formula."""
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The trainer's name of a metric → its value there, and in ours with the conventions."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Settings of the trainer."""

    @property
    def verdict(self) -> str:
        """What a reader has to know, in a few words."""
        if self.default is None or self.conventional is None:
            return self.reason
        if (self.trainer, self.method) in DIFFERENT:
            return f"different: {DIFFERENT[self.trainer, self.method]}"
        if self.default.equal:
            return "equal"
        if self.conventional.equal or self.conventional.rounding:
            changed = [str(worth.convention) for worth in self.worths if worth.gradient != 0.0]
            if self.conventional.equal:
                return f"equal with {' '.join(changed)}"
            settings = f" with {' '.join(changed)}," if changed else ""
            return f"equal{settings} up to the rounding of float32"
        findings = [*self.ours, *self.theirs]
        causes = [cause for finding in findings for cause in finding.causes]
        return f"different: {'; '.join(dict.fromkeys(causes)) or 'no known convention explains it'}"


def compare(
    trainer: str,
    method: str,
    answer: Answer,
    batch: Batch,
    models: Models,
    *,
    conventions: str,
    overrides: Sequence[str] = (),
    micro_batch_rows: Sequence[int] = (),
) -> Comparison:
    """Compare one method of a trainer with ours.

    Args:
        trainer: Name of the trainer.
        method: Name of the experiment.
        answer: The trainer's answer.
        batch: Responses.
        models: Policy and reference.
        conventions: Option of the group `conventions`: the trainer's, or `none` for ours.
        overrides: Further settings of ours.
        micro_batch_rows: Sizes of micro-batches that a faulty loss may have been normalised by.
    """
    if method not in answer.outcomes:
        return Comparison(trainer=trainer, method=method, reason=answer.reasons.get(method, "only here"))
    theirs = answer.outcomes[method]
    default = composed(method, "none", overrides)
    conventional = composed(method, conventions, overrides)
    plain = run_ours(default, batch, models)
    ours = run_ours(conventional, batch, models)
    found = difference(ours, theirs)
    changed = conventions_between(default, conventional)
    findings = (
        _explained(conventional, ours, theirs, batch, models, micro_batch_rows)
        if not (found.equal or found.rounding)
        else ([], [])
    )
    return Comparison(
        trainer=trainer,
        method=method,
        default=difference(plain, theirs),
        conventional=found,
        worths=[_worth(default, plain, each, changed, batch, models) for each in changed],
        ours=findings[0],
        theirs=findings[1],
        metrics=_metrics(METRICS.get(trainer, {}), theirs, ours),
        options=theirs.options,
    )


def _worth(
    default: DictConfig,
    plain: Outcome,
    own: Convention,
    others: Sequence[Convention],
    batch: Batch,
    models: Models,
) -> Worth:
    """Return the worth of a convention: alone, or with those of its part if it contradicts ours alone."""
    part = own.setting.partition(".")[0]
    partners = [other for other in others if other.setting.partition(".")[0] == part]
    for chosen in (
        [own],
        [own, *(each for each in partners if each.setting.endswith((".max_length", ".aggregation")))],
    ):
        try:
            outcome = run_ours(switched(default, chosen), batch, models)
        except ValueError:
            continue
        except Exception as error:  # Hydra wraps what a class refuses
            if not isinstance(error.__cause__, ValueError):
                raise
            continue
        return Worth(own, gradient_share(outcome.gradient, plain.gradient))
    return Worth(own, None)


def _explained(
    cfg: DictConfig,
    ours: Outcome,
    theirs: Outcome,
    batch: Batch,
    models: Models,
    micro_batch_rows: Sequence[int],
) -> tuple[list[Finding], list[Finding]]:
    formula = Formula.of(cfg)
    if formula is None:
        return [], []
    reference = Reference(batch, models, cfg.policy.temperature)
    found = [
        explain(
            reference,
            formula,
            advantages=outcome.advantages,
            token_weights=outcome.token_weights,
            micro_batch_rows=micro_batch_rows,
        )
        for outcome in (ours, theirs)
    ]
    return found[0], found[1]


def _metrics(names: Mapping[str, str], theirs: Outcome, ours: Outcome) -> dict[str, tuple[float, float]]:
    shared = {}
    for name, own in names.items():
        if name in theirs.metrics and own in ours.metrics:
            shared[name] = (theirs.metrics[name], ours.metrics[own])
    return shared
