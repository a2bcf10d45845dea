"""Replaying saved rollouts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from notebooks.replay import replay, reward_groups
from tagrpo.analysis.rollouts import read_rollouts
from tagrpo.callbacks.recorder import rollout_table
from tagrpo.modules.advantages import EntropyAdaptiveAdvantage, GroupAdvantage, PassAtKAdvantage
from tagrpo.types import AdvantageStrategy

pytestmark = pytest.mark.pages

# Question 0: each prompt uniform, the pool not. Question 1: all wrong. Question 2: mixed everywhere.
REWARDS = [[[1, 1], [0, 0]], [[0, 0], [0, 0]], [[1, 0], [0, 1]]]
PER_PROMPT, POOLED = GroupAdvantage(group_by="prompt"), GroupAdvantage(group_by="question")


@pytest.fixture
def run(tmp_path, make_batch):
    """Two iterations as the recorder leaves them, with the advantages of a pooled run."""
    (tmp_path / "rollouts").mkdir()
    for iteration in (0, 1):
        batch = make_batch(REWARDS, seed=iteration)
        rollouts = batch.rollouts
        groups = reward_groups(
            rollout_table(batch, {"advantages": torch.zeros(len(rollouts))}, iteration, 0).to_pandas()
        )
        table = rollout_table(batch, {"advantages": POOLED(groups)}, iteration, 2 * iteration)
        pq.write_table(table, tmp_path / "rollouts" / f"{iteration:06d}-0.parquet")
    return tmp_path


def test_the_runs_own_strategy_gives_the_advantages_that_were_saved(run):
    rollouts = read_rollouts(run)
    for _, rows in rollouts.groupby("iteration"):
        assert POOLED(reward_groups(rows)).tolist() == rows["advantage"].tolist()


def test_final_answers_are_those_that_were_saved(run, make_batch):
    answers = list(make_batch(REWARDS, seed=0).rollouts.answers)
    rows = read_rollouts(run).query("iteration == 0")
    assert reward_groups(rows).answers == answers
    rows = rows.assign(answer=[None, *answers[1:]])
    assert reward_groups(rows).answers == [None, *answers[1:]]


def test_pooling_rescues_a_question_whose_prompts_are_uniform(run):
    result = replay(read_rollouts(run), {"prompt": PER_PROMPT, "question": POOLED}).set_index(
        ["strategy", "iteration"]
    )
    assert result.loc[("prompt", 0), "zero_gradient"] == pytest.approx(200 / 3)
    assert result.loc[("question", 0), "zero_gradient"] == pytest.approx(100 / 3)
    assert result["questions"].tolist() == [3, 3, 3, 3]


def test_eta_by_hand(run):
    strategy = GroupAdvantage(group_by="question", scale="none")
    result = replay(read_rollouts(run), {"plain": strategy})
    # Questions 0 and 2: ½ from the mean for each response; question 1: none.
    assert result["eta"].tolist() == pytest.approx([1 / 3, 1 / 3])


def test_progress_ends_at_one(run):
    seen = []

    class Spy(AdvantageStrategy):
        def __call__(self, groups):
            seen.append(groups.progress)
            return POOLED(groups)

    replay(read_rollouts(run), {"spy": Spy()})
    assert seen == [0.0, 1.0]


def test_saved_entropy_reaches_the_strategies_that_need_it(run):
    rollouts = read_rollouts(run)
    strategy = EntropyAdaptiveAdvantage(k=2)
    rollouts["entropy"] = 0.1 * (rollouts.index % 5)
    first = rollouts[rollouts["iteration"] == 0]
    expected = strategy(reward_groups(first)).abs().sum().item() / len(first)
    assert replay(rollouts, {"adaptive": strategy})["eta"][0] == pytest.approx(expected)


def test_what_cannot_be_replayed_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="entropy for adaptive"):
        replay(read_rollouts(run), {"pooled": POOLED, "adaptive": EntropyAdaptiveAdvantage(k=2)})
    missing = "has no needs_entropy"
    with pytest.raises(TypeError, match=rf"strategies\['mine'\].*AdvantageStrategy.*{missing}"):
        replay(read_rollouts(run), {"mine": lambda groups: groups.rewards})
    with pytest.raises(FileNotFoundError, match="recorder"):
        read_rollouts(tmp_path / "nowhere")
    (run / "rollouts" / "000002-0.parquet").write_text("broken off")
    with pytest.raises(ValueError, match=r"000002-0\.parquet"):
        read_rollouts(run)


def rollouts(rewards):
    """Rows of responses; `rewards[question][rephrasing]` is a list."""
    return pd.DataFrame(
        [
            {
                "iteration": 0, "question": f"q{q}", "rephrasing": v, "template": "plain",
                "answer": str(reward),
                "correct": reward > 0, "reward": float(reward),
            }
            for q, versions in enumerate(rewards) for v, values in enumerate(versions) for reward in values
        ]
    )  # fmt: skip


def test_effective_weights_by_hand():
    # Question 0: one right of four, A = ¾, −¼ × 3; question 1: all right, no weight.
    rows = rollouts([[[1, 0, 0, 0]], [[1, 1, 1, 1]]])
    (row,) = replay(rows, {"plain": GroupAdvantage(group_by="question", scale="none")}).to_dict("records")
    assert row["effective_responses"] == pytest.approx(1.5**2 / (9 / 16 + 3 / 16) / 8)
    assert row["positive"] == pytest.approx(0.5)
    assert row["hard"] == 1
    (nothing,) = replay(rows[4:], {"plain": POOLED}).to_dict("records")
    assert (nothing["effective_responses"], nothing["eta"]) == (0, 0)
    assert np.isnan(nothing["hard"])


def test_pass_at_k_puts_its_weight_on_hard_questions():
    rows = rollouts([[[1, 0, 0, 0, 0, 0, 0, 0]], [[1, 1, 1, 1, 1, 1, 1, 0]]])
    hard = replay(rows, {"1": PassAtKAdvantage(k=1), "4": PassAtKAdvantage(k=4)}).set_index("strategy")[
        "hard"
    ]
    assert hard["1"] == pytest.approx(0.5)
    assert hard["4"] == 1
