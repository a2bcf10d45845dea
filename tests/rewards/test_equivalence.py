import json
import subprocess
import sys
from pathlib import Path

import tagrpo.rewards.workers

PARSE_BOTH_WAYS = r"""
import runpy, sys
from latex2sympy2_extended import latex2sympy2
plain = latex2sympy2.PSParser
parse = runpy.run_path(sys.argv[1])["_parse"]
two_stage = latex2sympy2.PSParser
formulas = sys.stdin.read().split("\n")
results = []
for parser in (two_stage, plain):  # they share tables, which the second would otherwise fill for the first
    latex2sympy2.PSParser = parser
    parse.cache_clear()
    results.append([repr(parse(latex)).replace("\n", " ") for latex in formulas])
for latex, one, other in zip(formulas, *results, strict=True):
    print(plain is not two_stage, one == other, latex, one, other)
"""
FORMULAS = [
    r"4x^3(2x^2+7)",  # a syntax error for the first stage
    r"[\frac{\pi^2}{4}, \frac{9\pi^2}{4}]",  # likewise
    r"8x^9",  # likewise
    r"\frac{\sqrt{3}}{3}",
    r"(-\infty,2)\cup(3,\infty)",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"3 \pm 2\sqrt{2}",
    r"y = -\frac{5}{2} x - \frac{29}{4}",
    r"1 \le x < 3",
    r"\{1,2,3\}",
    r"\text{Evelyn}",
    r"\frac{",  # an error for both
    r"x ^ ^ 2",
]


def test_two_stage_parsing_finds_what_math_verify_finds():
    compare = Path(tagrpo.rewards.workers.__file__).with_name("equivalence.py")
    run = subprocess.run(
        [sys.executable, "-P", "-c", PARSE_BOTH_WAYS, compare],
        input="\n".join(FORMULAS),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert len(lines) == len(FORMULAS)
    assert [line for line in lines if not line.startswith("True True")] == []
    assert "Interval(pi**2/4" in lines[1]


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
