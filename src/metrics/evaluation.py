"""Counts of the responses to each question of an evaluation, and a report on these counts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..types import Fields
from .functional import cover_at_tau, majority_vote, pass_at_k, t_intervals

QuestionCounts = dict[str, Any]
"""Record of one question in one batch, as JSON: `split`, `id` and `counts` (see `count_batch`)."""
Splits = dict[str, dict[str, dict[str, Any]]]
"""Split → question id → the question's row of the report."""


def count_batch(batch: Any) -> list[QuestionCounts]:
    """Return a record for each question in a batch that has responses.

    `counts` has `metadata` of the question; `n`, the number of responses; `correct` and `truncated`, the
    numbers of correct responses and of responses that the length limit ended; `right`, the distinct answers
    of correct responses; `wrong`, the number of responses with each wrong answer, without responses that gave
    no answer; and `tokens`, the number of tokens in all responses.
    """
    records = []
    batch = Fields("batch", batch)
    rollouts = batch.rollouts
    for i, group in enumerate(batch.groups):
        rows = (rollouts.question == i).nonzero()[:, 0].tolist()
        if rows:
            verdicts = [(rollouts.answers[row], bool(rollouts.correct[row])) for row in rows]
            counts = {
                "metadata": dict(getattr(group, "metadata", {})),
                "n": len(rows),
                "correct": sum(right for _, right in verdicts),
                "right": sorted({answer for answer, right in verdicts if right and answer is not None}),
                "wrong": dict(
                    Counter(answer for answer, right in verdicts if not right and answer is not None)
                ),
                "tokens": sum(len(rollouts.token_ids[row]) for row in rows),
                "truncated": sum(bool(rollouts.truncated[row]) for row in rows),
            }
            records.append({"split": batch.split, "id": group.id, "counts": counts})
    return records


def joined(records: Iterable[QuestionCounts]) -> list[QuestionCounts]:
    """Merge the records of each question into one record: add the numbers, unite the answers.

    >>> counts = {"metadata": {}, "n": 2, "correct": 1, "right": ["7"], "wrong": {"8": 1}, "tokens": 9, "truncated": 0}
    >>> (one,) = joined([{"split": "test", "id": "q", "counts": counts}] * 2)
    >>> one["counts"]["n"], one["counts"]["right"], one["counts"]["wrong"]
    (4, ['7'], {'8': 2})
    """
    found: dict[tuple[str, str], QuestionCounts] = {}
    for record in records:
        key = record["split"], record["id"]
        if key not in found:
            found[key] = record
            continue
        first = found[key]["counts"]
        second = record["counts"]
        sums = {name: first[name] + second[name] for name in ("n", "correct", "tokens", "truncated")}
        right = sorted({*first["right"], *second["right"]})
        wrong = dict(Counter(first["wrong"]) + Counter(second["wrong"]))
        found[key] = {**record, "counts": {**first, **sums, "right": right, "wrong": wrong}}
    return list(found.values())


def merge_counts(records: Iterable[QuestionCounts]) -> Splits:
    """Sum each question's counts over the records of all batches and ranks; return a row per question."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        parts[record["split"], record["id"]].append(record["counts"])
    splits: Splits = defaultdict(dict)
    for (split, id), counts in parts.items():
        totals = dict.fromkeys(("n", "correct", "tokens", "truncated"), 0)
        right: set[str] = set()
        wrong: Counter[str] = Counter()
        for part in counts:
            for name in totals:
                totals[name] += part[name]
            right.update(part["right"])
            wrong += Counter(part["wrong"])
        splits[split][id] = {
            "id": id,
            "n": totals["n"],
            "correct": totals["correct"],
            "distinct_answers": len(right | set(wrong)),
            "distinct_wrong": len(wrong),
            "majority": majority_vote(totals["correct"], list(wrong.values())),
            "mean_length": totals["tokens"] / totals["n"],
            "truncated": totals["truncated"],
            "metadata": counts[0]["metadata"],
        }
    return splits


def summarise(
    questions: Mapping[str, Mapping[str, Any]], ks: Sequence[int], taus: Sequence[float] = ()
) -> dict[str, Any]:
    """Return the report: pass@k and Cover@τ with intervals, means over questions, and a row per question.

    There must be at least one question. Values of `ks` above the smallest number of responses to a question
    are left out. Without `taus`, there is no `cover_at_tau`.
    """
    # In order of the ids, so that sums do not depend on which rank had which question.
    rows = [questions[id] for id in sorted(questions)]
    ks = [k for k in ks if k <= min(row["n"] for row in rows)]
    shares = torch.tensor([row["correct"] / row["n"] for row in rows], dtype=torch.float64)
    cover = {"cover_at_tau": _intervals(taus, cover_at_tau(shares, taus))} if taus else {}
    return {
        "num_questions": len(rows),
        "samples": sum(row["n"] for row in rows),
        "pass_at_k": _intervals(ks, _curve(rows, ks)),
        **cover,
        "majority": sum(row["majority"] for row in rows) / len(rows),
        "wrong_answers": sum(row["distinct_wrong"] for row in rows) / len(rows),
        "length": sum(row["mean_length"] for row in rows) / len(rows),
        "truncated": sum(row["truncated"] / row["n"] for row in rows) / len(rows),
        "questions": rows,
    }


def averages(
    report: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return the mean pass@k of groups of splits.

    Each split has the same weight in `pass_at_k`, and each question in `by_question`. `report` maps each
    split to the result of `summarise`, and `groups` maps each group's name to the group's splits. A group is
    left out if one of its splits was not evaluated. A value of k is left out of a group if one of the group's
    splits lacks it.

    >>> rows = [{"n": 1, "correct": 0}, {"n": 1, "correct": 0}, {"n": 1, "correct": 0}, {"n": 1, "correct": 1}]
    >>> report = {name: {"pass_at_k": {1: {}}, "questions": own} for name, own in (("a", rows[:3]), ("b", rows[3:]))}
    >>> found = averages(report, {"both": ["a", "b"], "others": ["a", "c"]})
    >>> list(found), found["both"]["pass_at_k"][1]["value"], found["both"]["by_question"][1]["value"]
    (['both'], 0.5, 0.25)
    """
    found: dict[str, dict[str, Any]] = {}
    for name, splits in groups.items():
        if set(splits) <= report.keys():
            ks = list(report[splits[0]]["pass_at_k"])
            for split in splits[1:]:
                ks = [k for k in ks if k in report[split]["pass_at_k"]]
            curves = [_curve(report[split]["questions"], ks) for split in splits]
            found[name] = {
                "splits": list(splits),
                "num_questions": sum(map(len, curves)),
                "pass_at_k": _intervals(ks, *curves),
                "by_question": _intervals(ks, torch.cat(curves)),
            }
    return found


def _curve(rows: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> Tensor:
    """Return pass@k of questions from their `n` and `correct`, [Q, K] float64."""
    if not ks:
        return torch.zeros(len(rows), 0)
    n = torch.tensor([row["n"] for row in rows])
    correct = torch.tensor([row["correct"] for row in rows])
    return torch.stack([pass_at_k(n, correct, k) for k in ks], -1)


def _intervals(places: Sequence[float], *curves: Tensor) -> dict[float, dict[str, float]]:
    return {place: interval._asdict() for place, interval in zip(places, t_intervals(*curves), strict=True)}
