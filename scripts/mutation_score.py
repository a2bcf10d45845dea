"""How many small faults the tests notice: every module of the core, changed in one place at a time.

    python scripts/mutation_score.py                       all modules, whatever earlier runs have left undone
    python scripts/mutation_score.py --only packing        one of them

cosmic-ray makes the changes. For every mutant this process forks, before it has imported the package; the child imports
the changed source in the place of the file, and runs the tests of the module until one fails, those of the same name
first, then the shortest. No file is touched. A mutant that needs over twice the CPU seconds of all its tests counts as
noticed.

Outcomes are appended to `runs/mutation/<module>.jsonl`, so that an interrupted run goes on where it stopped; survivors
are tried again. Those that are the same program as the original stand in `mutation_survivors.yaml` with the reason.
"""

import argparse
import ast
import doctest
import importlib
import json
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "runs" / "mutation"
SURVIVORS = Path(__file__).with_name("mutation_survivors.yaml")
PARTS = {
    "functional": ("metrics/functional/*.py", "metrics analysis/test_rollouts.py"),
    "packing": (
        "packing/tree.py packing/batch.py",
        "packing/test_tree.py packing/test_batch.py packing/test_attention.py modules/test_shared_gradients.py",
    ),
    "head": ("packing/head.py", "packing/test_head.py packing/test_head_costs.py"),
    "extraction": ("rewards/extraction.py rewards/canonical.py", "rewards"),
    "statistics": ("analysis/statistics.py", "analysis/test_statistics.py"),
    "advantages": ("modules/advantages/*.py contrib/*/advantage.py", "modules/advantages contrib"),
    "losses": ("modules/losses.py", "modules/test_losses.py"),
    "update": (
        "modules/experience.py modules/update.py",
        "modules/test_experience.py modules/test_update.py modules/test_update_staleness.py "
        "modules/test_update_credit.py modules/test_mismatch.py",
    ),
    "credit": (
        "modules/credit/*.py contrib/*/credit.py modules/mismatch.py",
        "contrib modules/test_mismatch.py modules/test_update_credit.py modules/test_update_staleness.py",
    ),
    "memory": ("datamodules/memory.py", "datamodules/test_memory.py"),
    "replay": ("contrib/exgrpo/replay.py", "contrib/exgrpo/test_replay.py"),
}
"""Name → files of src to change, tests that may notice; the examples of the file may, too."""
LEFT_OUT = "tests/contrib/test_folders.py"
"""Tests of which files exist, not of what is in them."""
COMPARISONS = "Eq_NotEq NotEq_Eq Lt_LtE Lt_Gt LtE_Lt LtE_GtE Gt_GtE Gt_Lt GtE_Gt GtE_LtE Is_IsNot IsNot_Is"
BINARY = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div Mod_Mul Pow_Mul BitOr_BitAnd BitAnd_BitOr"
OPERATORS = [
    *("NumberReplacer", "AddNot", "ZeroIterationForLoop", "ExceptionReplacer", "RemoveDecorator"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *(f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Not", "Invert")),
    *(f"ReplaceComparisonOperator_{name}" for name in COMPARISONS.split()),
    *(f"ReplaceBinaryOperator_{name}" for name in BINARY.split()),
]


class Mutant(NamedTuple):
    """One change of one file, whatever its other lines are. Equal ones in a function are told apart by `nth`."""

    file: str
    where: str
    """Function or class, or empty."""
    old: str
    """The line, stripped."""
    new: str
    nth: int


def mutants(path: Path) -> Iterator[tuple[Mutant, int, str]]:
    """Every mutant of a file, with the number of its line and the changed source. Annotations are left alone."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = path.read_text()
    parts = [
        getattr(node, name, None) for node in ast.walk(tree_of(source)) for name in ("annotation", "returns")
    ]
    annotated: list[Any] = [part for part in parts if part is not None]  # they are never evaluated
    seen: Counter[tuple[str, str, str]] = Counter()
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        for occurrence in range(10**6):
            changed = mutate_code(source, operator, occurrence)
            if changed is None:
                break
            before, after = source.splitlines(), changed.splitlines()
            line = next(
                i for i, (a, b) in enumerate(zip([*before, ""], [*after, "end"], strict=False), 1) if a != b
            )
            pair = f"{before[line - 1]}\0", after[line - 1]
            column = next(i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b)
            if after[line - 1].strip() == "/,":  # the bare star of a signature
                continue
            try:  # `{**a}` without a star is no program
                compile(changed, "mutant", "exec")
            except SyntaxError:
                continue
            if any(
                (n.lineno, n.col_offset) <= (line, column) < (n.end_lineno, n.end_col_offset)
                for n in annotated
            ):
                continue
            new = after[line - 1].strip() if len(before) == len(after) else "(removed)"
            identity = (where(source, line), before[line - 1].strip(), new)
            seen[identity] += 1
            yield Mutant(str(path.relative_to(ROOT)), *identity, seen[identity]), line, changed


tree_of = lru_cache(ast.parse)
"""Source of a file → its syntax tree."""


def where(source: str, line: int) -> str:
    """The dotted name of the function or class that a line stands in."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    holding = [
        n for n in ast.walk(tree_of(source)) if isinstance(n, kinds) and first_line(n) <= line <= n.end_lineno
    ]
    return ".".join(node.name for node in sorted(holding, key=first_line))


def first_line(node: Any) -> int:
    """The line of a statement, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


class Order:
    """A pytest plugin: runs tests in the order of `seconds`, remembers how long each took and the first that fails."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.took: dict[str, float] = {}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the shortest tests first."""
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember."""
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Outcome(NamedTuple):
    """What came of the tests."""

    failed: str
    """The first test that failed, or how the process ended. Empty if all passed."""
    seconds: dict[str, float]
    """Test → its duration."""


def run_tests(
    stages: Sequence[Sequence[str]], path: Path, source: str, limit: float, seconds: dict[str, float]
) -> Outcome:
    """Run the stages of tests, in a process where `path` reads `source`, until one test fails.

    Args:
        stages: arguments of pytest. A name of a module stands for the examples in its docstrings.
        path: a file of the package.
        source: what is imported in its place.
        limit: CPU seconds.
        seconds: test → its duration; shorter ones run first.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + limit) + 1,) * 2)
        signal.alarm(int(20 * limit) + 60)  # for one that waits for ever
        loaded = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> Any:
            return compile(source, loader.path, "exec") if Path(loader.path) == path else loaded(loader, name)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
        with open(os.devnull, "w") as silent:
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
        outcome = Outcome("", {})
        for stage in stages:
            if not outcome.failed:
                outcome = run_stage(stage, outcome.seconds, seconds)
        os.write(writer, json.dumps(outcome).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        written = pipe.read()
    _, status = os.waitpid(child, 0)
    return Outcome(f"ended by {status}", {}) if status else Outcome(*json.loads(written))


def run_stage(stage: Sequence[str], took: dict[str, float], seconds: dict[str, float]) -> Outcome:
    """Run one stage in this process; add its durations to `took`."""
    if stage[0].startswith("tagrpo."):
        try:
            failed = doctest.testmod(importlib.import_module(stage[0])).failed
        except Exception as error:
            return Outcome(f"import: {type(error).__name__}", took)
        return Outcome(f"examples of {stage[0]}" if failed else "", took)
    plugin = Order(seconds)
    code = pytest.main(["-xq", "-p", "no:cacheprovider", f"--ignore={LEFT_OUT}", *stage], plugins=[plugin])
    failed = plugin.failed or (f"pytest ended with {code}" if code else "")
    return Outcome(failed, {**took, **plugin.took})


def stages_of(path: Path, tests: Sequence[str]) -> list[list[str]]:
    """The examples in a file, then the tests that mirror it, then all tests of its part."""
    inside = path.relative_to(ROOT / "src")
    module = ".".join(["tagrpo", *inside.with_suffix("").parts]).removesuffix(".__init__")
    mirrored = ROOT / "tests" / inside.with_name(f"test_{inside.name}")
    if not mirrored.exists():
        mirrored = mirrored.parent
    stages = [[module], list(tests)]
    if mirrored.exists():
        stages.insert(1, [str(mirrored.relative_to(ROOT))])
    return stages


def score(part: str) -> None:
    """Try every mutant of a part that is neither explained nor noticed yet; append what came of it to its results."""
    import lightning.pytorch  # noqa: F401 - forks inherit what is imported here, and import the package itself
    import transformers  # noqa: F401
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
    same = explained()
    done = outcomes(part)
    tests = [f"tests/{name}" for name in PARTS[part][1].split()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    unchanged = run_tests([tests], ROOT, "", 3600, {})
    if unchanged.failed:
        raise RuntimeError(f"Expected the tests of {part} to pass, but {unchanged.failed}.")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = 30 + 2 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{part}.jsonl").open("a", buffering=1) as file:
        for path in files_of(part):
            for mutant, line, source in mutants(path):
                if mutant in same or done.get(mutant):
                    continue
                by = run_tests(stages_of(path, tests), path, source, limit, unchanged.seconds).failed
                print(json.dumps({**mutant._asdict(), "noticed": by}), file=file)
                if not by:
                    print(f"survived  {mutant.file}:{line}  {mutant.old}  ->  {mutant.new}", flush=True)


def files_of(part: str) -> list[Path]:
    """Files to change."""
    return [path for pattern in PARTS[part][0].split() for path in sorted((ROOT / "src").glob(pattern))]


def outcomes(part: str) -> dict[tuple[Any, ...], str]:
    """Mutant → the test that noticed it last, empty where none did."""
    path = RESULTS / f"{part}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {tuple(row[name] for name in Mutant._fields): row["noticed"] for row in rows}


def explained() -> set[tuple[Any, ...]]:
    """Mutants that are the same program; an entry without `nth` means all that read alike."""
    entries = [mutant for entry in yaml.safe_load(SURVIVORS.read_text()) for mutant in entry["mutants"]]
    return {(*mutant[:4], number) for mutant in entries for number in mutant[4:] or range(1, 9)}


def row_of(part: str) -> str:
    """The figures of a part, in Markdown. Only mutants of the present source count."""
    same, seen, counts = explained(), outcomes(part), Counter[str]()
    for path in files_of(part):
        for mutant, _, _ in mutants(path):
            counts["same" if mutant in same else "noticed" if seen.get(mutant) else "unnoticed"] += 1
    share = 100 * counts["noticed"] / max(1, counts["noticed"] + counts["unnoticed"])
    cells = (counts.total(), counts["noticed"], counts["same"], counts["unnoticed"], f"{share:.1f} %")
    command = f"`python scripts/mutation_score.py --only {part}`"
    shown = ", ".join(f"`src/{pattern}`" for pattern in PARTS[part][0].split())
    return f"| {shown} | {' | '.join(map(str, cells))} | {command} |"


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts of the package")
    options = parser.parse_args()
    os.chdir(ROOT)
    for part in options.only:
        score(part)
    print(
        "| module | mutants | noticed | same program | unnoticed | score | command |",
        "|---" * 7 + "|",
        sep="\n",
    )
    print(*map(row_of, options.only), sep="\n")


if __name__ == "__main__":
    main()
