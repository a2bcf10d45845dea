"""From paired differences to verdicts that can go either way, and what the whole procedure gets wrong.

A claim says that an effect e has a sign, and names the smallest effect that would count as one, δ. In every setting (a
task in one of its regimes), and over all settings,

- it **reproduces** when e ≤ 0 is rejected and e ≥ δ is not,
- it is **refuted** when e ≥ δ is rejected: whatever effect there is, it is smaller than the smallest,
- else it is **undecided**.

A claim that something adds *little* reproduces when e ≥ δ is rejected, and is refuted when e ≤ δ is. All tests are
one-sided t-tests. Both kinds are corrected together (Holm): those of single settings share one half of the 5 %, those
over all settings the other half. So the probability of any false verdict in the whole study is at most 5 %, whatever is
true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from tagrpo.analysis.statistics import Difference, difference, difference_of, holm

ALPHA = 0.05
"""Probability of any false verdict in the study."""
FAMILIES = 2
"""Single settings, and all of them together."""
OVERALL = "all"
Verdict = Literal["reproduces", "refuted", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What is claimed of a difference: ours − theirs."""

    smallest: float
    """δ > 0, the smallest effect that counts as one."""
    sign: int = 1
    """Of the claimed difference."""
    little: bool = False
    """Whether the claim is that the effect is smaller than δ."""

    def p_values(self, found: Difference) -> tuple[float, float]:
        """Of what rejects the claim's denial, and of what rejects the claim: not corrected."""
        if self.sign > 0:
            above, below = found.p_at_most, found.p_at_least
        else:
            above, below = (lambda x: found.p_at_least(-x)), (lambda x: found.p_at_most(-x))
        if self.little:
            return below(self.smallest), above(self.smallest)
        return above(0.0), below(self.smallest)


@dataclass(frozen=True)
class Finding:
    """One difference in one setting, or over all of them, and the verdict on it."""

    setting: str
    label: str
    difference: Difference
    p_reproduces: float
    """Corrected; below `ALPHA` the claim's denial is rejected."""
    p_refuted: float
    """Corrected; below `ALPHA` the claim is rejected."""

    @property
    def verdict(self) -> Verdict:
        """By the rules of this module."""
        if self.p_refuted < ALPHA:
            return "refuted"
        return "reproduces" if self.p_reproduces < ALPHA else "undecided"


Tables = Mapping[str, Mapping[str, pd.DataFrame]]
"""label → setting → [seeds, questions] of ours − theirs. Settings are called `<task>/<regime>`."""


def findings_of(claims: Sequence[tuple[Hypothesis, Tables]]) -> list[list[Finding]]:
    """The findings on each claim, setting by setting, then over all settings; corrected over all claims."""
    raw = [
        (position, setting, label, found)
        for position, (_, tables) in enumerate(claims)
        for label, by_setting in tables.items()
        for setting, found in _differences(by_setting)
    ]
    p_values = [claims[position][0].p_values(found) for position, *_, found in raw]
    findings: list[list[Finding]] = [[] for _ in claims]
    corrected = np.ones((len(raw), 2))
    for family in (True, False):
        rows = [i for i, (_, setting, *_) in enumerate(raw) if (setting == OVERALL) is family]
        flat = holm([p for i in rows for p in p_values[i]])
        corrected[rows] = np.minimum(1.0, FAMILIES * np.reshape(flat, (-1, 2)))
    for (position, setting, label, found), (reproduces, refuted) in zip(raw, corrected.tolist(), strict=True):
        findings[position].append(Finding(setting, label, found, reproduces, refuted))
    return findings


def _differences(by_setting: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, Difference]]:
    for setting, table in by_setting.items():
        yield setting, difference(table, table * 0)
    if by_setting:
        yield OVERALL, over_all(by_setting)


def over_all(by_setting: Mapping[str, pd.DataFrame]) -> Difference:
    """Mean over the tasks. The regimes of a task are averaged seed by seed, since they share its starters.

    The error is that of a mean of independent tasks; degrees of freedom follow Welch and Satterthwaite.
    """
    tasks: dict[str, list[pd.DataFrame]] = {}
    for setting, table in by_setting.items():
        tasks.setdefault(setting.partition("/")[0], []).append(table)
    found = []
    for tables in tasks.values():
        joined = pd.concat(_of_equal_weight(tables), axis=1, join="inner", ignore_index=True)
        found.append(difference(joined, joined * 0))
    errors = np.array([each.error for each in found]) / len(found)
    total = float((errors**2).sum())
    freedom = (
        total**2 / float(sum(e**4 / each.freedom for e, each in zip(errors, found, strict=True))) if total else 1.0
    )
    seeds = sorted(set.intersection(*(set(each.seeds) for each in found)))
    mean = float(np.mean([each.estimate.value for each in found]))
    return difference_of(mean, total**0.5, freedom, tuple(seeds))


def _of_equal_weight(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Tables whose questions weigh so that the mean over all columns is the mean of the tables' means."""
    width = sum(table.shape[1] for table in tables) / len(tables)
    return [table * (width / table.shape[1]) for table in tables]


def together(findings: Sequence[Finding]) -> Verdict:
    """The verdict on a claim of several differences: it reproduces when all do, and is refuted when one is."""
    verdicts = {finding.verdict for finding in findings}
    if "refuted" in verdicts:
        return "refuted"
    return "reproduces" if verdicts == {"reproduces"} else "undecided"


def simulated(
    claims: Sequence[tuple[Hypothesis, Tables]], effect: float, seeds: Sequence[int], rng: np.random.Generator
) -> list[tuple[Hypothesis, Tables]]:
    """The claims on tables as they could have come out, had every effect been `effect` times its smallest.

    Effects of seeds, of questions and what is left are drawn with replacement from those of the given tables,
    independently in each of them.

    Args:
        claims: With the tables of a pilot, or of the study.
        effect: 0 is no effect, 1 the smallest.
        seeds: How many the drawn tables of each claim have.
        rng: Draws.
    """
    return [
        (
            claim,
            {
                label: {
                    setting: _drawn(table.to_numpy(), claim.sign * effect * claim.smallest, drawn, rng)
                    for setting, table in by_setting.items()
                }
                for label, by_setting in tables.items()
            },
        )
        for (claim, tables), drawn in zip(claims, seeds, strict=True)
    ]


def _drawn(table: np.ndarray, mean: float, seeds: int, rng: np.random.Generator) -> pd.DataFrame:
    """[seeds, questions] with the noise of `table` and this expectation."""
    centred = table - table.mean()
    rows, columns = centred.mean(1), centred.mean(0)
    rest = centred - rows[:, None] - columns
    shape = (seeds, table.shape[1])
    # Means of few values vary less than what they are means of.
    rows = rows * np.sqrt(len(rows) / max(len(rows) - 1, 1))
    drawn = rng.choice(rows, seeds)[:, None] + rng.choice(columns, shape[1]) + rng.choice(rest.ravel(), shape)
    return pd.DataFrame(mean + drawn)


def error_rates(
    claims: Sequence[tuple[Hypothesis, Tables]], seeds: Sequence[int], rounds: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Shares of simulated studies with any false verdict, where no effect is there, and where all are the smallest."""
    rng = np.random.default_rng(seed)
    wrong = {"no effect": 0, "the smallest effect": 0}
    for _ in range(rounds):
        for effect, name in ((0.0, "no effect"), (1.0, "the smallest effect")):
            found = findings_of(simulated(claims, effect, seeds, rng))
            wrong[name] += any(
                _false(claim, effect, finding.verdict)
                for (claim, _), findings in zip(claims, found, strict=True)
                for finding in findings
            )
    return {name: count / rounds for name, count in wrong.items()}


def _false(claim: Hypothesis, effect: float, verdict: Verdict) -> bool:
    """Whether a verdict is wrong; at the smallest effect any verdict on a claim of little is."""
    if claim.little:
        return verdict == "refuted" if effect == 0 else verdict != "undecided"
    return verdict == ("reproduces" if effect == 0 else "refuted")


def power(
    claims: Sequence[tuple[Hypothesis, Tables]], seeds: Sequence[int], effect: float = 2.0, rounds: int = 200
) -> list[dict[str, dict[str, float]]]:
    """For each claim, how often the whole procedure comes to the right verdict: `reproduces` and `refuted`, by setting.

    Effects are once all `effect` times the smallest, and once none at all. Where there is one, a claim reproduces; a
    claim of little is refuted.
    """
    rng = np.random.default_rng(0)
    rates: list[dict[str, dict[str, float]]] = [{"reproduces": {}, "refuted": {}} for _ in claims]
    for _ in range(rounds):
        for true_effect in (effect, 0.0):
            found = findings_of(simulated(claims, true_effect, seeds, rng))
            for (claim, _), rate, findings in zip(claims, rates, found, strict=True):
                right = "reproduces" if (true_effect > 0) != claim.little else "refuted"
                for setting in dict.fromkeys(finding.setting for finding in findings):
                    of_setting = [finding for finding in findings if finding.setting == setting]
                    found_so_far = rate[right].get(setting, 0.0)
                    rate[right][setting] = found_so_far + (together(of_setting) == right) / rounds
    return rates
