"""How often the whole procedure errs with the noise of the measured tables, told apart by kinds of verdicts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tagrpo.analysis.sections import table
from tagrpo.files import write_json

from .verdicts import ALPHA, OVERALL, Finding, Hypothesis, Tables, _false, findings_of, simulated

ROUNDS = 400
EFFECTS = {"no effect": 0.0, "the smallest effect": 1.0}
"""What is true in the simulated studies, in units of the smallest effect."""
ANY = "any"
KINDS = ("over all settings", "in one setting, of many questions", "in one setting, of one number per seed")
"""Verdicts, by what they are on."""


def simulated_errors(claims: Sequence[tuple[Hypothesis, Tables]], rounds: int = ROUNDS) -> dict[str, Any]:
    """As `verdicts.error_rates`, with as many seeds as the tables have.

    Returns:
        `rounds`; `rates`: effect → kind, or `ANY` → share of the simulated studies with a false verdict of it.
    """
    seeds = [
        max((len(table) for by_setting in tables.values() for table in by_setting.values()), default=2)
        for _, tables in claims
    ]
    rng = np.random.default_rng(0)
    wrong: dict[str, Counter[str]] = {name: Counter() for name in EFFECTS}
    for _ in range(rounds):
        for name, effect in EFFECTS.items():
            drawn = simulated(claims, effect, seeds, rng)
            kinds = {
                kind_of(finding, tables)
                for (claim, tables), findings in zip(drawn, findings_of(drawn), strict=True)
                for finding in findings
                if _false(claim, effect, finding.verdict)
            }
            wrong[name].update([*kinds, *([ANY] if kinds else [])])
    return {
        "rounds": rounds,
        "rates": {name: {kind: count[kind] / rounds for kind in (ANY, *KINDS)} for name, count in wrong.items()},
    }


def kind_of(finding: Finding, tables: Tables) -> str:
    """Which of `KINDS` a verdict is; `tables` are those of its claim."""
    if finding.setting == OVERALL:
        return KINDS[0]
    return KINDS[1] if tables[finding.label][finding.setting].shape[1] > 1 else KINDS[2]


def kept_errors(
    claims: Sequence[tuple[Hypothesis, Tables]], digests: Sequence[Path], kept: Path, rounds: int = ROUNDS
) -> dict[str, Any]:
    """`simulated_errors`, from the file that keeps them where it is of the same digests."""
    key = hashlib.sha256(b"".join(path.read_bytes() for path in digests)).hexdigest()
    errors: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if errors.get("digests") != key:
        errors = {"digests": key, **simulated_errors(claims, rounds)}
        write_json(kept, errors)
    return errors


def errors_section(errors: Mapping[str, Any]) -> Iterator[str]:
    """What the page says of them."""
    rates = errors["rates"]
    yield (
        f"The whole procedure, on tables drawn {errors['rounds']:,} times with the noise of the measured ones (effects "
        "of seeds, of questions, and what is left, each resampled), once where no effect is there and once where every "
        "effect is the smallest that counts. Shares of the studies with a false verdict, of which "
        f"{100 * ALPHA:g} % in all were allowed:"
    )
    yield ""
    shown = [[kind, *(f"{100 * rates[name][kind]:.1f} %" for name in EFFECTS)] for kind in (*KINDS, ANY)]
    yield from table(["verdicts", *EFFECTS], shown)
    if above := hints(errors):
        kept = [kind for kind in KINDS if kind not in above]
        none, smallest = (f"{100 * sum(rates[name][kind] for kind in kept):.1f} %" for name in EFFECTS)
        yield ""
        yield (
            f"**So the promise is not kept by verdicts {', nor by those '.join(above)}.** A t-test over few seeds is "
            "too sure of itself where they are skewed or have an outlier. These verdicts are hints alone, and stand in "
            f"brackets above. Without them at most {none} of the studies have a false verdict where no effect is "
            f"there, and at most {smallest} where every effect is the smallest."
        )


def hints(errors: Mapping[str, Any]) -> list[str]:
    """The kinds of verdicts that err more often than a whole study may."""
    return [kind for kind in KINDS if max(errors["rates"][name][kind] for name in EFFECTS) > ALPHA]
