import json
import subprocess
import sys
from pathlib import Path

import tagrpo.rewards.workers

COMPARE = r"""
import runpy, sys, json
compare = runpy.run_path(sys.argv[1])["compare"]
print(json.dumps([compare(((reference,), answer)) for reference, answer in json.load(sys.stdin)]))
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


def test_formulas_that_differ_at_a_point_are_different_and_equal_ones_stay_equal():
    compare = Path(tagrpo.rewards.workers.__file__).with_name("equivalence.py")
    run = subprocess.run(
        [sys.executable, "-P", "-c", COMPARE, compare],
        input=json.dumps(EQUAL + DIFFERENT),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    verdicts = dict(zip(EQUAL + DIFFERENT, json.loads(run.stdout), strict=True))
    assert [pair for pair, verdict in verdicts.items() if verdict] == EQUAL
