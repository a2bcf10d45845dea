"""Coverage-guided fuzzing of what reads text and files of strangers: nothing may raise, hang or take much memory.

    python scripts/fuzz.py --runs 1000000             # so many executions of each target, beside those before
    python scripts/fuzz.py --runs 1000000 --only replies
    python scripts/fuzz.py --table                    # the figures of all that has been run
    python scripts/fuzz.py --keep                     # the inputs that cover most go to tests/fuzz_corpus

atheris (libFuzzer; `pip install -e ".[fuzz]"`) changes inputs and keeps those that reach new branches in
`runs/fuzz/<target>`, where the next run goes on; executions are counted in `runs/fuzz/executions.jsonl`. An input that
raises, takes over ten seconds or over 2 GB ends the run and is kept in `runs/fuzz` as `crash-…`, `timeout-…` or
`oom-…`. `tests/test_fuzz.py` repeats the small corpus that is kept in the repository.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "fuzz"
CORPUS = ROOT / "tests" / "fuzz_corpus"
PART = 200_000
"""Executions of one process: no more are lost when it is stopped."""
KEPT = 40
"""Inputs of a target in the repository."""


def extraction(data: bytes) -> None:
    """Answers of responses and their normal forms."""
    from tagrpo.rewards import extraction as module

    text = data.decode("utf-8", "replace")
    answer = module.extract_answer(text)
    assert answer is None or answer in text
    assert module.extract_reference(text) is None or module.extract_reference(text) in text
    for part in (text, answer or ""):
        normal = module.normalize_answer(part)
        assert normal == normal.lstrip().rstrip(" .,")
        value = module.exact_value(normal)
        assert value is None or module.exact_value(str(value)) == value
        number = module.canonical_number(part)
        assert number is None or module.canonical_number(number) == number


@cache
def verifiers() -> tuple[tuple[Callable, str | tuple[str, ...]], ...]:
    """Every verifier that judges in the process itself, with a reference."""
    from tagrpo.rewards import CountdownReward, FinalAnswerReward, MultipleChoiceReward, ShortestPathReward

    return (
        (MultipleChoiceReward(), "B"),
        (FinalAnswerReward(), "27"),
        (CountdownReward(), "( 9 - 3 ) * 4"),
        (ShortestPathReward(), ("right down", "down right")),
    )


def verdicts(data: bytes) -> None:
    """Verdicts of all verifiers that judge in the process itself, and format rewards."""
    from tagrpo.rewards.format import MARKERS, format_reward
    from tagrpo.rewards.terms import longest_repetition

    text = data.decode("utf-8", "replace")
    for verifier, reference in verifiers():
        score = verifier(text, reference)
        assert score.failure is None
        assert not score.correct or score.answer
    assert all(0 <= format_reward(text, markers) <= 1 for markers in MARKERS.values())
    assert longest_repetition(text[:200]) >= 0


def replies(data: bytes) -> None:
    """Replies of an API."""
    from tagrpo.rephrasing.calls import read_reply

    reply = read_reply(data.decode("utf-8", "replace"))
    assert bool(reply.text) != bool(reply.fault)
    json.dumps([reply.text, reply.fault, reply.model, reply.id]).encode()
    (reply.text + reply.model + reply.id).encode()
    assert all(0 <= count < 2**53 for count in reply.usage)


@cache
def torch_file() -> Mapping[str, bytes]:
    """Records of a small file of `torch.save`."""
    import torch

    buffer = io.BytesIO()
    torch.save({"weight": torch.arange(3.0), "step": 2, "names": ["a"]}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def checkpoints(data: bytes) -> None:
    """Checkpoints: damaged ones, and those of strangers, whose checksums are right."""
    from tagrpo.runs.checkpoints import TornCheckpointError, check

    path = Path(f"/dev/shm/fuzz-{os.getpid()}.ckpt")
    if data[:1] == b"F":
        path.write_bytes(data[1:])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in torch_file().items():
                archive.writestr(name, data if name.endswith("data.pkl") else content)
    try:
        check(path)
    except (TornCheckpointError, pickle.UnpicklingError):
        pass
    finally:
        path.unlink()


TARGETS = {function.__name__: function for function in (extraction, verdicts, replies, checkpoints)}


def seeds(target: str) -> list[bytes]:
    """Inputs to begin with."""
    if target == "checkpoints":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in torch_file().items():
                archive.writestr(name, content)
        pickled = next(content for name, content in torch_file().items() if name.endswith("data.pkl"))
        return [b"F" + buffer.getvalue(), pickled]
    if target == "replies":
        choice = {"message": {"content": "<think>a</think> b \ud83d"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        return [json.dumps({"id": "x", "model": "m", "choices": [choice], "usage": usage}).encode()]
    return [
        rb"so \boxed{\text{(B)}}, or $\dfrac{1}{2}$ #### 1,234.50", b"**Answer:** $\\mathrm{B}$. The answer is 27.",
        b"4 * ( 9 - 3 )", b"right down", b"<think>\n1\n</think>\n<answer>\n2\n</answer>",
    ]  # fmt: skip


def fuzz(target: str, runs: int) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(
        include=["tagrpo.rewards", "tagrpo.rephrasing", "tagrpo.runs.checkpoints", "tagrpo.runs.files"]
    ):
        import tagrpo.rephrasing.calls
        import tagrpo.rewards.terms
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


def counted(target: str, runs: int) -> bool:
    """Fuzz in a process of its own and note how many executions there were; whether all of them were fine."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--only", target, "--runs", str(runs), "--here"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    executed = re.findall(r"number_of_executed_units: (\d+)", result.stderr)
    good = result.returncode == 0 and bool(executed)
    one = {"target": target, "executions": int(executed[-1]) if executed else 0, "good": good}
    with (RUNS / "executions.jsonl").open("a") as file:
        file.write(json.dumps({**one, "seconds": round(time.monotonic() - began)}) + "\n")
    if not good:
        print(result.stderr[-5000:])
    return good


def table() -> str:
    """Markdown: target, what it reads, executions, failures."""
    lines = [json.loads(line) for line in (RUNS / "executions.jsonl").read_text().splitlines()]
    executions, failures = Counter[str](), Counter[str]()
    for one in lines:
        executions[one["target"]] += one["executions"]
        failures[one["target"]] += not one["good"]
    rows = [
        f"| {(TARGETS[name].__doc__ or '').rstrip('.')} | {executions[name]:,} | {failures[name]} |" for name in TARGETS
    ]
    total = f"| in all | {executions.total():,} | {failures.total()} |"
    return "\n".join(["| what is read | executions | failures |", "|---|---:|---:|", *rows, total])


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
    parser.add_argument("--only", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--runs", type=int, default=100_000, help="executions of each target")
    parser.add_argument("--table", action="store_true", help="print the figures, run nothing")
    parser.add_argument("--keep", action="store_true", help="renew the corpus in the repository")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    if options.here:
        fuzz(*options.only, options.runs)
    elif options.keep:
        keep()
    elif not options.table:
        parts = [PART] * (options.runs // PART) + [options.runs % PART] * bool(options.runs % PART)
        good = [counted(target, part) for target in options.only for part in parts]
        if not all(good):
            sys.exit(1)
    if options.table:
        print(table())


if __name__ == "__main__":
    main()
