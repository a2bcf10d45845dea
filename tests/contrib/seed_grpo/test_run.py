"""SEED-GRPO from its settings to runs on the embedded task."""

from __future__ import annotations

import pandas as pd
import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

from tagrpo.contrib.seed_grpo.advantage import SemanticEntropyAdvantage
from tests.cli.test_train import trained, whole_and_resumed

SMALL = ["experiment=seed_grpo", "data.samples_per_prompt=12"]


@pytest.mark.parametrize("recipe", ["paper", "authors", "common"])
@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_every_recipe_composes_at_every_scale(recipe, scale):
    data = ["data=math"] if scale == "paper" else []
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", ["experiment=seed_grpo", f"recipe={recipe}", f"scale={scale}", *data])
    strategy = instantiate(cfg.advantage)
    assert isinstance(strategy, SemanticEntropyAdvantage)
    assert (strategy.alpha, strategy.damping, strategy.group_by) == (0.02, "linear", "question")
    assert (strategy.base.group_by, strategy.base.scale) == ("question", "none")
    aggregation = "constant" if recipe == "paper" else "sequence_mean"
    assert cfg.loss.aggregation == aggregation
    if (recipe, scale) == ("paper", "paper"):
        assert (cfg.data.batch_size, cfg.data.samples_per_prompt, cfg.iterations) == (128, 8, 928)
        assert cfg.loss.max_length == cfg.rollout.sampling.max_new_tokens == 3000


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    whole_and_resumed(tmp_path, *SMALL, iterations=2, at=1)


def test_a_run_is_damped_by_the_answers_of_its_responses(tmp_path):
    """With mini-batches of whole batches, one iteration differs from its base by the factors alone."""
    names = {"0": "advantage.alpha=0", "1": "advantage.alpha=1"}
    norms = {}
    for name, override in names.items():
        options = ["iterations=1", "policy.mini_batches=1", "loss.kl_coef=0", "trainer.limit_val_batches=0"]
        trained(tmp_path / name, *SMALL, *options, override, test=False)
        rows = pd.read_csv(tmp_path / name / "metrics.csv")
        norms[name] = rows["train/grad_norm"].dropna().item()
    assert 0 < norms["1"] < norms["0"], "answers of the starter policy disagree, but not everywhere"
