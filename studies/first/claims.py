"""The plan: the papers' claims as paired differences, written down before the runs, and the verdict on each.

A claim reproduces in a regime when every one of its differences has the claimed sign beyond noise; p-values are
corrected (Holm) over all differences of the study. It does not reproduce when one of them has the other sign beyond
noise, or when its whole 95 % interval lies below the smallest effect that would count as one. Anything else is
undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from tagrpo.analysis.statistics import LEVEL, Difference, difference, holm

from .regimes import Regime

Pairs = Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]
Verdict = Literal["reproduces", "does not reproduce", "undecided", "not run"]


@dataclass(frozen=True)
class Claim:
    """One sentence that a study can contradict."""

    statement: str
    source: str
    pairs: Callable[[Regime], Pairs]
    """Label, ours, theirs: tables [seeds, questions or iterations]; `sign` is the claimed sign of ours − theirs."""
    smallest: float
    """The smallest difference that counts as an effect."""
    sign: int = 1
    in_points: bool = True
    """Whether differences are shown in percentage points."""


@dataclass(frozen=True)
class Finding:
    """One difference of one claim in one regime."""

    regime: str
    label: str
    difference: Difference
    p_value: float
    """After Holm's correction over the whole study."""
    verdict: Verdict


def _pass(k: int, *pairs: tuple[str, str]) -> Callable[[Regime], Pairs]:
    def tables(regime: Regime) -> Pairs:
        for ours, theirs in pairs:
            yield f"pass@{k}, {ours} − {theirs}", regime.pass_at_k(ours, k), regime.pass_at_k(theirs, k)

    return tables


def _series(name: str, *pairs: tuple[str, str], part: str = "all", factor: float = 1.0) -> Callable[[Regime], Pairs]:
    def tables(regime: Regime) -> Pairs:
        for ours, theirs in pairs:
            yield (
                f"{ours} − {theirs}",
                regime.series(ours, name, part) * factor,
                regime.series(theirs, name, part) * factor,
            )

    return tables


def _difficulty(regime: Regime) -> Pairs:
    variance = regime.series("ta_grpo", "rephrasing/difficulty_variance")
    yield "variance of the success rate between the prompts of a question, ta_grpo", variance, variance * 0


def _diversity(part: str) -> Callable[[Regime], Pairs]:
    def tables(regime: Regime) -> Pairs:
        rephrasings, original = (
            regime.series("ta_grpo", f"diversity/{pool}", part) for pool in ("rephrasings", "original")
        )
        yield "embedding distance, rephrasings − original, ta_grpo", rephrasings, original

    return tables


def _entropy(regime: Regime) -> Pairs:
    for method in ("grpo", "grpo_matched"):
        end, start = (regime.series(method, "rollout/entropy", part) for part in ("last", "first"))
        yield f"entropy per token, last − first quarter, {method}", end, start


CLAIMS: Sequence[Claim] = (
    Claim(
        "TA-GRPO leaves fewer questions without gradient than GRPO, with as many samples too.",
        "TA-GRPO, §5.2 and Fig. 3",
        _series("zero_gradient/percentage", ("ta_grpo", "grpo"), ("ta_grpo", "grpo_matched"), factor=0.01),
        smallest=0.02,
        sign=-1,
    ),
    Claim(
        "Rephrasings of a question differ in difficulty.",
        "TA-GRPO, §5.2",
        _difficulty,
        smallest=0.0025,
        in_points=False,
    ),
    Claim(
        "At the start of training, responses to rephrasings are more diverse than responses to the original.",
        "TA-GRPO, Fig. 4",
        _diversity("first"),
        smallest=0.005,
        in_points=False,
    ),
    Claim("… and at its end.", "TA-GRPO, Fig. 4", _diversity("last"), smallest=0.005, in_points=False),
    Claim(
        "TA-GRPO raises pass@32 over GRPO, with as many samples too.",
        "TA-GRPO, Table 1",
        _pass(32, ("ta_grpo", "grpo"), ("ta_grpo", "grpo_matched")),
        smallest=0.02,
    ),
    Claim(
        "Joint normalisation contributes: TA-GRPO has a higher pass@32 than TA-GRPO*.",
        "TA-GRPO, Appendix C",
        _pass(32, ("ta_grpo", "ta_grpo_star")),
        smallest=0.02,
    ),
    Claim(
        "Anchoring contributes: TA-GRPO has a higher pass@32 than its first version.",
        "TA-GRPO, §4",
        _pass(32, ("ta_grpo", "ta_grpo_v1")),
        smallest=0.02,
    ),
    Claim(
        "Pass@k training raises pass@32 over GRPO with as many samples.",
        "Pass@k training, §2",
        _pass(32, ("pass_at_k", "grpo_matched")),
        smallest=0.02,
    ),
    Claim(
        "Pass@k training followed by Pass@1 training raises pass@1 over GRPO with as many samples.",
        "Pass@k training, §3.5",
        _pass(1, ("pass_at_k_then_1", "grpo_matched")),
        smallest=0.02,
    ),
    Claim(
        "Pass@k training moves effort to hard questions: a larger share of Σ|A| falls on those with fewer than half of "
        "their responses correct.",
        "Pass@k training, §4.1",
        _series("hard_share", ("pass_at_k", "grpo_matched")),
        smallest=0.02,
    ),
    Claim(
        "Entropy collapses under GRPO.", "Pass@k training, Fig. 7b", _entropy, smallest=0.01, sign=-1, in_points=False
    ),
    Claim(
        "Pass@k training ends with more entropy than GRPO.",
        "Pass@k training, Fig. 7b",
        _series("rollout/entropy", ("pass_at_k", "grpo_matched"), part="last"),
        smallest=0.01,
        in_points=False,
    ),
)
"""In the order of the page."""

STEPS: Sequence[tuple[str, str, str]] = (
    ("more samples", "grpo_matched", "grpo"),
    ("exposure to rephrasings", "exposure", "grpo_matched"),
    ("pooling them", "ta_grpo_v1", "exposure"),
    ("anchoring them", "ta_grpo", "ta_grpo_v1"),
    ("correcting the anchored ones", "ta_grpo_corrected", "ta_grpo"),
    ("Pass@k over the pool", "pass_at_k_pooled", "pass_at_k"),
)
"""What is added, ours, theirs: from GRPO to TA-GRPO one choice at a time; then two questions that no paper answers."""


def findings_of(regimes: Mapping[str, Regime], claims: Sequence[Claim] = CLAIMS) -> list[list[Finding]]:
    """The findings on each claim, regime by regime, with p-values corrected over all of them.

    A claim has none in a regime where one of its methods has not run.
    """
    raw = [
        (position, regime, label, difference(ours, theirs))
        for position, claim in enumerate(claims)
        for regime, runs in regimes.items()
        for label, ours, theirs in _pairs(claim, runs)
    ]
    findings: list[list[Finding]] = [[] for _ in claims]
    corrected = holm([found.p_value for *_, found in raw])
    for (position, regime, label, found), p_value in zip(raw, corrected, strict=True):
        verdict = verdict_on(found, p_value, claims[position])
        findings[position].append(Finding(regime, label, found, p_value, verdict))
    return findings


def _pairs(claim: Claim, regime: Regime) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    try:
        return list(claim.pairs(regime))
    except KeyError:  # from Regime.of: a method has not run
        return []


def verdict_on(found: Difference, p_value: float, claim: Claim) -> Verdict:
    """What one difference says of its claim.

    >>> from tagrpo.analysis.statistics import Estimate
    >>> claim = Claim("", "", lambda regime: iter(()), smallest=0.02)
    >>> verdict_on(Difference(Estimate(0.05, 0.03, 0.07), 0.001, (0,)), 0.01, claim)
    'reproduces'
    >>> verdict_on(Difference(Estimate(0.0, -0.01, 0.01), 1.0, (0,)), 1.0, claim)  # an effect of 2 points is excluded
    'does not reproduce'
    >>> verdict_on(Difference(Estimate(0.02, -0.02, 0.06), 0.3, (0,)), 0.9, claim)
    'undecided'
    """
    sign = claim.sign
    largest = sign * (found.estimate.high if sign > 0 else found.estimate.low)
    if p_value < LEVEL and sign * found.estimate.value > 0 and largest >= claim.smallest:
        return "reproduces"
    if largest < claim.smallest or (p_value < LEVEL and sign * found.estimate.value < 0):
        return "does not reproduce"
    return "undecided"


def together(findings: Sequence[Finding]) -> Verdict:
    """The verdict on a claim in one regime, from those on its differences.

    >>> from unittest.mock import Mock
    >>> together([Mock(verdict="reproduces"), Mock(verdict="undecided")])
    'undecided'
    >>> together([])
    'not run'
    """
    if not findings:
        return "not run"
    verdicts: set[Any] = {finding.verdict for finding in findings}
    if "does not reproduce" in verdicts:
        return "does not reproduce"
    return "undecided" if "undecided" in verdicts else "reproduces"
