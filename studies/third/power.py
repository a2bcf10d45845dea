"""How often the procedure decides, and how often wrongly, with the noise of a pilot.

    python -m studies.third.power pilot.csv.gz

Studies are simulated: numbers of seeds with the spread that the pilot's have (of its branches' mean variance, since it
has few seeds), normal or skewed, around effects that differ between settings as much as the pilot's do beyond noise.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tagrpo.analysis.sections import table

from .claims import CLAIMS, Claim
from .verdicts import OVERALL, Hypothesis, Tables, Word, findings_of

EFFECTS = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0)
"""True means over all settings, in units of the smallest effect, positive as claimed."""


class Noise(NamedTuple):
    """Of one difference."""

    seeds: Mapping[str, float]
    """Setting → standard deviation over seeds."""
    settings: float
    """Standard deviation of the true effects of settings."""


def noise_of(by_setting: Mapping[str, pd.DataFrame]) -> Noise:
    """From the pilot: one variance for each task, the mean over its settings."""
    variances: dict[str, list[float]] = {}
    for setting, values in by_setting.items():
        variances.setdefault(setting.partition("/")[0], []).append(float(values.iloc[:, 0].var(ddof=1)))
    seeds = {setting: float(np.mean(variances[setting.partition("/")[0]])) ** 0.5 for setting in by_setting}
    means = np.array([float(values.iloc[:, 0].mean()) for values in by_setting.values()])
    error = float(np.mean([seeds[name] ** 2 / len(values) for name, values in by_setting.items()]))
    beyond = float(means.var(ddof=1)) - error if len(means) > 1 else 0.0
    return Noise(seeds, max(0.0, beyond) ** 0.5)


def drawn(
    noise: Noise, effect: float, seeds: int, skewed: bool, rng: np.random.Generator
) -> tuple[dict[str, float], dict[str, pd.DataFrame]]:
    """True effects by setting, whose mean over tasks is `effect`, and the numbers of a simulated study."""
    names = list(noise.seeds)
    tasks = [name.partition("/")[0] for name in names]
    weights = np.array([1 / len(set(tasks)) / tasks.count(task) for task in tasks])
    above = rng.normal(0, noise.settings, len(names))
    truth = dict(zip(names, effect + above - weights @ above, strict=True))
    shape = (seeds, 1)
    return truth, {
        name: pd.DataFrame(truth[name] + sd * (rng.exponential(size=shape) - 1 if skewed else rng.normal(size=shape)))
        for name, sd in noise.seeds.items()
    }


def is_false(word: Word, claim: Hypothesis, effect: float) -> bool:
    """Whether a word is false of this true effect, which is positive as claimed."""
    small = abs(effect) < claim.smallest - 1e-12
    match word:
        case "reproduces":
            return not small if claim.little else effect <= 1e-12
        case "smaller than claimed":
            return effect <= 1e-12 or not small
        case "larger than claimed":
            return effect <= claim.smallest + 1e-12
        case "no effect":
            return not small
        case "opposite":
            return effect >= -1e-12
    return False


def simulated(
    claims: Sequence[Claim], pilot: Sequence[Tables], effect: float, seeds: int, rounds: int, skewed: bool = False
) -> Iterator[tuple[int, int, str, Word, bool]]:
    """(round, claim, setting, word, whether it is false) of every word of `rounds` simulated studies."""
    rng = np.random.default_rng(0)
    noises = [{label: noise_of(of) for label, of in tables.items() if of} for tables in pilot]
    for number in range(rounds):
        truths, studies = [], []
        for claim, noise in zip(claims, noises, strict=True):
            mean = claim.sign * effect * claim.smallest
            made = {label: drawn(of, mean, seeds, skewed, rng) for label, of in noise.items()}
            truths.append({label: {**truth, OVERALL: mean} for label, (truth, _) in made.items()})
            studies.append((claim, {label: tables for label, (_, tables) in made.items()}))
        for row, (claim, findings) in enumerate(zip(claims, findings_of(studies), strict=True)):
            for found in findings:
                true = claim.sign * truths[row][found.label][found.setting]
                yield number, row, found.setting, found.word, is_false(found.word, claim, true)


def report(pilot: pd.DataFrame, seeds: Sequence[int], rounds: int) -> Iterator[str]:
    """Shares of decided words over all settings, claim by claim; and of studies with a false word."""
    measured = [claim.tables(pilot) for claim in CLAIMS]
    claims, tables = zip(*((c, t) for c, t in zip(CLAIMS, measured, strict=True) if any(t.values())), strict=True)
    for count in seeds:
        decided: dict[int, list[str]] = {row: [] for row in range(len(claims))}
        wrong = []
        for effect in EFFECTS:
            for skewed in (False, True):
                words = list(simulated(claims, tables, effect, count, rounds, skewed))
                false = {name: {n for n, _, setting, _, no in words if no and (setting == OVERALL) == whole}
                         for name, whole in (("all", True), ("single", False))}  # fmt: skip
                wrong.append([f"{effect:g} δ, {'skewed' if skewed else 'normal'}",
                              *(f"{100 * len(of) / rounds:.0f}" for of in false.values())])  # fmt: skip
                if not skewed:
                    true = Counter(row for _, row, setting, word, no in words
                                   if setting == OVERALL and word != "undecided" and not no)  # fmt: skip
                    for row, cells in decided.items():
                        cells.append(f"{100 * true[row] / rounds:.0f}")
        yield f"\n{count} seeds: % of studies in which a true word is decided over all settings, by the true effect\n"
        effects = [f"{effect:g} δ" for effect in EFFECTS]
        yield from table(["", "claim", *effects],
                    [[str(row + 1), claim.statement, *decided[row]] for row, claim in enumerate(claims)])  # fmt: skip
        yield "\n% of studies with a false word\n"
        yield from table(["true effects", "over all settings", "in one setting"], wrong)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pilot", type=Path, help="table of its runs")
    parser.add_argument("--seeds", nargs="*", type=int, default=[10, 20])
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    for line in report(pd.read_csv(chosen.pilot), chosen.seeds, chosen.rounds):
        print(line)


if __name__ == "__main__":
    main()
