"""Three telling questions of a run: one rescued by pooling, one lost in training, one never solved."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.runs import RunFiles, evaluations_from
from .blocks import Responses

Telling = dict[str, Any]
"""JSON of one question: `kind`, `said` (a sentence), and where the question is found.

A question of training has `iteration`, and its index `question` among the recorded questions. A question of
an evaluation has `split`, `id`, and the evaluations `before` and `after`, with `iteration`, `n`, `correct`,
`prompt` and `responses`.
"""
KINDS = {
    "rescued": "Rescued by pooling",
    "lost": "Lost in training",
    "unsolved": "Never solved",
}


def telling(run: RunFiles, own: Responses | None, start: RunFiles | None = None) -> list[Telling]:
    """Return an entry for each kind of question in `KINDS`.

    An entry describes a question of this kind, or says in a sentence why the run has no such question. `own`
    has the run's recorded responses, and `start` is the run of the untrained policy with the same seed.
    """
    cells = None if own is None else cells_of(own)
    kept = _lost_in_evaluation(run, start)
    lost = kept if kept is not None and "prompt" in kept["after"] else None
    if lost is None and cells is not None:
        lost = _lost_in_training(cells)
    unsolved = _unsolved(cells) if cells is not None else None
    found = [
        _rescued(cells) if cells is not None else None,
        lost or kept,
        unsolved or _unsolved_in_evaluation(run, start),
    ]
    return [
        {"kind": title, "said": _without(kind, cells)} if one is None else {"kind": title, **one}
        for (kind, title), one in zip(KINDS.items(), found, strict=True)
    ]


def cells_of(own: Responses) -> pd.DataFrame:
    """Return a table with a row for each question of each iteration.

    Columns:

    - `iteration`, `question` (index), `label`, `cause`;
    - `samples`, `correct`, `uniform`: number of all responses to the question and its rephrasings, number of
      correct responses, and whether all rewards are equal;
    - `original`, `original_correct`, `original_uniform`: the same values for the responses to the original.
    """
    rows = pd.DataFrame(
        {name: own.rows[name] for name in ("iteration", "question", "rephrasing", "correct", "reward")}
    )
    rows["original"] = rows["rephrasing"] == 0
    places = ["iteration", "question"]
    every = rows.groupby(places)
    originals = rows[rows["original"]].groupby(places)
    table = pd.DataFrame(
        {
            "samples": every.size(),
            "correct": every["correct"].sum(),
            "uniform": every["reward"].nunique() == 1,
            "original": originals.size(),
            "original_correct": originals["correct"].sum(),
            "original_uniform": originals["reward"].nunique() == 1,
        }
    ).reset_index()
    causes = pd.DataFrame(
        {"iteration": own.cells["column"], "question": own.cells["question"], "cause": own.cells["cause"]}
    )
    table = table.merge(causes, on=places)
    labels = own.names["question"]
    return table.assign(label=[labels[question] for question in table["question"]])


def _rescued(cells: pd.DataFrame) -> Telling | None:
    """Return a question whose original alone gives no gradient, but whose pool gives a gradient.

    Questions with only wrong responses to the original are preferred, and then questions for which the share
    of correct responses in the pool is closest to one half.
    """
    rescued = cells[(cells["cause"] == "gradient") & (cells["original_uniform"] == True) & ~cells["uniform"]]  # noqa: E712
    rescued = rescued[rescued["samples"] > rescued["original"]]
    if rescued.empty:
        return None
    all_wrong = rescued["original_correct"] == 0
    balance = (rescued["correct"] / rescued["samples"] - 0.5).abs()
    order = np.lexsort((rescued["iteration"], balance, ~all_wrong))
    best = rescued.iloc[int(order[0])]
    others = int(best["samples"] - best["original"])
    right = int(best["correct"] - best["original_correct"])
    verdict = "wrong" if best["original_correct"] == 0 else "right"
    if 0 < best["original_correct"] < best["original"]:
        verdict = "given the same reward"
    said = (
        f"Iteration {best['iteration']}: the {int(best['original'])} responses to the original were all {verdict}, so that "
        f"alone they give no gradient. {right} of {others} responses to the rephrasings were right: in one pool, the "
        "question gave a gradient."
    )
    return _place(best, said)


def _lost_in_training(cells: pd.DataFrame) -> Telling | None:
    """Return the question whose success fell most from an earlier visit to the last visit.

    Return None if no question's success fell.
    """
    shares = cells.assign(share=cells["correct"] / cells["samples"]).sort_values("iteration", kind="stable")
    best: tuple[float, pd.DataFrame] | None = None
    for _, visits in shares.groupby("question", sort=True):
        drop = float(visits["share"].iloc[:-1].max() - visits["share"].iloc[-1]) if len(visits) > 1 else 0.0
        if drop > 0 and (best is None or drop > best[0]):
            best = drop, visits
    if best is None:
        return None
    earlier, last = best[1].iloc[:-1], best[1].iloc[-1]
    high = earlier.iloc[int(earlier["share"].to_numpy().argmax())]
    said = (
        f"{int(high['correct'])} of {int(high['samples'])} responses were right in iteration {high['iteration']}, "
        f"{int(last['correct'])} of {int(last['samples'])} in iteration {last['iteration']}."
    )
    return _place(last, said)


def _unsolved(cells: pd.DataFrame) -> Telling | None:
    """Return the question with the most responses among questions that were never solved.

    In a tie, return the question that was sampled last. Return None if all questions were solved.
    """
    sums = cells.groupby("question")[["samples", "correct"]].sum()
    never = sums[sums["correct"] == 0]
    if never.empty:
        return None
    last = cells[cells["question"].isin(never.index)].groupby("question").tail(1)
    samples = never["samples"].loc[last["question"]].to_numpy()
    order = np.lexsort((-last["iteration"].to_numpy(), -samples))
    best = last.iloc[int(order[0])]
    visits = int((cells["question"] == best["question"]).sum())
    times = "once, in" if visits == 1 else f"{visits} times, last in"
    said = (
        f"Sampled {times} iteration {best['iteration']}: none of {int(never['samples'][best['question']])} "
        f"responses was right. {len(never)} of {len(sums)} questions were never solved in training."
    )
    return _place(best, said)


def _place(cell: pd.Series, said: str) -> Telling:
    return {
        "said": said,
        "iteration": int(cell["iteration"]),
        "question": int(cell["question"]),
        "label": cell["label"],
    }


def _lost_in_evaluation(run: RunFiles, start: RunFiles | None) -> Telling | None:
    """Return the question whose success fell most from the first to the last evaluation.

    Questions whose responses were kept are preferred. Return None if no question's success fell.
    """
    evaluations = evaluations_from(run, start)
    if len(evaluations) < 2:
        return None
    (_, first), (_, last) = evaluations[0], evaluations[-1]
    readable = _readable(evaluations[-1])
    drops = []
    for split, found in first["splits"].items():
        later = {row["id"]: row for row in last["splits"].get(split, {}).get("questions", ())}
        for row in found.get("questions", ()):
            other = later.get(row["id"])
            drop = row["correct"] / row["n"] - other["correct"] / other["n"] if other else 0.0
            if drop > 0:
                drops.append(((split, row["id"]) not in readable, -drop, split, row["id"]))
    if not drops:
        return None
    _, _, split, id = min(drops)
    before, after = (_evaluated(*evaluation, split, id) for evaluation in (evaluations[0], evaluations[-1]))
    when = "before training" if not before["iteration"] else f"after {before['iteration']} iterations"
    said = (
        f"Question {id} of {split}: {before['correct']} of {before['n']} responses were right {when}, "
        f"{after['correct']} of {after['n']} after {after['iteration']}."
    )
    return {"said": said, "split": split, "id": id, "before": before, "after": after}


def _unsolved_in_evaluation(run: RunFiles, start: RunFiles | None) -> Telling | None:
    """Return a question without a right response in any evaluation; None if there is no such question.

    Questions whose responses were kept are preferred, and then questions with the most responses.
    """
    evaluations = evaluations_from(run, start)
    sums: dict[tuple[str, str], list[int]] = {}
    for _, evaluation in evaluations:
        for split, found in evaluation["splits"].items():
            for row in found.get("questions", ()):
                total = sums.setdefault((split, row["id"]), [0, 0])
                total[0] += row["n"]
                total[1] += row["correct"]
    never = {place: n for place, (n, correct) in sums.items() if not correct}
    if not never:
        return None
    readable = _readable(evaluations[-1])
    split, id = min(never, key=lambda place: (place not in readable, -never[place], place))
    said = (
        f"Question {id} of {split}: none of {never[split, id]} responses in {len(evaluations)} evaluations was right. "
        f"{len(never)} of {len(sums)} evaluated questions were never solved."
    )
    return {"said": said, "split": split, "id": id, "after": _evaluated(*evaluations[-1], split, id)}


def _readable(evaluation: tuple[RunFiles, Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return split and id of the questions whose responses were kept."""
    run, found = evaluation
    examples = run.examples(found.get("stage", "test"), found.get("iteration", 0))
    return {(split, id) for split, questions in examples.items() for id in questions}


def _evaluated(run: RunFiles, evaluation: Mapping[str, Any], split: str, id: str) -> dict[str, Any]:
    rows = evaluation["splits"].get(split, {}).get("questions", ())
    row = next((row for row in rows if row["id"] == id), {"n": 0, "correct": 0})
    found = {"iteration": evaluation.get("iteration", 0), "n": row["n"], "correct": row["correct"]}
    own = run.examples(evaluation.get("stage", "test"), found["iteration"]).get(split, {}).get(id, {})
    return {**found, **{name: own[name] for name in ("prompt", "reference", "responses") if name in own}}


def _without(kind: str, cells: pd.DataFrame | None) -> str:
    """Return why a run has no question of a kind."""
    if kind == "lost":
        return "No question was solved less often later, as far as questions were asked twice."
    if cells is None:
        return "This run recorded no responses."
    if kind == "unsolved":
        return "Every question was solved at least once."
    if (cells["samples"] == cells["original"]).all():
        return "This run sampled no rephrasings."
    return "No question had equal rewards for its original alone and different ones in its pool."


def repeated(own: Responses) -> bool:
    """Return whether any question was sampled in more than one iteration, so that a heat map is of use."""
    return bool(len(own.cells["question"]) > len(np.unique(own.cells["question"])))


def starts_of(runs: Sequence[RunFiles]) -> dict[int, RunFiles]:
    """Return the runs of the untrained policy by seed: runs that were tested without a step of training."""
    return {
        run.seed: run
        for run in reversed(runs)
        if not run.ledger["updates"] and "diagnose" not in run.config and (run.path / "test.json").exists()
    }
