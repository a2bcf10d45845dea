"""Numbers of a comparison of methods: estimates, differences, budgets, settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from typing import Any

import pandas as pd

from ..runs.directory import flat, without_copies
from .runs import RunFiles, pass_at_k_table
from .statistics import Comparison, Difference, Estimate, difference, estimate, holm

Runs = Mapping[str, Sequence[RunFiles]]  # method → its runs, one per seed
# split, or `<group> (average)` → method → k → estimate
Curves = Mapping[str, Mapping[str, Mapping[int, Estimate]]]
ZERO_GRADIENT = "zero_gradient/percentage"


class Methods:
    """Methods with their runs, and all numbers that a report needs.

    - `splits`: each test split that is common to all runs → the values of k common to all runs.
    - `groups`: each average that all runs take over the same splits → these splits.
    - `parts`: each split → a list of this split alone; each `<group> (average)` → the splits of the group.

    Raises:
        ValueError: if the methods share no test split.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.trained = {method: seeds for method, seeds in runs.items() if seeds[0].ledger["updates"]}
        # Only evaluations by tagrpo-eval have the setting `diagnose`. They may be of a trained policy.
        self.untrained = [m for m in runs if m not in self.trained and "diagnose" not in runs[m][0].config]
        self.every = [run for seeds in runs.values() for run in seeds]
        common = [split for split in self.every[0].test if all(split in run.test for run in self.every)]
        if not common:
            has = "; ".join(f"{run.path} has {', '.join(run.test)}" for run in self.every[:5])
            raise ValueError(
                f"Expected a test split that all runs have, but {has}. Evaluate all of them on one set."
            )
        ks = {
            split: [{int(k) for k in run.test[split]["pass_at_k"]} for run in self.every] for split in common
        }
        self.splits = {split: sorted(set.intersection(*of_runs)) for split, of_runs in ks.items()}
        found = [{name: group["splits"] for name, group in run.groups.items()} for run in self.every]
        self.groups = {
            name: splits for name, splits in found[0].items() if all(f.get(name) == splits for f in found)
        }
        averages = {f"{group} (average)": splits for group, splits in self.groups.items()}
        self.parts = {split: [split] for split in self.splits} | averages
        self._pass_at_k = cache(lambda split, method, k: pass_at_k_table(self.runs[method], split, k))

    def ks(self, splits: Sequence[str]) -> list[int]:
        """Return the values of k available in all `splits`, ascending."""
        return sorted(set.intersection(*(set(self.splits[split]) for split in splits)))

    @property
    def headline(self) -> tuple[str, int]:
        """Split or average that the first lines of a report are about, and its smallest k.

        The first average is taken if there is one, otherwise the first split.
        """
        part = next((name for name in self.parts if name not in self.splits), next(iter(self.splits)))
        return part, self.ks(self.parts[part])[0]

    @property
    def baseline(self) -> str:
        """Method that others are compared with: an untrained policy, or the first method if there is none."""
        against = {comparison.baseline for comparison in self.comparisons}
        names = [method for method in self.runs if method in against] or list(self.runs)
        return next((method for method in names if method in self.untrained), names[0])

    @property
    def largest_k(self) -> int:
        """Largest k available in all splits."""
        return self.ks(list(self.splits))[-1]

    def _tables(self, splits: Sequence[str], method: str, k: int) -> list[pd.DataFrame]:
        return [self._pass_at_k(split, method, k) for split in splits]

    def _curve(self, splits: Sequence[str], method: str, *, pooled: bool = False) -> dict[int, Estimate]:
        tables = {k: self._tables(splits, method, k) for k in self.ks(splits)}
        return {k: estimate(pd.concat(found, axis=1) if pooled else found) for k, found in tables.items()}

    @cached_property
    def curves(self) -> Curves:
        """Mean pass@k with an interval over questions and seeds: split or average → method → k → estimate."""
        return {name: {m: self._curve(splits, m) for m in self.runs} for name, splits in self.parts.items()}

    @cached_property
    def by_question(self) -> Curves:
        """Mean pass@k as in `curves`, but with equal weights for all questions of a group.

        Groups are called `<group> (by question)`.
        """
        return {
            f"{group} (by question)": {m: self._curve(splits, m, pooled=True) for m in self.runs}
            for group, splits in self.groups.items()
        }

    def at(self, k: int) -> dict[str, dict[str, Estimate]]:
        """Return the mean pass@k at `k`: split or average → method → estimate."""
        return {
            name: {method: points[k] for method, points in ms.items()} for name, ms in self.curves.items()
        }

    def gains(self, baseline: str) -> Curves:
        """Return the paired differences from `baseline`, in the form of `curves`.

        Methods that share no seed with `baseline` are left out.
        """
        others = [m for m in self.runs if m != baseline and self._share_a_seed(m, baseline)]
        return {
            name: {
                m: {k: self.difference(splits, m, baseline, k).estimate for k in self.ks(splits)}
                for m in others
            }
            for name, splits in self.parts.items()
        }

    def difference(self, splits: Sequence[str], method: str, baseline: str, k: int) -> Difference:
        """Return the paired difference of two methods in the mean pass@k over `splits`."""
        return difference(self._tables(splits, method, k), self._tables(splits, baseline, k))

    @cached_property
    def budgets(self) -> pd.DataFrame:
        """Mean budget of each method over seeds: the columns of `RunFiles.ledger`, and `seconds`."""
        used = {
            method: pd.DataFrame([{**run.ledger, "seconds": run.wall_seconds} for run in seeds]).mean()
            for method, seeds in self.runs.items()
        }
        return pd.DataFrame(used).T

    @cached_property
    def training_questions(self) -> dict[str, int]:
        """Number of training questions of each trained method, if the method's first run recorded it."""
        found = {method: seeds[0].training_questions for method, seeds in self.trained.items()}
        return {method: number for method, number in found.items() if number}

    @property
    def data_series(self) -> list[list[str]]:
        """Lists of methods that differ only in their training questions, with the fewest questions first.

        A method that differs from all others in another setting too is a list of its own. The result is empty
        if the number of questions of a trained method is unknown.
        """
        if self.training_questions.keys() < self.trained.keys():
            return []
        alike: dict[str, list[str]] = {}
        for method in sorted(self.training_questions, key=self.training_questions.__getitem__):
            settings = _settings(self.trained[method][0])
            same = {name: value for name, value in settings.items() if not name.startswith("data.train.")}
            alike.setdefault(repr(sorted(same.items())), []).append(method)
        return list(alike.values())

    @cached_property
    def zero_gradient(self) -> dict[str, pd.DataFrame]:
        """Percentages of questions without gradient: method → table [seeds, iterations].

        A table has the seeds that logged the percentage, and the iterations that all of these seeds have.
        """
        logged = {m: {run.seed: run.scalar(ZERO_GRADIENT) for run in seeds} for m, seeds in self.runs.items()}
        known = {
            m: {seed: x for seed, x in of_seeds.items() if x is not None} for m, of_seeds in logged.items()
        }
        return {method: pd.DataFrame(of_seeds).T.dropna(axis=1) for method, of_seeds in known.items()}

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Comparisons of each method with every earlier method, with p-values corrected for their number.

        Only methods that share a seed are compared. An untrained policy comes before all other methods. The
        compared quantities are pass@k at the smallest and the largest k of every split and average, and the
        share of questions without gradient. The share is paired over iterations, because runs with the same
        seed have the same questions in an iteration.
        """
        names = sorted(self.runs, key=lambda method: method not in self.untrained)
        made = [
            ((method, baseline, quantity), found)
            for later, method in enumerate(names)
            for baseline in names[:later]
            if self._share_a_seed(method, baseline)
            for quantity, found in self._differences(method, baseline)
        ]
        p_values = holm([found.p_value for _, found in made])
        return [Comparison(*of, d.estimate, p, d.seeds) for (of, d), p in zip(made, p_values, strict=True)]

    def _share_a_seed(self, *methods: str) -> bool:
        return bool(set.intersection(*({run.seed for run in self.runs[method]} for method in methods)))

    def _differences(self, method: str, baseline: str) -> Iterator[tuple[str, Difference]]:
        for name, splits in self.parts.items():
            ks = self.ks(splits)
            for k in sorted({ks[0], ks[-1]}):
                yield f"pass@k/{name}/{k}", self.difference(splits, method, baseline, k)
        zero, other = (self.zero_gradient[name] / 100 for name in (method, baseline))
        shared = zero.columns.intersection(other.columns)
        if len(shared):
            yield ZERO_GRADIENT, difference(zero[shared], other[shared])

    def results(self) -> dict[str, Any]:
        """Return runs, means over seeds, and comparisons as plain data; non-finite numbers become None."""
        results = {
            "runs": [
                {
                    "method": run.method,
                    "seed": run.seed,
                    "path": str(run.path),
                    "splits": {
                        split: {name: value for name, value in test.items() if name != "questions"}
                        for split, test in run.test.items()
                    },
                    "budget": run.ledger,
                    "seconds": run.wall_seconds,
                    "provenance": run.provenance,
                }
                for run in self.every
            ],
            "pass_at_k": {split: self.curves[split] for split in self.splits},
            "averages": {
                group: {
                    "splits": splits,
                    "pass_at_k": self.curves[f"{group} (average)"],
                    "by_question": self.by_question[f"{group} (by question)"],
                }
                for group, splits in self.groups.items()
            },
            "comparisons": [asdict(found) | {"verdict": found.verdict} for found in self.comparisons],
        }
        return dict(finite(results))

    def differing_settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings that differ between the first runs of trained methods: name → method → value.

        The name of the run, the seed, paths inside the run directory, and settings that repeat a setting
        with a shorter name are left out.
        """
        settings = {method: _settings(seeds[0]) for method, seeds in self.trained.items()}
        names = {name for found in settings.values() for name in found}
        rows = {name: {method: found.get(name) for method, found in settings.items()} for name in names}
        differ = {
            name: row
            for name, row in rows.items()
            if any(x != next(iter(row.values())) for x in row.values())
        }
        return without_copies(differ)


def finite(value: Any) -> Any:
    """Convert `value` for JSON: an estimate becomes a mapping; an infinite number or NaN becomes None."""
    if isinstance(value, Estimate):
        return finite(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(run: RunFiles) -> dict[str, Any]:
    """Return the settings of a run, flat, without the name, the seed and paths inside the run directory."""
    settings = flat(run.config)
    home = str(settings.get("trainer.default_root_dir", "\0"))
    return {n: x for n, x in settings.items() if n not in ("name", "seed") and not str(x).startswith(home)}
