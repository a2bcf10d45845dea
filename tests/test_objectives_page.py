"""docs/objectives.md and benchmarks/OBJECTIVES.md say what their script computes, and every experiment ascends it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import objectives

from notebooks.objective_plots import Setting
from tagrpo.lab.enumerable import Policies, expected_update
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.settings.methods import experiments

pytestmark = pytest.mark.pages

PAGE = objectives.DOCUMENT.read_text()
ALL = objectives.ALL.read_text()
TOKENS, WORDS = objectives.SHAPES.values()


@pytest.fixture(scope="module")
def methods():
    return objectives.experiments()


def table(name, page=ALL):
    return page.split(f"<!-- begin {name} -->\n")[1].split(f"\n<!-- end {name} -->")[0]


def cells(name, page=ALL):
    """First column → the other cells."""
    rows = [line.strip("| ").split(" | ") for line in table(name, page).splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_weights_are_those_of_the_experiments(methods):
    assert objectives.weights(methods) == table("weights")
    shown = {name: methods[name] for name in objectives.SHOWN}
    assert objectives.weights(shown) == table("weights", PAGE)


def test_experiments_without_a_weight_are_listed_by_what_they_read(methods):
    assert objectives.left_out(methods) == table("left out")
    listed = re.findall(r"`(\w+)`", table("left out"))
    assert sorted([*listed, *methods]) == experiments()
    by_reason = [set(re.findall(r"`(\w+)`", line)) for line in table("left out").splitlines()]
    assert {"entropy_adaptive", "unlikeliness", "ucpo"} <= by_reason[0]
    assert {"outcome_exploration"} <= by_reason[1]
    assert {"clip_cov", "kl_cov", "high_entropy_tokens", "rl_zvp", "entropy_shaped"} <= by_reason[2]


def test_the_pools_are_those_of_the_page():
    assert objectives.pools() == table("pools")
    assert objectives.pools(*objectives.SHOWN_POOLS) == table("pools", PAGE)
    assert "2.44 → 5.05 at p = 0.01" in PAGE
    easy = objectives.pools([0.01], [0.5]).splitlines()[-1]
    assert easy == "| 0.01 | 0.5 | 2.44 | 1.98 | 5.05 | 92 % | 0 % | -0.75 | 87 % | 6 % |"
    assert "from 92 % to none" in PAGE
    assert "its weight falls to 1.98" in PAGE


def test_the_code_of_the_page_gives_the_weight_of_the_table():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace: dict = {}
    exec(code, namespace)
    assert 4 * namespace["weights"][0].item() == pytest.approx(1.98, abs=0.005)


def test_under_its_own_prompt_every_experiment_is_exact_for_single_tokens(methods):
    responses = TOKENS
    for name, (setting, loss, options, _) in methods.items():
        logits, correct = objectives.drawn(3, setting.prompts, responses)
        ages = Policies(logits, logits, logits, objectives.drawn(4, setting.prompts, responses)[0])
        if loss.aggregation == "constant":
            loss.max_length = 1
        update = expected_update(ages, responses, correct, setting.strategy, loss, setting.samples, options)
        error = objectives.bias(
            update, objectives.objective(ages, responses, correct, setting, loss, options)
        )
        assert error < 1e-10 if options.anchor == "own" else error > 1e-3, name


def test_the_biases_are_those_of_the_experiments(methods):
    few = ["grpo", "dapo", "dr_grpo", "exgrpo", "ta_grpo_v1", "ta_grpo", "ta_grpo_corrected"]
    found = objectives.estimators({name: methods[name] for name in few}).splitlines()[2:]
    page = {name.strip("`"): row for names, row in cells("estimators").items() for name in names.split(", ")}
    assert {line.split("`")[1]: line.strip("| ").split(" | ")[1:] for line in found} == {
        name: page[name] for name in few
    }


def test_anchoring_and_staleness_are_biased_as_the_page_says():
    found = objectives.anchored(GroupAdvantage(), objectives.UpdateOptions(), TOKENS, easier=2.0, seeds=8)
    share, length = (
        cells("anchoring", PAGE)["TA-GRPO: pooled, uncorrected"][1].split()[0],
        f"(×{found[1]:.2f})",
    )
    assert (f"{100 * found[0]:.0f}", length) == (
        share,
        cells("anchoring", PAGE)["TA-GRPO: pooled, uncorrected"][1].split()[2],
    )
    assert objectives.moved() == table("moved")


def test_easier_rephrasings_have_the_odds_that_were_asked_for():
    (plain, correct), (tilted, _) = (objectives.drawn(0, 3, WORDS, easier=x) for x in (0.0, 2.0))
    before, after = (objectives.success_rates(logits, WORDS, correct) for logits in (plain, tilted))
    odds = (after / (1 - after)) / (before / (1 - before))
    torch.testing.assert_close(odds.log(), torch.tensor([0.0, 2.0, 2.0], dtype=torch.float64))


def test_the_objective_is_what_a_policy_without_samples_would_ascend():
    # REINFORCE without a baseline ascends the mean success rate itself.
    logits, correct = objectives.drawn(5, 2, WORDS)
    logits.requires_grad_()
    mean = objectives.success_rates(logits, WORDS, correct).mean()
    (expected,) = torch.autograd.grad(mean, logits)
    setting = Setting(GroupAdvantage("prompt", baseline="none", scale="none"), 2, 3)
    loss = PolicyLoss(kl_coef=0.0, aggregation="constant", max_length=1)
    ages = Policies(*[logits.detach()] * 4)
    found = objectives.objective(ages, WORDS, correct, setting, loss, objectives.OWN)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
