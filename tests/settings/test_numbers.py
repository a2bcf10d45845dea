"""Every number among the settings, set to what no number can be, and to what this one cannot be."""

from __future__ import annotations

import math
import re
from itertools import zip_longest

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.runs.directory import flat
from tagrpo.settings import config, numbers
from tagrpo.settings.methods import experiments, options_of, recipes_of
from tagrpo.settings.typed import check_declared

NEGATIVE = {
    "loss.entropy_coef", "reward.threshold", "rollout.reward_terms.format.weight", "rollout.reward_terms.overlong.weight",
}  # fmt: skip
"""Settings that may be negative: rewards, and weights of terms that users turn round."""
NULL = {
    "callbacks.checkpoint.keep", "callbacks.embedding_diversity.max_questions", "data.curriculum.high",
    "data.max_evaluation_prompt_tokens", "data.num_rephrasings", "data.train.num_rephrasings",
    "data.validation_samples", "diagnose_questions", "iterations", "loss.clip_high", "loss.clip_low",
    "loss.dual_clip", "loss.max_length", "mismatch.cap", "mismatch.high", "mismatch.low",
    "policy.max_grad_norm", "policy.prompt_correction", "policy.skip_grad_norm",
    "rollout.engine.kv_cache_memory_bytes", "rollout.engine.max_model_len",
    "rollout.reward_terms.overlong.cache", "threads", "trainer.limit_val_batches",
    "trainer.log_every_n_steps", "trainer.max_epochs", "trainer.num_sanity_val_steps",
    "trainer.val_check_interval",
}  # fmt: skip
"""Settings that may be null: no limit, all of them, or the default of a library."""
WORD = {"advantage.baseline", "trainer.devices", "trainer.val_check_interval"}
"""Settings that words are values of too."""
MINUS_ONE = {"trainer.max_steps", "trainer.max_epochs", "trainer.devices", "trainer.num_sanity_val_steps"}
"""Settings of Lightning in which −1 stands for no limit."""


def is_number(value):
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, int | float) and not isinstance(item, bool) for item in items)


def leaf_of(cfg, name, value):
    """The configuration without all but one setting and the classes around it."""
    path, found = name.split("."), {}
    node, given = found, cfg
    for key in path[:-1]:
        given = given[key]
        node[key] = {k: given[k] for k in ("_target_",) if k in given}
        node = node[key]
    node[path[-1]] = value
    return OmegaConf.create(found)


GROUPS = (
    "lora", "advantage", "loss", "credit", "mismatch", "curriculum", "callbacks", "reward", "rollout", "strategy",
    "dynamic_sampling",
)  # fmt: skip


def numbers_of(*overrides):
    """Name → (a number of it, the configuration that has it) of one composition."""
    cfg = compose("evaluate" if "protocol=pass_at_k" in overrides else "train", overrides)
    plain = OmegaConf.to_container(cfg, resolve=False)
    return {name: (value, plain) for name, value in flat(plain).items() if is_number(value)}


def names_in_files_of(experiment):
    """Names of the numbers that the file of an experiment and those of its settings have themselves."""
    texts = [options_of("experiment")[experiment]]
    for paper in re.findall(r"override /settings: (\w+)/", texts[0]):
        texts += options_of(f"settings/{paper}").values()
        for recipe in recipes_of(paper):
            texts += options_of(f"settings/{paper}/{recipe}").values()
    return {
        name for text in texts for name, value in flat(yaml.safe_load(text) or {}).items() if is_number(value)
    }


@pytest.fixture(scope="module")
def leaves():
    """Name → (a number of it, the configuration that has it), over all options of all groups and all experiments.

    An experiment is composed if its files have a number that none before it had.
    """
    asked = [
        [],
        ["scale=paper", "data=math"],
        ["data=jsonl"],
        ["protocol=pass_at_k"],
    ]
    terms = [name for name in options_of("reward_terms") if name != "none"]
    asked.append([f"reward_terms=[{','.join(terms)}]"])
    options = [[f"{group}={name}" for name in options_of(group) if name != "base"] for group in GROUPS]
    asked += [list(filter(None, row)) for row in zip_longest(*options)]
    found = {}
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for overrides in asked:
            found = numbers_of(*overrides) | found
        for name in experiments():
            if names_in_files_of(name) - set(found):
                found = numbers_of(f"experiment={name}") | found
    return found


@pytest.mark.runs
def test_no_experiment_has_numbers_that_its_files_do_not_have(leaves):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        assert {name for one in experiments() for name in numbers_of(f"experiment={one}")} <= set(leaves)


def test_all_groups_have_numbers(leaves):
    assert len(leaves) > 120
    assert {name.split(".")[0] for name in leaves} >= {
        "seed", "threads", "iterations", "optimizer", "policy", "loss", "advantage", "credit", "mismatch", "lora",
        "data", "rollout", "callbacks", "trainer", "strategy", "reward",
    }  # fmt: skip


def refused(name, value, cfg):
    """Whether the rules or the types refuse a value; the message must name the setting."""
    one, said = leaf_of(cfg, name, value), []
    for check in (numbers.check_numbers, check_declared):
        try:
            check(one)
        except ValueError as error:
            said.append(str(error))
    for message in said:
        assert message.startswith(f"Expected {name} to be ")
        assert message.endswith(f" Correct {name}.")
    return bool(said)


def wrapped(value, usual):
    return [value] if isinstance(usual, list) else value


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_nan_or_infinite(leaves, wrong):
    taken = {name for name, (usual, cfg) in leaves.items() if not refused(name, wrapped(wrong, usual), cfg)}
    assert taken == ({"advantage.temperature", "policy.staleness_cap"} if wrong == math.inf else set())


def test_numbers_are_null_where_that_means_something(leaves):
    taken = {name for name, (_, cfg) in leaves.items() if not refused(name, None, cfg)}
    assert taken == NULL & set(leaves)
    assert len(taken) > 18


@pytest.mark.parametrize("word", ["many", "nan", ".inf", "true", ""])
def test_no_word_stands_for_a_number(leaves, word):
    taken = {name for name, (usual, cfg) in leaves.items() if not refused(name, wrapped(word, usual), cfg)}
    assert taken <= (set() if word in ("nan", ".inf") else WORD)


def test_flags_are_no_numbers(leaves):
    taken = {name for name, (usual, cfg) in leaves.items() if not refused(name, wrapped(True, usual), cfg)}
    assert taken <= {"trainer.val_check_interval"}


def is_of_a_method(name, cfg):
    """Whether the class that takes a setting is in the folder of a method, which checks its own numbers."""
    for key in name.split(".")[:-1]:
        cfg = cfg[key]
    return str(cfg.get("_target_")).startswith("tagrpo.contrib.")


def test_negative_numbers_are_refused_where_they_are_impossible(leaves):
    checked = {name: leaf for name, leaf in leaves.items() if not is_of_a_method(name, leaf[1])}
    assert len(checked) < len(leaves)
    taken = {name for name, (usual, cfg) in checked.items() if not refused(name, wrapped(-2, usual), cfg)}
    assert taken == NEGATIVE & set(checked)
    minus = {name for name, (usual, cfg) in checked.items() if not refused(name, wrapped(-1, usual), cfg)}
    assert minus - taken == MINUS_ONE & set(checked)


def test_counts_are_whole(leaves):
    counts = {name for name in leaves if (rule := numbers.rule_of(name)) is not None and rule.whole}
    assert len(counts) >= 50
    taken = {name for name in counts if not refused(name, wrapped(2.5, leaves[name][0]), leaves[name][1])}
    assert taken <= {"trainer.devices"}


@pytest.mark.parametrize(
    ("name", "taken", "wrong"),
    [
        ("seed", [0, 2**32 - 1], [2**32, 0.5]),
        ("optimizer.betas", [[0.0, 1.0], [0.9, 0.99]], [[2, 0], [0.9, None], [0.9, "x"]]),
        ("rollout.sampling.top_p", [1.0, 1e-9], [0, 1.0001]),
        ("policy.max_grad_norm", [None, 1e-9], [0, 0.0]),
        ("loss.dual_clip", [None, 3], [1.0]),
        ("policy.staleness_cap", [1, 1.0], [0.999]),
        ("callbacks.pass_at_k.taus", [[], [0.2, 1]], [[1.2]]),
        ("policy.schedule_options.min_lr_rate", [0.1, "cosine", None], [-0.1, math.nan]),
    ],
)
def test_bounds(name, taken, wrong):
    rule = numbers.rule_of(name)
    assert all(rule.takes(value) for value in taken)
    assert not any(rule.takes(value) for value in wrong)


def test_the_setting_that_others_refer_to_is_named():
    cfg = OmegaConf.create({"data": {"seed": "${seed}"}, "seed": -1})
    with pytest.raises(ValueError, match=r"Expected seed "):
        numbers.check_numbers(cfg)
    cfg = OmegaConf.create({"a": {"seed": "${b}"}, "b": -1})
    with pytest.raises(ValueError, match=r"Expected a\.seed "):
        numbers.check_numbers(cfg)


def test_a_class_of_the_users_has_its_own_bounds():
    own = {"advantage": {"_target_": "mine.Advantage", "k": -3, "threshold": 2.0}}
    numbers.check_numbers(OmegaConf.create(own))
    with pytest.raises(ValueError, match=r"advantage\.k "):
        numbers.check_numbers(OmegaConf.create({"advantage": {**own["advantage"], "k": math.inf}}))


@pytest.mark.parametrize(
    "experiment", ["ta_grpo", "dgpo", "svs", "skywork_or1", "exgrpo", "grpo_lead", "questa"]
)
def test_settings_as_they_come_are_taken(experiment, tmp_path):
    cfg = config.compose_run(tmp_path, [f"experiment={experiment}"])
    numbers.check_numbers(cfg)
    check_declared(cfg)
