"""Learning signal in a run's training questions, by checkpoint (TA-GRPO, Figs. 3 and 4).

`tagrpo-eval diagnose=<run>` measures the signal and writes it to `<run>/diagnose/diagnose.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..metrics.functional import t_intervals

COLUMNS = {
    "uniform_reward/original": "equal rewards, original (G)",
    "uniform_reward/rephrasings": "rephrasings (N·G)",
    "uniform_reward/rephrasings_matched": "G of the rephrasings",
    "uniform_reward/pool": "all ((N+1)·G)",
    "embedding_distance/original": "distance, original",
    "embedding_distance/rephrasings": "distance, rephrasings",
    "correct/original": "correct, original",
    "correct/rephrasings": "correct, rephrasings",
}
"""Metric → title of its column. Distances are from 0 to 2; all other metrics are percentages."""
CELL = "{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
NOTE = (
    "In percent of the training questions, with 95 % t-intervals over them. Equal rewards give GRPO no "
    "gradient; more responses are less often equal for their number alone, so that G of the N·G are "
    "compared too. A distance is the mean of 1 − cosine over pairs of responses, whose expectation does not "
    "depend on their number."
)


def summarised(questions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean and the 95 % interval of each metric over questions.

    A metric's entry has `value` (the mean), `low`, `high`, and `n`, the number of questions that have the
    metric. `questions` are rows of `TrainingSignal`.

    >>> rows = [{"id": "a", "correct/original": 25.0, "correct/rephrasings": 50.0}, {"correct/original": 5.0}]
    >>> [(x["value"], x["n"]) for x in summarised(rows).values()]
    [(15.0, 2), (50.0, 1)]
    """
    columns = {name: [row[name] for row in questions if name in row] for name in COLUMNS}
    return {
        name: {
            **t_intervals(torch.tensor(values, dtype=torch.float64)[:, None])[0]._asdict(),
            "n": len(values),
        }
        for name, values in columns.items()
        if values
    }


def table_of(diagnosis: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of a diagnosis: its header, and one row per checkpoint."""
    names = [name for name in COLUMNS if any(name in point["metrics"] for point in diagnosis["checkpoints"])]
    rows = []
    for point in diagnosis["checkpoints"]:
        found = point["metrics"]
        shown = []
        for name in names:
            digits = 3 if "distance" in name else 1
            shown.append(CELL.format(**found[name], digits=digits) if name in found else "–")
        rows.append([stage_name(point), *shown, str(len(point["questions"]))])
    return ["training", *(COLUMNS[name] for name in names), "questions"], rows


def stage_name(point: Mapping[str, Any]) -> str:
    """Describe the progress of training at a checkpoint.

    >>> stage_name({"iteration": 0, "share": 0.0}), stage_name({"iteration": 12, "share": 0.25})
    ('base', '25 %')
    """
    return f"{100 * point['share']:.0f} %" if point["iteration"] else "base"
