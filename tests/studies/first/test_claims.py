"""Verdicts against t-tests of scipy and against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from studies.first.claims import CLAIMS, STEPS, Claim, findings_of, together
from studies.first.page import ORDER, page
from studies.first.regimes import Regime


def run(method, correct, seed=0, n=8, **series):
    iterations = max((len(values) for values in series.values()), default=0)
    return {
        "method": method, "seed": seed, "command": f"train {method}", "seconds": 1.0, "n": n,
        "ledger": {"iterations": iterations, "rollouts": 1, "updates": 1}, "correct": {"test": list(correct)},
        "series": {k.replace("__", "/"): {str(i): x for i, x in enumerate(v)} for k, v in series.items()},
        "diversity": {}, "hard_share": {}, "quarters": {}, "gradients": {}, "weights": None, "starts": 1,
    }  # fmt: skip


def better(smallest, sign=1):
    def pairs(regime):
        yield "ours − theirs", regime.pass_at_k("ours", 1), regime.pass_at_k("theirs", 1)

    return Claim("Ours is better.", "nobody", pairs, smallest=smallest, sign=sign)


RNG = np.random.default_rng(0)
THEIRS = RNG.integers(3, 6, 40)


@pytest.mark.parametrize(
    ("gain", "smallest", "verdict"),
    [(2, 0.02, "reproduces"), (-2, 0.02, "does not reproduce"), (0, 0.3, "does not reproduce"), (0, 0.0, "undecided")],
)
def test_a_verdict_follows_from_sign_noise_and_the_smallest_effect(gain, smallest, verdict):
    ours = THEIRS + gain + np.tile([-1, 0, 1, 0], 10)
    assert ours.min() >= 0
    regime = Regime([run("ours", ours), run("theirs", THEIRS)])
    (finding,) = findings_of({"one": regime}, [better(smallest)])[0]
    assert finding.verdict == verdict
    expected = stats.ttest_rel(ours / 8, THEIRS / 8)
    assert finding.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (finding.difference.estimate.low, finding.difference.estimate.high) == pytest.approx(tuple(interval))


def test_a_claim_of_less_is_the_mirror_image():
    regime = Regime([run("ours", np.clip(THEIRS - 2 + RNG.integers(-1, 1, 40), 0, 8)), run("theirs", THEIRS)])
    lower, higher = findings_of({"one": regime}, [better(0.02, sign=-1), better(0.02)])
    assert (lower[0].verdict, higher[0].verdict) == ("reproduces", "does not reproduce")


def test_p_values_are_corrected_over_all_claims_and_regimes():
    ours = np.clip(THEIRS + RNG.integers(-1, 2, 40), 0, 8)
    regime = Regime([run("ours", ours), run("theirs", THEIRS)])
    alone = findings_of({"one": regime}, [better(0.02)])[0][0].p_value
    every = findings_of({"one": regime, "two": regime}, [better(0.02), better(0.02)])
    assert [f.p_value for found in every for f in found] == pytest.approx([min(1.0, 4 * alone)] * 4)
    assert [f.regime for f in every[0]] == ["one", "two"]


def whole_study():
    """Every method of the page with five seeds, random counts and series."""
    rng = np.random.default_rng(1)
    runs = []
    for method in ORDER:
        for seed in range(5):
            made = run(
                method, rng.integers(0, 33, 20), seed, n=32,
                zero_gradient__percentage=rng.random(40) * 100,
                rephrasing__difficulty_variance=0.05 + rng.random(40) / 100,
                rollout__entropy=0.5 - np.arange(40) / 100 + rng.random(40) / 100,
            )  # fmt: skip
            made["diversity"] = {
                pool: {str(i): shift + rng.random() / 100 for i in range(40)}
                for pool, shift in (("original", 0.1), ("rephrasings", 0.2))
            }
            made["hard_share"] = {str(i): float(rng.random()) for i in range(40)}
            runs.append(made)
    for made in runs:
        made["series"] = {k: {i: float(x) for i, x in v.items()} for k, v in made["series"].items()}
        made["correct"] = {split: [int(c) for c in counts] for split, counts in made["correct"].items()}
    regimes = {"mixed": runs, "hard": runs}
    return {"regimes": regimes, "unfinished": [], "questions": {}, "versions": {"torch": "2"}}


def test_every_claim_and_every_step_can_be_told_from_the_methods_of_the_study():
    regimes = {name: Regime(runs) for name, runs in whole_study()["regimes"].items()}
    findings = findings_of(regimes)
    assert len(findings) == len(CLAIMS)
    assert all({f.regime for f in found} == {"mixed", "hard"} for found in findings)
    verdicts = {claim.statement: together([f for f in found if f.regime == "mixed"]) for claim, found in
                zip(CLAIMS, findings, strict=True)}  # fmt: skip
    assert verdicts["Rephrasings of a question differ in difficulty."] == "reproduces"
    assert verdicts["… and at its end."] == "reproduces"
    assert verdicts["Entropy collapses under GRPO."] == "reproduces"
    assert {name for _, *pair in STEPS for name in pair} <= set(ORDER)


def test_the_page_names_every_claim_every_step_and_every_run():
    text = page(whole_study())
    for claim in CLAIMS:
        assert text.count(claim.statement) + text.count(claim.statement.replace("|", "\\|")) >= 2
    for what, ours, theirs in STEPS:
        assert text.count(f"| {what} | {ours} − {theirs} |") == 2
    for method in ORDER:
        assert text.count(f"`train {method}`") == 10
    assert "−" in text
    assert "nan" not in text.lower()
