import json
import subprocess
import sys
from pathlib import Path

import tagrpo.rewards.workers

COMPARE = r"""
import runpy, sys, json
compare = runpy.run_path(sys.argv[1])["compare"]
print(json.dumps([compare(plan) for plan in json.load(sys.stdin)]))
"""
EQUAL = [
    (r"\frac{x^2-1}{x-1}", "x+1"),  # equal but for one point
    (r"\sin 2x", r"2\sin x\cos x"),
    (r"\sqrt{x^2}", "|x|"),
    ("X+1", "x+1"),  # math-verify does not tell cases apart
    (r"\log_2 8+x", "x+3"),
    ("n(n+1)/2", r"\binom{n+1}{2}"),
    (r"\text{Evelyn}", "evelyn"),
]
DIFFERENT = [
    (r"\frac{x^2-1}{x-1}", "x-1"),
    ("x^2", "x^3"),  # equal at 1
    ("x-y", "y-x"),
    ("xy", "x+y"),
    ("x", "2"),
    (r"\frac{1}{x-x}", "x"),  # has no value
]


TINY = [
    (r"\frac{x-x+1}{2004!}", r"\frac{1}{2006!}"),
    (r"2^{-1100}", r"2^{-1101}"),
    (r"e^{-1000}", r"e^{-1001}"),
]
SAME, OTHER = ["same", r"\sin 2x", r"2\sin x\cos x"], ["same", "x", "y"]
PLANS = [
    (True, True),
    (False, False),
    (["all", SAME, True], True),
    (["all", SAME, OTHER], False),
    (["any", OTHER, SAME], True),
    (["any", OTHER, False], False),
    (["match", [[True, True], [SAME, OTHER]]], True),
    (["match", [[True, False], [SAME, False]]], False),
    (["match", [[True, True, False], [True, False, False], [False, True, SAME]]], True),
]


def compared(plans):
    compare = Path(tagrpo.rewards.workers.__file__).with_name("equivalence.py")
    run = subprocess.run(
        [sys.executable, "-P", "-c", COMPARE, compare],
        input=json.dumps(plans),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(run.stdout)


def test_plans_are_carried_out_and_formulas_that_differ_at_a_point_are_different():
    pairs = EQUAL + DIFFERENT + TINY
    verdicts = compared([["same", *pair] for pair in pairs] + [plan for plan, _ in PLANS])
    assert [pair for pair, verdict in zip(pairs, verdicts, strict=False) if verdict] == EQUAL
    assert verdicts[len(pairs) :] == [verdict for _, verdict in PLANS]
