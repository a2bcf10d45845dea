"""Run directories as tables."""

import json
import shlex
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd
import torch
import yaml

from ..foreign import Count, ForeignDataError, Message, printable, read, read_json
from ..metrics.functional import pass_at_k
from ..overrides import override
from ..runs.directory import folders_of_options, parsed, read_config, read_provenance

T = TypeVar("T")
LATE = ("seconds/", "throughput/")  # scalars that `ThroughputMonitor` logs one iteration late


class Split(Message):
    """Entry of a split in `data.json`: the fields that the analysis reads."""

    kept: Count
    cautions: tuple[str, ...] | list[str] = ()


class HydraOverrides(Message):
    """Command line of a run."""

    task: list[str]
    hydra: list[str]


class HydraSource(Message):
    """Source of Hydra's options."""

    path: str
    provider: str


class HydraRuntime(Message):
    """Sources of the options of a run."""

    config_sources: list[HydraSource]


class HydraJob(Message):
    """Command of a run, as Hydra recorded it."""

    name: Literal["train", "evaluate"]


class HydraSettings(Message):
    """Hydra's settings of a run: the fields that the analysis reads."""

    overrides: HydraOverrides
    runtime: HydraRuntime | None = None
    """None in records without `runtime`; the command of such a run can't be repeated."""
    job: HydraJob


class HydraRecord(Message):
    """Content of `.hydra/hydra.yaml`."""

    hydra: HydraSettings


@dataclass(frozen=True)
class RunFiles:
    """Run of one method with one seed, and the contents of the run's files."""

    method: str
    seed: int
    path: Path

    def __str__(self) -> str:
        return f"{self.method} seed {self.seed}"

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Table with one row per training iteration and one column per scalar; empty without training."""
        path = self.path / "metrics.csv"
        frame = _read_table(path) if path.exists() else pd.DataFrame()
        if "rollout/reward" not in frame:
            return pd.DataFrame()
        rows = (
            frame.dropna(subset=["rollout/reward"])
            .astype({"step": int})
            .set_index("step")
            .rename_axis("iteration")
        )
        late = frame.groupby("step")[[name for name in frame if str(name).startswith(LATE)]].last()
        return rows.assign(**late.rename(index=lambda step: step - 1))

    @cached_property
    def test(self) -> dict[str, Any]:
        """Summary of each test split, with `pass_at_k` and the counts of every question.

        Raises:
            FileNotFoundError: if the run was not tested yet.
        """
        if (found := self._json("test.json")) is None:
            raise FileNotFoundError(
                f"Expected test.json in {self.path}, but there is none: the run has not finished."
            )
        return dict(found["splits"])

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Averages of each group of splits (`metrics.evaluation.averages`); empty if there are no groups."""
        return dict((self._json("test.json") or {}).get("groups", {}))

    @property
    def training_questions(self) -> int | None:
        """Number of training questions; None if the run has not recorded it."""
        found = self._splits.get("train")
        return found.kept if found else None

    @property
    def warnings(self) -> list[str]:
        """Warnings of the run, first about its questions, then about its first iterations."""
        path = self.path / "warnings.md"
        cautions = [text for split in self._splits.values() for text in split.cautions]
        return [*cautions, *([path.read_text()] if path.exists() else [])]

    @property
    def _splits(self) -> dict[str, Split]:
        return self._read(dict[str, Split], "data.json") or {}

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Sampled evaluations of the run, ordered by iteration; only `test.json` if no others were kept."""
        found = self._kept("[!e]*-*.json") or list(filter(None, [self._json("test.json")]))
        return sorted(
            found, key=lambda evaluation: (evaluation.get("iteration", 0), evaluation.get("stage") == "test")
        )

    @cached_property
    def exact(self) -> list[dict[str, Any]]:
        """Exact evaluations of the run, as in `exact.json`, ordered by iteration; empty if there are none."""
        return self._kept("exact-*.json")

    def examples(self, stage: str, iteration: int) -> dict[str, Any]:
        """Return the kept responses of an evaluation: split → question id → example; empty without a file."""
        return self._json(f"evaluations/examples-{stage}-{iteration:06d}.json") or {}

    def _kept(self, pattern: str) -> list[Any]:
        paths = sorted(
            (self.path / "evaluations").glob(pattern), key=lambda path: (len(path.name), path.name)
        )
        return [self._json(f"evaluations/{path.name}") for path in paths]

    @cached_property
    def ledger(self) -> dict[str, int]:
        """Total prompts, responses (`rollouts`), tokens, updates and iterations of training; 0 without it."""
        nothing = dict.fromkeys(("prompts", "rollouts", "tokens", "updates", "iterations"), 0)
        return self._read(dict[str, Count], "ledger.json") or nothing

    @cached_property
    def diversity(self) -> pd.DataFrame:
        """Table with a row per measured question and pool: iteration, question, pool, responses, distance."""
        path = self.path / "embedding_diversity.csv"
        if not path.exists():
            return pd.DataFrame(columns=["iteration", "question", "pool", "responses", "distance"])
        # A resumed run measures the iterations after its checkpoint again.
        frame = _read_table(path, question=str, pool=str)
        return frame.drop_duplicates(["iteration", "question", "pool"], keep="last")

    @cached_property
    def diagnosis(self) -> Any:
        """Diagnosis of the training questions by `tagrpo-eval diagnose=`; None if there was no diagnosis."""
        return self._json("diagnose/diagnose.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Resolved configuration; empty if no `config.yaml` was written."""
        path = self.path / "config.yaml"
        return read_config(path) if path.exists() else {}

    @cached_property
    def _hydra(self) -> HydraSettings | None:
        """Hydra's record of the command; None if the record is missing or damaged."""
        path = self.path / ".hydra" / "hydra.yaml"
        if not path.exists():
            return None
        try:
            content = parsed(path.read_text(encoding="utf-8"))
            record = read(
                HydraRecord, content, source=str(path), remedy="The command of the run is not shown."
            )
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ForeignDataError) as damage:
            warnings.warn(printable(str(damage)), stacklevel=2)
            return None
        return record.hydra

    @property
    def overrides(self) -> list[str]:
        """Overrides on the run's command line, except the seed; empty if nothing was recorded."""
        task = self._hydra.overrides.task if self._hydra else []
        return [override for override in task if not override.startswith("seed=")]

    @property
    def command(self) -> str | None:
        """Command to repeat this run under a new name; None if Hydra recorded no command or `runtime`."""
        recorded = self._hydra
        if recorded is None or recorded.runtime is None:
            return None
        left_out = ("name=", "resume=", "search=")  # a search is for a sweep, not for one of its runs
        same = [setting for setting in recorded.overrides.task if not setting.startswith(left_out)]
        program = {"train": "tagrpo-train", "evaluate": "tagrpo-eval"}[recorded.job.name]
        name = self.config.get("name", self.method)
        return shlex.join([program, *folders_of_options(recorded), *same, override("name", f"{name}-again")])

    @cached_property
    def provenance(self) -> dict[str, str]:
        """Commit and versions of the run's code; empty if the record is missing or damaged."""
        return read_provenance(self.path)

    @property
    def wall_seconds(self) -> float:
        """Wall-clock seconds of all training iterations."""
        seconds = self.scalar("seconds/iteration")
        return 0.0 if seconds is None else float(seconds.sum())

    def scalar(self, column: str) -> pd.Series | None:
        """Return the values of a scalar by iteration; None if the scalar was not logged."""
        return self.metrics[column].dropna() if column in self.metrics else None

    def counts(self, split: str) -> pd.DataFrame:
        """Return `n` (responses) and `correct` of each question of a test split, indexed by question id."""
        return pd.DataFrame(self.test[split]["questions"]).set_index("id")[["n", "correct"]]

    def pass_at_k(self, split: str, k: int) -> pd.Series:
        """Return unbiased pass@k of each question of a test split, indexed by question id."""
        counts = self.counts(split)
        values = pass_at_k(
            torch.tensor(counts["n"].to_numpy()), torch.tensor(counts["correct"].to_numpy()), k
        )
        return pd.Series(values.numpy(), counts.index)

    def _read(self, kind: type[T], name: str) -> T | None:
        """Read a JSON file of the run directory as an object of class `kind`; return None if it is missing.

        Raises:
            ForeignDataError: if the file is damaged or has other content.
        """
        path = self.path / name
        if not path.exists():
            return None
        remedy = "Put a copy in its place, or move it away: the report goes without it."
        return read_json(kind, path.read_bytes(), source=str(path), remedy=remedy)

    def _json(self, name: str) -> Any:
        """Read a JSON file of the run directory; return None if there is no such file.

        Raises:
            ValueError: if the file is damaged.
        """
        path = self.path / name
        try:
            return json.loads(path.read_text()) if path.exists() else None
        except json.JSONDecodeError as error:
            raise ValueError(
                f"Expected JSON in {path}, but line {error.lineno} is broken. Run it again."
            ) from error


def _read_table(path: Path, **text: type) -> pd.DataFrame:
    """Read a CSV file whose columns are numbers, except the columns in `text`.

    Raises:
        ValueError: if the file is not such a table. The message names the file.
    """
    try:
        return pd.read_csv(path, dtype=defaultdict(lambda: float, text))
    except ValueError as error:
        raise ValueError(
            f"Expected a table in {path}, but it can't be read: {error}. Start the run again."
        ) from error


def find_runs(*roots: Path) -> list[RunFiles]:
    """Return the finished runs below `roots`: the runs of `find_directories` with a `test.json`.

    Raises:
        FileNotFoundError: if no run has finished.
    """
    runs = [run for run in find_directories(*roots) if (run.path / "test.json").exists()]
    if not runs:
        places = ", ".join(map(str, roots))
        raise FileNotFoundError(
            f"Expected a test.json below {places}, but found none: no run there has finished."
        )
    return runs


def find_directories(*roots: Path) -> list[RunFiles]:
    """Return all run directories below `roots` that have a log, responses, or an evaluation.

    Method and seed are `name` and `seed` in the run's `config.yaml`. Without this file, they are read from a
    path that ends with `<method>/seed<k>`; for another path, the method is the last folder, and the seed is
    0. If runs have the same method and seed, the settings in which their commands differ are added to the
    method, or the path if the commands do not differ.

    Raises:
        FileNotFoundError: if a root does not exist, or if there is no run below the roots.
    """
    found: dict[Path, RunFiles] = {}
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(
                f"Expected a run directory, or a folder with some, at {root}, but there is none."
            )
        patterns = ("test.json", "exact.json", "metrics.csv", "rollouts/*.parquet")
        for file in sorted({file for pattern in patterns for file in root.rglob(pattern)}):
            path = file.parent.parent if file.suffix == ".parquet" else file.parent
            found.setdefault(path.resolve(), _identify(path))
    if not found:
        places = ", ".join(map(str, roots))
        raise FileNotFoundError(
            f"Expected {', '.join(patterns)} somewhere below {places}, but found none: nothing was recorded "
            "there. Give the directory of a run of tagrpo-train or tagrpo-eval, or a folder with several."
        )
    return sorted(_told_apart(list(found.values())), key=lambda run: (run.method, run.seed))


def _told_apart(runs: Sequence[RunFiles]) -> Iterator[RunFiles]:
    """Yield the runs; rename runs with equal method and seed by the commands' differences or the paths."""
    for method, alike in by_method(runs).items():
        labels = [method] * len(alike)
        if len({run.seed for run in alike}) < len(alike):
            common = set.intersection(*(set(run.overrides) for run in alike))
            own = [", ".join(o for o in run.overrides if o not in common) for run in alike]
            labels = [f"{method} ({settings})" if settings else method for settings in own]
        often = Counter((label, run.seed) for label, run in zip(labels, alike, strict=True))
        for label, run in zip(labels, alike, strict=True):
            yield replace(run, method=label if often[label, run.seed] == 1 else f"{method} ({run.path})")


def _identify(path: Path) -> RunFiles:
    config, number = RunFiles("", 0, path).config, path.name.removeprefix("seed")
    seed = str(config.get("seed", number))
    name = config.get("name", (path.parent if number.isdecimal() else path).name)
    return RunFiles(str(name), int(seed) if seed.isdecimal() else 0, path)


def evaluations_from(run: RunFiles, start: RunFiles | None) -> list[tuple[RunFiles, Mapping[str, Any]]]:
    """Return the evaluations of a run in the order of iterations, each with the run that made it.

    `start` is the run of the untrained policy. The test of `start` comes first if the run has evaluations but
    was not evaluated before training.
    """
    kept: list[tuple[RunFiles, Mapping[str, Any]]] = [(run, evaluation) for evaluation in run.evaluations]
    if kept and start is not None and all(evaluation.get("iteration", 0) for _, evaluation in kept):
        kept.insert(0, (start, {"splits": start.test, "iteration": 0, "stage": "test"}))
    return kept


def by_method(runs: Iterable[RunFiles], order: Iterable[str] = ()) -> dict[str, list[RunFiles]]:
    """Group runs by method, in the order of `order`; methods missing from `order` come last."""
    groups: dict[str, list[RunFiles]] = {method: [] for method in order}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return {method: seeds for method, seeds in groups.items() if seeds}


def pass_at_k_table(runs: Sequence[RunFiles], split: str, k: int) -> pd.DataFrame:
    """Return a table of unbiased pass@k, with one row per seed and one column per question.

    Raises:
        ValueError: if seeds have different questions.
    """
    table = pd.DataFrame({run.seed: run.pass_at_k(split, k) for run in runs}).T
    if table.isna().any().any():
        odd = ", ".join(map(str, table.columns[table.isna().any()][:5]))
        raise ValueError(
            f"Expected all seeds of {runs[0].method} to be evaluated on the same questions of {split}, but "
            f"only some have {odd}. Evaluate them with the same data settings."
        )
    return table
