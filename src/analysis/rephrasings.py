"""The rephrasings that a run was trained on, from what it recorded."""

from __future__ import annotations

import pandas as pd

from ..types import QuestionGroup


def groups_of(rollouts: pd.DataFrame) -> list[QuestionGroup]:
    """The questions of recorded rollouts with their rephrasings, as prompts in their (first) template.

    The answer of a correct response stands for the reference; a question that was never solved has an empty one.

    Raises:
        ValueError: prompts were not recorded.

    >>> columns = ["question", "rephrasing", "prompt", "correct", "answer"]
    >>> rows = [("a", 0, "1+1?", False, "3"), ("a", 1, "one and one?", True, "2")]
    >>> groups_of(pd.DataFrame(rows, columns=columns))[0][1:4]
    ('1+1?', ('one and one?',), ('2',))
    """
    if "prompt" not in rollouts:
        raise ValueError("Expected the column `prompt` of the recorded rollouts, but there is none. Record them anew.")
    groups = []
    for id, rows in rollouts.groupby("question", sort=False):
        prompts = rows.drop_duplicates("rephrasing").sort_values("rephrasing")
        solved = rows.loc[rows["correct"], "answer"].dropna()
        answer = (str(solved.iloc[0]) if len(solved) else "",)
        original = prompts.loc[prompts["rephrasing"] == 0, "prompt"]
        if len(original):
            others = tuple(prompts.loc[prompts["rephrasing"] > 0, "prompt"])
            groups.append(QuestionGroup(str(id), original.iloc[0], others, answer))
    return groups
