"""Coverage-guided fuzzing of what reads text and files of strangers: nothing may raise, hang or take much memory.

    python scripts/fuzz.py replies --runs 1000000     # or another target of tests/fuzz_targets.py

atheris (libFuzzer; `pip install -e ".[fuzz]"`) changes inputs and keeps those that reach new branches in
`runs/fuzz/<target>`, where the next run goes on. An input that raises, takes over ten seconds or over 2 GB ends the run
and is kept in `runs/fuzz` as `crash-…`, `timeout-…` or `oom-…`; at the end libFuzzer prints how many executions there
were. `tests/test_fuzz.py` repeats small ones of those that were found first, from the lists in tests/fuzz_corpus.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "fuzz"
sys.path.insert(0, str(ROOT / "tests"))

from fuzz_targets import TARGETS, seeds  # noqa: E402


def main() -> None:
    """Console entry point. Does not return: libFuzzer ends the process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--runs", type=int, default=100_000, help="executions")
    options = parser.parse_args()
    import atheris

    with atheris.instrument_imports(
        include=["tagrpo"]
    ):  # what the target imports as it reads its first inputs
        for content in seeds(options.target):
            TARGETS[options.target](content)
    if options.target in ("replies", "servers", "tasksets"):
        atheris.instrument_func(json.loads)
    folder = RUNS / options.target
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(seeds(options.target)):
        (folder / f"seed-{number}").write_bytes(content)
    limits = [
        "-max_len=4096",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-runs={options.runs}",
    ]
    atheris.Setup([sys.argv[0], str(folder), f"-artifact_prefix={RUNS}/", *limits], TARGETS[options.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
