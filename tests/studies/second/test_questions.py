"""Distances among responses, against all pairs one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch

from studies.second.questions import distances


def test_differences_are_those_of_all_pairs_one_by_one():
    rng = np.random.default_rng(0)
    vectors = {text: rng.normal(size=5) for text in "abcdefgh"}
    rows = [
        {"question": q, "rephrasing": r, "response": rng.choice(list(vectors)), "correct": bool(rng.random() < 0.5)}
        for q in ("one", "two", "three")
        for r in (0, 1, 2)
        for _ in range(4)
    ]
    rows += [{"question": "four", "rephrasing": 0, "response": "a", "correct": True}] * 3  # no rephrasing
    embedded = []

    def encoder(texts):
        embedded.extend(texts)
        return torch.tensor(np.array([vectors[text] for text in texts]))

    found = distances(pd.DataFrame(rows), encoder)
    assert len(embedded) == len(set(embedded)), "equal responses are embedded once"

    def distance(texts):
        cosines = [
            vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b])
            for a, b in combinations(texts, 2)
        ]
        return 1 - np.mean(cosines)

    for verdict, kept in (("all", (True, False)), ("correct", (True,)), ("wrong", (False,))):
        differences, originals = [], []
        for question in ("one", "two", "three"):
            mine = [row for row in rows if row["question"] == question and row["correct"] in kept]
            pools = [[row["response"] for row in mine if (row["rephrasing"] > 0) is later] for later in (False, True)]
            if all(len(pool) > 1 for pool in pools):
                differences.append(distance(pools[1]) - distance(pools[0]))
                originals.append(distance(pools[0]))
        assert found[f"questions/{verdict}/questions"] == len(differences) > 0
        assert found[f"questions/{verdict}/distance_difference"] == pytest.approx(np.mean(differences))
        if verdict == "all":
            assert found["questions/all/distance_original"] == pytest.approx(np.mean(originals))


def test_a_verdict_that_no_question_has_twice_has_no_distance():
    rows = [{"question": "one", "rephrasing": r, "response": "ab"[r], "correct": False} for r in (0, 0, 1, 1)]
    found = distances(pd.DataFrame(rows), lambda texts: torch.eye(len(texts)))
    assert found == {
        "questions/all/questions": 1,
        "questions/all/distance_difference": pytest.approx(0.0),
        "questions/all/distance_original": pytest.approx(0.0),
        "questions/all/distance_rephrasings": pytest.approx(0.0),
        "questions/correct/questions": 0,
        "questions/wrong/questions": 1,
        "questions/wrong/distance_difference": pytest.approx(0.0),
    }
