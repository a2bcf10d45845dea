"""The predicted direction of a question against all outcomes of its draws, and the table of a folder."""

from __future__ import annotations

import json
from itertools import product

import pandas as pd
import pytest
import torch

from studies.third.design import ARMS, Arm
from studies.third.predicted import EVERY, direction, main, rows_of

pytestmark = pytest.mark.pages

SUCCESS = (0.2, 0.7)


def expected(success, samples, right, scored):
    """Σ over all outcomes of their probability × mean over responses of A (verdict − p), of those that are scored."""
    total = 0.0
    for verdicts in product((0, 1), repeat=samples * len(success)):
        prompts = torch.arange(len(success)).repeat_interleave(samples)
        chances = [
            success[n] if v else 1 - success[n] for n, v in zip(prompts.tolist(), verdicts, strict=True)
        ]
        advantages = right(torch.tensor(verdicts, dtype=torch.float64), prompts)
        pushed = (
            advantages
            * (torch.tensor(verdicts) - success[0])
            * torch.tensor([n in scored for n in prompts.tolist()])
        )
        total += float(torch.tensor(chances).double().prod() * pushed.mean())
    return total


def standardised(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def by_prompt(rewards, prompts):
    return torch.cat([standardised(rewards[prompts == n]) for n in prompts.unique()])


@pytest.mark.parametrize("pool", ["prompt", "question"])
@pytest.mark.parametrize("anchor", ["own", "original"])
def test_the_direction_of_a_question_is_that_of_its_expected_gradient(pool, anchor):
    arm = Arm(reformulations=1, samples=3, pool=pool, anchor=anchor)
    right = by_prompt if pool == "prompt" else lambda rewards, _: standardised(rewards)
    scored = {0, 1} if anchor == "original" else {0}
    assert direction(arm, SUCCESS) == pytest.approx(expected(SUCCESS, 3, right, scored), rel=1e-4)
    alone = Arm(samples=3)
    assert direction(alone, SUCCESS) == pytest.approx(expected(SUCCESS[:1], 3, by_prompt, {0}), rel=1e-4)


def test_a_table_has_a_row_for_each_cell_arm_and_k_and_keeps_those_of_other_places(tmp_path, monkeypatch):
    rates = [0.1, 0.3] * EVERY
    start = {"task": "countdown", "branch": "gap0", "seed": 4, "tests": {"wording": {}}}
    start["prompts"] = {"original": rates, "wording": [rate + 0.2 for rate in rates for _ in range(3)]}
    place = tmp_path / "countdown" / "gap0" / "seed4"
    place.mkdir(parents=True)
    (place / "untrained-wording-sampled-0.json").write_text(json.dumps(start))
    rows = pd.DataFrame(rows_of(tmp_path)).set_index(["arm", "k"])["predicted"]
    assert len(rows) == 2 * len(ARMS)
    moved = direction(ARMS["ta_grpo"], (0.1, 0.3, 0.3, 0.3))
    assert rows["ta_grpo", 32] == pytest.approx(32 * 0.9**31 * 0.1 * 0.9 * moved)
    table = tmp_path / "predicted.csv.gz"
    pd.DataFrame(
        [{"task": "countdown", "branch": "gap0", "seed": 3, "arm": "grpo", "k": 1, "predicted": 7.0}]
    ).to_csv(table)
    monkeypatch.setattr("sys.argv", ["predicted", str(tmp_path), str(table)])
    main()
    both = pd.read_csv(table)
    assert len(both) == 2 * len(ARMS) + 1
    assert both.set_index("seed")["predicted"][3] == 7.0
