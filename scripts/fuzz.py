"""Coverage-guided fuzzing of what reads text and files of strangers: nothing may raise, hang or take much memory.

    python scripts/fuzz.py replies --runs 1000000     # or extraction, verdicts, checkpoints
    python scripts/fuzz.py --keep                     # the inputs that cover most go to tests/fuzz_corpus

atheris (libFuzzer; `pip install -e ".[fuzz]"`) changes inputs and keeps those that reach new branches in
`runs/fuzz/<target>`, where the next run goes on. An input that raises, takes over ten seconds or over 2 GB ends the run
and is kept in `runs/fuzz` as `crash-…`, `timeout-…` or `oom-…`; at the end libFuzzer prints how many executions there
were. `tests/test_fuzz.py` repeats the small corpus that is kept in the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "fuzz"
CORPUS = ROOT / "tests" / "fuzz_corpus"
sys.path.insert(0, str(ROOT / "tests"))

from fuzz_targets import TARGETS, seeds  # noqa: E402

KEPT = 40
"""Inputs of a target in the repository."""


def fuzz(target: str, runs: int) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(
        include=[
            "tagrpo.rewards",
            "tagrpo.rephrasing",
            "tagrpo.runs.checkpoints",
            "tagrpo.runs.files",
        ]
    ):
        import tagrpo.rephrasing.calls
        import tagrpo.runs.checkpoints  # noqa: F401
    if target == "replies":
        atheris.instrument_func(json.loads)
    folder = RUNS / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(seeds(target)):
        (folder / f"seed-{number}").write_bytes(content)
    limits = [f"-runs={runs}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(folder), f"-artifact_prefix={RUNS}/", *limits], TARGETS[target])
    atheris.Fuzz()


def keep() -> None:
    """The largest inputs are left out, then those that were found first: they reach most of the branches."""
    CORPUS.mkdir(exist_ok=True)
    for name in TARGETS:
        files = sorted((RUNS / name).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        small = [path.read_bytes() for path in files if path.stat().st_size <= 300][:KEPT]
        (CORPUS / f"{name}.json").write_text(json.dumps([one.decode("latin-1") for one in small], indent=0) + "\n")


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", choices=TARGETS)
    parser.add_argument("--runs", type=int, default=100_000, help="executions")
    parser.add_argument("--keep", action="store_true", help="renew the corpus in the repository")
    options = parser.parse_args()
    if options.keep:
        keep()
    elif options.target is None:
        parser.error(f"expected one of {', '.join(TARGETS)}")
    else:
        fuzz(options.target, options.runs)


if __name__ == "__main__":
    main()
