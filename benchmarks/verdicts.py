r"""Verdicts of MathReward beside those of math-verify and Hendrycks' `is_equiv`, on labelled pairs; and their speed.

    python benchmarks/verdicts.py                          # ours and math-verify's
    uv pip install --no-deps --target /tmp/lm_eval lm-eval
    python benchmarks/verdicts.py --hendrycks /tmp/lm_eval # and `is_equiv`, as in lm-evaluation-harness
    python benchmarks/verdicts.py --speed math_train.jsonl # 10,000 verdicts on references of MATH
    python benchmarks/verdicts.py --speed math_train.jsonl --against ../old   # beside those of another checkout

`tests/rewards/pairs.jsonl` has the pairs. If `right` is null, graders differ by convention (docs/verdicts.md);
such pairs do not count. For the comparison of speed, both checkouts score the same batches in turn, each in a process.
"""

from __future__ import annotations

import argparse
import json
import random
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ROOT / "tests" / "rewards" / "pairs.jsonl"
BATCH = 500
SERVER = """
import json, sys, time
from tagrpo.rewards import MathReward
reward = MathReward()
reward(r"\\boxed{\\sin x}", r"\\cos x")
for line in sys.stdin:
    answers, references = json.loads(line)
    start = time.perf_counter()
    correct = [score.correct for score in reward.score_batch(answers, references)]
    print(json.dumps([time.perf_counter() - start, correct]), flush=True)
reward.close()
"""
Verdicts = list[bool | None]


def ours(pairs: Sequence[dict[str, str]]) -> Verdicts:
    """Return the verdicts of MathReward."""
    from tagrpo.rewards import MathReward

    with MathReward() as reward:
        scores = reward.score_batch(
            [f"\\boxed{{{p['answer']}}}" for p in pairs], [p["reference"] for p in pairs]
        )
    return [score.correct for score in scores]


def math_verify(pairs: Sequence[dict[str, str]]) -> Verdicts:
    """Return the verdicts of math-verify with the settings of its readme; None if it raises or takes too long."""
    from math_verify import parse, verify

    found: Verdicts = []
    for pair in pairs:
        try:
            found.append(
                bool(verify(parse(f"\\boxed{{{pair['reference']}}}"), parse(f"\\boxed{{{pair['answer']}}}")))
            )
        except Exception:  # a timeout, or an input that the library does not expect
            found.append(None)
    return found


def hendrycks(folder: Path) -> Callable[[Sequence[dict[str, str]]], Verdicts]:
    """Return a grader that calls `is_equiv` in a folder with lm-eval."""
    is_equiv = runpy.run_path(str(folder / "lm_eval/tasks/hendrycks_math/utils.py"))["is_equiv"]
    return lambda pairs: [bool(is_equiv(pair["reference"], pair["answer"])) for pair in pairs]


def table(graders: dict[str, Callable[[Sequence[dict[str, str]]], Verdicts]], listed: str | None) -> str:
    """Return a table of how many labelled pairs each grader judges rightly, by kind."""
    every = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    pairs = [pair for pair in every if pair["right"] is not None]
    kinds = Counter(pair["kind"] for pair in pairs)
    right: dict[str, Counter[str]] = {name: Counter() for name in graders}
    lines = [f"| kind | pairs | {' | '.join(graders)} |", "|---|---|" + "---|" * len(graders)]
    for name, grader in graders.items():
        for pair, verdict in zip(pairs, grader(pairs), strict=True):
            agrees = verdict == pair["right"]
            outcome = "passes" if pair["right"] else "refuses"
            for row in (pair["kind"], outcome, "all"):
                right[name][row] += agrees
            if listed == name and not agrees:
                print(f"{name}: {pair['reference']} | {pair['answer']}: {verdict}")
    must = Counter("passes" if pair["right"] else "refuses" for pair in pairs)
    for kind, count in [*kinds.items(), *must.items(), ("all", len(pairs))]:
        cells = [right[name][kind] for name in graders]
        lines.append(f"| {kind} | {count} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def batches(file: Path, seed: int = 0) -> list[tuple[list[str], list[str]]]:
    """Return responses and references for 10,000 verdicts, six in ten of them on the reference itself."""
    from tagrpo.rewards.extraction import extract_reference

    solutions = [json.loads(line)["solution"] for line in file.read_text().splitlines()]
    references = [texts[-1] for texts in map(extract_reference, solutions) if texts]
    rng = random.Random(seed)
    rows = []
    for _ in range(10_000):
        reference = rng.choice(references)
        answer = reference if rng.random() < 0.6 else rng.choice(references)
        rows.append((f"so \\boxed{{{answer}}}", reference))
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    return [([response for response, _ in part], [reference for _, reference in part]) for part in parts]


def speed(file: Path, checkouts: Sequence[Path]) -> None:
    """Print seconds per checkout; each batch goes to every checkout in turn."""
    servers = []
    for checkout in checkouts:
        command = [str(checkout / ".venv" / "bin" / "python"), "-c", SERVER]
        servers.append(
            subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    seconds = [0.0] * len(servers)
    verdicts: list[list[bool]] = [[] for _ in servers]
    for batch in batches(file):
        for number, server in enumerate(servers):
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(batch) + "\n")
            server.stdin.flush()
            taken, correct = json.loads(server.stdout.readline())
            seconds[number] += taken
            verdicts[number] += correct
    for checkout, taken, correct in zip(checkouts, seconds, verdicts, strict=True):
        differ = sum(map(bool.__ne__, correct, verdicts[0]))
        print(
            f"{checkout}: {taken:.1f} s, {len(correct) / taken:.0f} verdicts/s, {differ} differ from the first"
        )
    for server in servers:
        server.communicate()


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hendrycks", type=Path, help="folder with lm-eval")
    parser.add_argument("--list", choices=["ours", "math-verify", "Hendrycks"], help="print its errors")
    parser.add_argument("--speed", type=Path, help="math_train.jsonl: measure the speed instead")
    parser.add_argument(
        "--against", type=Path, action="append", default=[], help="another checkout, with its .venv"
    )
    options = parser.parse_args()
    start = time.perf_counter()
    if options.speed:
        speed(options.speed, [ROOT, *options.against])
        return
    graders = {"ours": ours, "math-verify": math_verify}
    if options.hendrycks:
        graders["Hendrycks"] = hendrycks(options.hendrycks)
    print(table(graders, options.list))
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
