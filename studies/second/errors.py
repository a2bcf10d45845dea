"""How often the procedure gives a false word: studies simulated with the noise and the differences measured.

Tables are drawn from the model that their analysis assumes (effects of seeds, of questions, and what is left, with the
variances measured), and with skewed effects instead of normal ones. Settings differ as much as they were measured to.
On normal tables the rate found is that of the procedure itself, which a test checks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy import stats

from tagrpo.runs.files import write_json

from .verdicts import Hypothesis, Moments, Outcome, Tables, Word, is_scalar, levels_of, moments, outcome_of

ROUNDS = 1000
EFFECTS = (-1.0, 0.0, 1.0)
"""True effects over all settings, in units of the smallest effect, positive as claimed: there the words change."""
NOISE: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - 1,
}
"""Distributions of effects with mean 0 and variance 1."""
DECIDED = {"there were no effects": 0.0, "all effects were three times δ": 3.0}
"""True effects of which the share of decided words is told, in units of the smallest effect."""
STUDIES = 20
"""How many are simulated for that share."""
ANY = "any"
FAMILIES = ("over all settings", "in one setting")


def spreads(values: np.ndarray) -> tuple[float, float, float]:
    """Standard deviations of the effects of seeds, of questions, and of the rest of a table [seeds, questions]."""
    seeds, questions = values.shape
    rows, columns = values.mean(1), values.mean(0)
    if questions == 1:
        return float(rows.std(ddof=1)), 0.0, 0.0
    rest = values - rows[:, None] - columns + values.mean()
    noise = float((rest**2).sum() / (seeds - 1) / (questions - 1))
    of_seeds, of_questions = rows.var(ddof=1) - noise / questions, columns.var(ddof=1) - noise / seeds
    return max(0.0, of_seeds) ** 0.5, max(0.0, of_questions) ** 0.5, noise**0.5


def drawn(values: np.ndarray, noise: str, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """[rounds, seeds, questions] of tables with the spreads of this one and expectation 0."""
    draw = NOISE[noise]
    of_seeds, of_questions, rest = spreads(values)
    seeds, questions = values.shape
    found = of_seeds * draw(rng, (rounds, seeds, 1))
    if questions > 1:
        found = found + of_questions * draw(rng, (rounds, 1, questions)) + rest * draw(rng, (rounds, seeds, questions))
    return found


def deviations(tables: Mapping[str, np.ndarray], rounds: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Setting → [rounds] of what its effect is above that over all, drawn with the variance measured beyond noise."""
    tasks = [setting.partition("/")[0] for setting in tables]
    weights = np.array([1 / len(set(tasks)) / tasks.count(task) for task in tasks])
    means = np.array([values.mean() for values in tables.values()])
    noise = np.mean([float(moments([[values]]).error) ** 2 for values in tables.values()])
    spread = max(0.0, means.var(ddof=1) - noise) ** 0.5 if len(means) > 1 else 0.0
    found = spread * rng.normal(size=(len(tables), rounds))
    return dict(zip(tables, found - weights @ found, strict=True))


def is_false(word: Word, claim: Hypothesis, effect: float) -> bool:
    """Whether a word is false of this true effect, which is positive as claimed."""
    tiny = 1e-12
    small = abs(effect) < claim.smallest - tiny
    if word == "reproduces":
        return not small if claim.little else effect <= tiny
    if word == "larger than claimed":
        return effect <= claim.smallest + tiny
    if word == "smaller than claimed":
        return effect <= tiny or not small
    return {"no effect": not small, "opposite": effect >= -tiny, "undecided": False}[word]


@dataclass(frozen=True)
class Drawn:
    """Simulated studies of one difference, in one setting or over all."""

    family: str
    claim: Hypothesis
    moments: Moments
    """[rounds]."""
    truth: np.ndarray
    """[rounds], positive as claimed."""
    level: float
    scalar: bool

    def outcome(self, draw: int) -> Outcome:
        """The word of one simulated study."""
        of = self.moments
        one = Moments(of.mean[draw], of.error[draw], of.freedom[draw], of.shares[draw], of.weights)
        return outcome_of(self.claim, one, self.level, self.scalar)

    def false_words(self) -> Iterator[tuple[int, Word]]:
        """Number and word of each study with a false one: only where the interval misses the truth can it be."""
        low, high = self.moments.interval(self.level)
        truth = self.claim.sign * self.truth
        for draw in np.flatnonzero((low > truth) | (high < truth)).tolist():
            word = self.outcome(draw).word
            if is_false(word, self.claim, float(self.truth[draw])):
                yield draw, word


def simulated(
    claims: Sequence[tuple[Hypothesis, Tables]], effect: float, noise: str, rounds: int, rng: np.random.Generator
) -> Iterator[Drawn]:
    """Every difference in every setting and over all, in `rounds` studies.

    Every effect over all settings is `effect` times the smallest; settings differ from it.
    """
    overall, single = levels_of(claims)
    for claim, tables in claims:
        for by_setting in filter(None, tables.values()):
            measured = {name: of.to_numpy(dtype=float) for name, of in by_setting.items()}
            above, scalar = deviations(measured, rounds, rng), is_scalar(by_setting)
            tasks: dict[str, list[np.ndarray]] = {}
            for name, values in measured.items():
                truth = effect * claim.smallest + above[name]
                one = claim.sign * (drawn(values, noise, rounds, rng) + truth[:, None, None])
                tasks.setdefault(name.partition("/")[0], []).append(one)
                yield Drawn(FAMILIES[1], claim, moments([[one]]), truth, single, scalar)
            fewest = {task: min(one.shape[1] for one in of) for task, of in tasks.items()}
            whole = moments([[one[:, : fewest[task]] for one in of] for task, of in tasks.items()])
            truth = np.full(rounds, effect * claim.smallest)
            yield Drawn(FAMILIES[0], claim, whole, truth, overall, scalar)


def simulated_errors(claims: Sequence[tuple[Hypothesis, Tables]], rounds: int = ROUNDS) -> dict[str, Any]:
    """Verdicts of the procedure in simulated studies.

    Returns:
        `rounds`; `rates`: noise → effect, in smallest effects → one of `FAMILIES` → word, or `ANY` → share of the
        studies with a false word; `decided`: effect → kind of quantity → share of the differences over all settings
        with a word that is true and not *undecided*; `skewness`: as `_skewness` returns it.
    """
    rng = np.random.default_rng(0)
    rates: dict[str, Any] = {}
    for noise in NOISE:
        for effect in EFFECTS:
            wrong = {family: {word: np.zeros(rounds, bool) for word in get_args(Word)} for family in FAMILIES}
            for one in simulated(claims, effect, noise, rounds, rng):
                for draw, word in one.false_words():
                    wrong[one.family][word][draw] = True
            rates.setdefault(noise, {})[f"{effect:g}"] = {
                family: {ANY: float(np.mean(np.any(list(found.values()), axis=0)))}
                | {word: float(found[word].mean()) for word in found if word != "undecided"}
                for family, found in wrong.items()
            }
    decided = {name: _decided(claims, effect, rng) for name, effect in DECIDED.items()}
    return {"rounds": rounds, "rates": rates, "decided": decided, "skewness": _skewness(claims, rng)}


def _skewness(claims: Sequence[tuple[Hypothesis, Tables]], rng: np.random.Generator) -> dict[str, float]:
    """Mean absolute skewness of the seeds of a table: of those measured, and of as many drawn from each noise."""
    measured = [of.mean(axis=1) for _, tables in claims for by_setting in tables.values() for of in by_setting.values()]
    kinds = {"measured": measured} | {name: [draw(rng, of.shape) for of in measured] for name, draw in NOISE.items()}
    return {name: float(np.nanmean([abs(stats.skew(seeds)) for seeds in of])) for name, of in kinds.items()}


def _decided(
    claims: Sequence[tuple[Hypothesis, Tables]], effect: float, rng: np.random.Generator
) -> dict[str, float | None]:
    found: dict[str, list[bool]] = {"single numbers per seed": [], "quantities with many questions": []}
    for one in simulated(claims, effect, "normal", STUDIES, rng):
        if one.family == FAMILIES[0]:
            words = [one.outcome(draw).word for draw in range(STUDIES)]
            kind = "single numbers per seed" if one.scalar else "quantities with many questions"
            found[kind] += [w != "undecided" and not is_false(w, one.claim, effect * one.claim.smallest) for w in words]
    return {kind: float(np.mean(true)) if true else None for kind, true in found.items()}


def kept_errors(
    claims: Sequence[tuple[Hypothesis, Tables]], digests: Sequence[Path], kept: Path, rounds: int = ROUNDS
) -> dict[str, Any]:
    """`simulated_errors`, from the file that keeps them where it is of the same digests and the same procedure."""
    code = [Path(__file__), Path(__file__).with_name("verdicts.py")]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in (*digests, *code))).hexdigest()
    errors: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if errors.get("key") != key:
        errors = {"key": key, **simulated_errors(claims, rounds)}
        write_json(kept, errors)
    return errors
