"""How many small faults the tests notice: every module of the core, changed in one place at a time.

    python scripts/mutation_score.py                       all modules, whatever earlier runs have left undone
    python scripts/mutation_score.py --only packing        one of them
    python scripts/mutation_score.py --table               the figures of what has been run

cosmic-ray makes the changes, pytest runs in this process. The tests are collected once; for every mutant this process
forks, the child puts the changed code into the modules that are already loaded and runs the tests that reach the
changed statement until one fails. No file of the package is touched. A mutant that needs ten times the CPU seconds of
its tests counts as noticed.

Outcomes are appended to `runs/mutation/<module>.jsonl`, one line for each mutant, so that an interrupted run goes on
where it stopped; survivors are tried again. Those that are the same program as the original stand in
`mutation_survivors.yaml` with the reason.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "runs" / "mutation"
SURVIVORS = Path(__file__).with_name("mutation_survivors.yaml")
SLOW = 3.0
"""CPU seconds; slower tests run only for statements that no faster one reaches."""


@dataclass(frozen=True)
class Part:
    """Files to change, and tests that may notice."""

    files: Sequence[str]
    tests: Sequence[str]


DOCTESTS = "tests/test_doctests.py"
PARTS = {
    "functional": Part(
        ["src/metrics/functional/*.py"], ["tests/metrics", "tests/analysis/test_difficulty.py", DOCTESTS]
    ),
    "packing": Part(
        ["src/modules/policy/packing.py", "src/modules/policy/layouts.py"],
        ["tests/modules/policy/test_packing.py", "tests/modules/policy/test_attention.py", DOCTESTS],
    ),
    "head": Part(
        ["src/modules/policy/chunked_head.py", "src/modules/policy/logit_chunks.py"],
        ["tests/modules/policy/test_chunked_head.py", "tests/modules/policy/test_logit_chunks.py", DOCTESTS],
    ),
    "extraction": Part(["src/rewards/extraction.py"], ["tests/rewards", DOCTESTS]),
    "statistics": Part(["src/analysis/statistics.py"], ["tests/analysis/test_statistics.py", DOCTESTS]),
    "advantages": Part(
        ["src/modules/advantages/*.py", "src/contrib/*/advantage.py"],
        ["tests/modules/advantages", "tests/contrib", DOCTESTS],
    ),
    "losses": Part(["src/modules/losses.py", "src/modules/surrogates.py"], ["tests/modules/test_losses.py", DOCTESTS]),
    "update": Part(
        ["src/modules/experience.py", "src/modules/update.py"],
        [
            "tests/modules/test_experience.py",
            "tests/modules/test_update.py",
            "tests/modules/test_update_staleness.py",
            "tests/modules/test_update_credit.py",
            "tests/modules/test_mismatch.py",
            DOCTESTS,
        ],
    ),
    "credit": Part(
        ["src/modules/credit/*.py", "src/contrib/*/credit.py", "src/modules/corrections.py", "src/modules/mismatch.py"],
        [
            "tests/contrib",
            "tests/modules/test_mismatch.py",
            "tests/modules/test_update_credit.py",
            "tests/modules/test_update_staleness.py",
            DOCTESTS,
        ],
    ),
    "memory": Part(["src/datamodules/memory.py"], ["tests/datamodules/test_memory.py", DOCTESTS]),
    "replay": Part(["src/rollouts/replay.py"], ["tests/rollouts/test_replay.py", DOCTESTS]),
}
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


@dataclass(frozen=True)
class Mutant:
    """One change of one file. Equal changes of equal lines of a function are told apart by `nth`."""

    file: str
    where: str
    """Function or class, or empty."""
    old: str
    """The line, stripped."""
    new: str
    nth: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from all others, while other lines of the file change."""
        return tuple(asdict(self).values())


def mutants(path: Path) -> Iterator[tuple[Mutant, int, str]]:
    """Every mutant of a file, with the number of its line and the changed source. Annotations are left alone."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = path.read_text()
    annotated = [part for node in ast.walk(tree_of(source)) for part in annotations(node)]
    seen: Counter[tuple[str, str, str]] = Counter()
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        for occurrence in range(10**6):
            changed = mutate_code(source, operator, occurrence)
            if changed is None:
                break
            before, after = source.splitlines(), changed.splitlines()
            line = next(i for i, (a, b) in enumerate(zip([*before, ""], [*after, "end"], strict=False), 1) if a != b)
            pair = f"{before[line - 1]}\0", after[line - 1]
            column = next(i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b)
            if (
                not compiles(changed) or after[line - 1].strip() == "/,"
            ):  # the bare star of a signature multiplies nothing
                continue
            if any((n.lineno, n.col_offset) <= (line, column) < (n.end_lineno, n.end_col_offset) for n in annotated):
                continue
            new = after[line - 1].strip() if len(before) == len(after) else "(removed)"
            identity = (where(source, line), before[line - 1].strip(), new)
            seen[identity] += 1
            yield Mutant(str(path.relative_to(ROOT)), *identity, seen[identity]), line, changed


def compiles(source: str) -> bool:
    """Whether a change left a program at all: `{**a}` without a star is none."""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def annotations(node: ast.AST) -> list[Any]:
    """The annotations that belong to a node; `from __future__ import annotations` keeps them from being evaluated."""
    return [part for name in ("annotation", "returns") if (part := getattr(node, name, None)) is not None]


@lru_cache
def tree_of(source: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(source)


def where(source: str, line: int) -> str:
    """The dotted name of the function or class that a line stands in."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    holding = [n for n in ast.walk(tree_of(source)) if isinstance(n, kinds) and first_line(n) <= line <= n.end_lineno]
    return ".".join(node.name for node in sorted(holding, key=first_line))


def first_line(node: Any) -> int:
    """The line of a statement, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def statement_lines(source: str, line: int) -> range | None:
    """The lines that are executed when the statement at `line` is; None for what runs when the module is loaded."""
    tree = tree_of(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and first_line(n) <= line <= n.end_lineno]
    if not functions:
        return None
    inner = max(functions, key=first_line)
    if line < inner.body[0].lineno:  # a default or a decorator: whoever calls the function sees it
        return range(inner.body[0].lineno, inner.end_lineno + 1)
    found = range(inner.body[0].lineno, inner.end_lineno + 1)
    for node in ast.walk(inner):
        if isinstance(node, ast.stmt) and node is not inner:
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            if node.lineno <= line <= last and last - node.lineno <= len(found):
                found = range(node.lineno, last + 1)
    return found


def put_into(module: types.ModuleType, source: str) -> None:
    """Make a loaded module behave as if it had been loaded from `source`, wherever its parts are in use."""
    changed = types.ModuleType(module.__name__)
    changed.__dict__.update(__file__=module.__file__, __package__=module.__package__, __spec__=module.__spec__)
    sys.modules[module.__name__] = changed  # dataclasses look their module up
    try:
        exec(compile(source, str(module.__file__), "exec"), changed.__dict__)
    except Exception as error:
        raise ImportError(type(error).__name__) from error
    finally:
        sys.modules[module.__name__] = module
    seen: set[int] = set()
    for name, new in list(vars(changed).items()):
        old = vars(module).get(name)
        if name.startswith("__") or getattr(new, "__module__", module.__name__) != module.__name__:
            continue
        if not rewritten(old, new, seen):
            users = [m for n, m in list(sys.modules.items()) if n.startswith(("tagrpo", "test_", "tests"))]
            for user in [module, *users]:
                if name in vars(user) and vars(user)[name] is old:
                    setattr(user, name, new)


def rewritten(old: Any, new: Any, seen: set[int]) -> bool:
    """Give the object `old` the code of `new`; False where it must be replaced instead."""
    if isinstance(old, types.FunctionType) and isinstance(new, types.FunctionType):
        inner_old, inner_new = getattr(old, "__wrapped__", None), getattr(new, "__wrapped__", None)
        if old.__code__.co_freevars != new.__code__.co_freevars or (inner_old is None) != (inner_new is None):
            return False
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        return inner_old is None or rewritten(inner_old, inner_new, seen)
    if isinstance(old, type) and isinstance(new, type):
        if id(old) not in seen:  # classes may hold each other, as autograd's do
            seen.add(id(old))
            for name in {*vars(old), *vars(new)} - {"__dict__", "__weakref__", "__doc__", "__module__"}:
                rewrite_attribute(old, name, vars(old).get(name), vars(new).get(name), seen)
        return True
    return False


def rewrite_attribute(owner: type, name: str, old: Any, new: Any, seen: set[int]) -> None:
    """Give a class the attribute of its changed double."""
    if type(old) is not type(new):
        with suppress(AttributeError, TypeError):
            delattr(owner, name) if new is None else setattr(owner, name, new)
    elif isinstance(old, property):
        for one, other in ((old.fget, new.fget), (old.fset, new.fset)):
            rewritten(one, other, seen)
    elif isinstance(old, staticmethod | classmethod):
        if not rewritten(old.__func__, new.__func__, seen):
            setattr(owner, name, new)
    elif (
        not rewritten(old, new, seen) and not name.startswith("__") and not isinstance(old, types.MemberDescriptorType)
    ):
        with suppress(AttributeError, TypeError):
            setattr(owner, name, new)


class Mutation:
    """A pytest plugin that runs the tests against mutants instead of the package."""

    def __init__(self, part: str, explained: set[tuple[Any, ...]], again: bool) -> None:
        self.part, self.explained, self.again = part, explained, again

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure which test reaches which line, then try every mutant."""
        files = [path for pattern in PARTS[self.part].files for path in sorted(ROOT.glob(pattern))]
        modules = {path: importlib.import_module(module_name(path)) for path in files}
        items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()
        reached, seconds = in_child(lambda: measured(items, files), limit=3600)
        kills: Counter[str] = Counter()
        done = {} if self.again else outcomes(self.part)
        for path in files:
            for mutant, line, changed in mutants(path):
                if mutant.key in self.explained or done.get(mutant.key, {}).get("noticed"):
                    continue
                tests = reaching(reached[str(path)], statement_lines(path.read_text(), line), seconds)
                tests.sort(key=lambda name: (-kills[name], seconds[name]))
                limit = 10 + 10 * sum(seconds[name] for name in tests)
                by = (
                    ""
                    if not tests
                    else in_child(
                        lambda c=changed, m=modules[path], t=tests: first_failure(m, c, [items[name] for name in t]),
                        limit,
                    )
                )
                kills[by] += bool(by)
                record(self.part, mutant, by, tests=len(tests))
                if not by:
                    print(
                        f"survived ({len(tests)} tests)  {mutant.file}:{line}  {mutant.old}  ->  {mutant.new}",
                        flush=True,
                    )
        return True


def module_name(path: Path) -> str:
    """The name under which a file of the package is imported."""
    return ".".join(["tagrpo", *path.relative_to(ROOT / "src").with_suffix("").parts]).removesuffix(".__init__")


def in_child(work: Any, limit: float) -> Any:
    """What `work` returns in a fork of this process; why there is no result where it ended otherwise."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        seconds = int(time.process_time() + limit) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(int(20 * limit) + 60)  # for one that waits for ever
        try:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(work(), pipe)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(process, 0)
    if status == 0 and answer:
        return pickle.loads(answer)  # our own child's
    return f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else ""


def measured(
    items: Mapping[str, Any], files: Sequence[Path]
) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """File → line → tests that pass and reach it; and the CPU seconds of each test."""
    import coverage

    recorder = coverage.Coverage(data_file=None, include=[str(path) for path in files], config_file=False)
    recorder.start()
    seconds = {}
    for name, item in items.items():
        recorder.switch_context(name)
        began = time.process_time()
        if passes(item, None):
            seconds[name] = time.process_time() - began
    recorder.stop()
    found = {}
    for path in files:
        lines = recorder.get_data().contexts_by_lineno(str(path))
        found[str(path)] = {line: [name for name in names if name in seconds] for line, names in lines.items()}
    return found, seconds


def passes(item: Any, following: Any) -> bool:
    """Run one test."""
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def reaching(lines: Mapping[int, Sequence[str]], statement: range | None, seconds: Mapping[str, float]) -> list[str]:
    """The tests that reach a statement, slow ones only where there are no others."""
    found = {name for line, names in lines.items() if statement is None or line in statement for name in names}
    return [name for name in found if seconds[name] <= SLOW] or sorted(found, key=seconds.__getitem__)[:2]


def first_failure(module: types.ModuleType, source: str, items: Sequence[Any]) -> str:
    """The name of the first test that fails with the changed source; empty if all pass."""
    try:
        put_into(module, source)
    except ImportError as error:
        return f"import: {error}"
    for item, following in zip(items, [*items[1:], None], strict=True):
        if not passes(item, following):
            return str(item.nodeid)
    return ""


def record(part: str, mutant: Mutant, by: str, tests: int) -> None:
    """Append an outcome."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{part}.jsonl").open("a") as file:
        file.write(json.dumps({**asdict(mutant), "noticed": by, "tests": tests}) + "\n")


def outcomes(part: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Mutant → its last outcome."""
    path = RESULTS / f"{part}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {Mutant(row["file"], row["where"], row["old"], row["new"], row["nth"]).key: row for row in rows}


def explained() -> dict[tuple[Any, ...], str]:
    """Mutant → why it is the same program; an entry without `nth` means all that read alike."""
    found = {}
    for entry in yaml.safe_load(SURVIVORS.read_text()) if SURVIVORS.exists() else []:
        for file, where, old, new, *nth in entry["mutants"]:
            for number in nth or range(1, 9):
                found[Mutant(file, where, old, new, number).key] = entry["reason"]
    return found


def table(parts: Sequence[str]) -> str:
    """Markdown: module, mutants, noticed, explained, command. Only mutants of the present source count."""
    rows = [
        "| module | mutants | noticed | same program | unnoticed | score | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in parts:
        same, seen, counts = explained(), outcomes(part), defaultdict(int)
        for pattern in PARTS[part].files:
            for path in sorted(ROOT.glob(pattern)):
                for mutant, _, _ in mutants(path):
                    noticed = seen.get(mutant.key, {}).get("noticed")
                    counts["same" if mutant.key in same else "noticed" if noticed else "unnoticed"] += 1
        total = sum(counts.values())
        score = 100 * counts["noticed"] / max(1, total - counts["same"])
        cells = (total, counts["noticed"], counts["same"], counts["unnoticed"], f"{score:.1f} %")
        command = f"`python scripts/mutation_score.py --only {part}`"
        rows.append(f"| `{'`, `'.join(PARTS[part].files)}` | {' | '.join(map(str, cells))} | {command} |")
    return "\n".join(rows)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts of the package")
    parser.add_argument("--again", action="store_true", help="forget earlier outcomes")
    parser.add_argument("--table", action="store_true", help="print the figures, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(options.only))
        return
    if len(options.only) > 1:  # one process each: the tests of one part are collected, and it forks
        for part in options.only:
            again = ["--again"] if options.again else []
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, "--only", part, *again])
        print(table(options.only))
        return
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
    os.chdir(ROOT)
    (part,) = options.only
    plugin = Mutation(part, set(explained()), options.again)
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *PARTS[part].tests], plugins=[plugin])


if __name__ == "__main__":
    main()
