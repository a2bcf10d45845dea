"""How often the procedure decides, and how often wrongly, with the noise of a pilot.

    python -m studies.third.power pilot.csv.gz

Studies are simulated: numbers of seeds with the spread that the pilot's have (of its branches' mean variance, since it
has few seeds), normal or skewed, around effects that differ between settings as much as the pilot's do beyond noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tagrpo.analysis.sections import table

from .claims import CLAIMS, Claim
from .design import KINDS_SEEDS, SEEDS
from .verdicts import Hypothesis, Tables, Word, by_task, conjunction, findings_of

EFFECTS = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0)
"""True means over all settings, in units of the smallest effect, positive as claimed."""
UNDECIDED = {"undecided", "tasks differ"}


class Noise(NamedTuple):
    """Of one difference."""

    seeds: Mapping[str, float]
    """Setting → standard deviation over seeds."""
    settings: float
    """Standard deviation of the true effects of settings."""


def noise_of(by_setting: Mapping[str, pd.DataFrame]) -> Noise:
    """From the pilot: one variance for each task, the mean over its settings."""
    seeds: dict[str, float] = {}
    for settings in by_task(by_setting).values():
        spread = float(np.mean([float(values.iloc[:, 0].var(ddof=1)) for values in settings.values()])) ** 0.5
        seeds |= dict.fromkeys(settings, spread)
    means = np.array([float(values.iloc[:, 0].mean()) for values in by_setting.values()])
    error = float(np.mean([seeds[name] ** 2 / len(values) for name, values in by_setting.items()]))
    beyond = float(means.var(ddof=1)) - error if len(means) > 1 else 0.0
    return Noise(seeds, max(0.0, beyond) ** 0.5)


def drawn(
    noise: Noise, effect: float, seeds: int, skew: int, rng: np.random.Generator
) -> tuple[dict[str, float], dict[str, pd.DataFrame]]:
    """True effects by setting, whose mean over tasks is `effect`, and the numbers of a simulated study.

    `skew`: 0 for normal noise, 1 and −1 for exponential noise to the right and to the left.
    """
    names = list(noise.seeds)
    tasks = [name.partition("/")[0] for name in names]
    weights = np.array([1 / len(set(tasks)) / tasks.count(task) for task in tasks])
    above = rng.normal(0, noise.settings, len(names))
    truth = dict(zip(names, effect + above - weights @ above, strict=True))
    numbers = {}
    for name, sd in noise.seeds.items():
        shape = (min(seeds, len(KINDS_SEEDS)) if name.endswith("/kinds") else seeds, 1)
        drawn = skew * (rng.exponential(size=shape) - 1) if skew else rng.normal(size=shape)
        numbers[name] = pd.DataFrame(truth[name] + sd * drawn)
    return truth, numbers


def is_false(word: Word, claim: Hypothesis, effect: float) -> bool:
    """Whether a word is false of this true effect, which is positive as claimed."""
    small = abs(effect) < claim.smallest - 1e-12
    match word:
        case "reproduces":
            return effect <= 1e-12
        case "smaller than claimed":
            return effect <= 1e-12 or not small
        case "no effect":
            return not small
        case "opposite":
            return effect >= -1e-12
    return False


def simulated(
    claims: Sequence[Claim], pilot: Sequence[Tables], effect: float, seeds: int, rounds: int, skew: int = 0
) -> Iterator[tuple[list[list[Word]], list[bool]]]:
    """Of each of `rounds` simulated studies the words of each claim, and whether one of them is false."""
    rng = np.random.default_rng(0)
    noises = [{label: noise_of(of) for label, of in tables.items() if of} for tables in pilot]
    for _ in range(rounds):
        means = [claim.sign * effect * claim.smallest for claim in claims]
        studies = [
            (claim, {label: drawn(of, mean, seeds, skew, rng)[1] for label, of in noise.items()})
            for claim, noise, mean in zip(claims, noises, means, strict=True)
        ]
        words = [[found.word for found in findings] for findings in findings_of(studies)]
        yield words, [any(is_false(word, claim, effect * claim.smallest) for word in of)
                      for claim, of in zip(claims, words, strict=True)]  # fmt: skip


def report(pilot: pd.DataFrame, seeds: Sequence[int], rounds: int) -> Iterator[str]:
    """Shares of studies in which each claim, and the law, has a word that is true; and those with a false one."""
    measured = [claim.tables(pilot) for claim in CLAIMS]
    claims, tables = zip(
        *((c, t) for c, t in zip(CLAIMS, measured, strict=True) if any(t.values())), strict=True
    )
    law = sum(claim.law for claim in claims)

    def share(of: Sequence[bool]) -> str:
        return f"{100 * sum(of) / len(of):.0f}"

    for count in seeds:
        columns, wrong = [], []
        for effect in EFFECTS:
            for skew, shape in {0: "normal", 1: "skewed to the right", -1: "skewed to the left"}.items():
                studies = list(simulated(claims, tables, effect, count, rounds, skew))
                laws = [conjunction([word for of in words[:law] for word in of]) for words, _ in studies]
                no_law = share(
                    [effect <= 0 and word in ("reproduces", "smaller than claimed") for word in laws]
                )
                wrong.append([f"{effect:g} δ, {shape}", no_law,
                              *(share([any(false[part]) for _, false in studies])
                                for part in (slice(law), slice(law, None)))])  # fmt: skip
                if not skew:
                    decided = [
                        share(
                            [
                                not false[row] and {*words[row]}.isdisjoint(UNDECIDED)
                                for words, false in studies
                            ]
                        )
                        for row in range(len(claims))
                    ]
                    columns.append([*decided, share([word not in UNDECIDED for word in laws])])
        yield f"\n{count} seeds: % of studies in which a true word is decided, by the true effect\n"
        names = [*(f"{row + 1}. {claim.statement}" for row, claim in enumerate(claims)), "The law, any word."]
        yield from table(
            ["claim", *(f"{effect:g} δ" for effect in EFFECTS)], list(zip(names, *columns, strict=True))
        )
        yield "\n% of studies with a false word\n"
        yield from table(["true effects", "on the law", "on one of its claims", "on another claim"], wrong)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pilot", type=Path, help="table of its runs")
    parser.add_argument("--seeds", nargs="*", type=int, default=[len(SEEDS)])
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    for line in report(pd.read_csv(chosen.pilot), chosen.seeds, chosen.rounds):
        print(line)


if __name__ == "__main__":
    main()
