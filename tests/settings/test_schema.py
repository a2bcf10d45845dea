"""Every setting of every command, set to what its type does not take: refused by its name."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.rephrasing import command as rephrase
from tagrpo.settings import config, numbers, schema
from tagrpo.settings.schema import check_fields
from tagrpo.settings.typed import check_declared

COMMANDS = {
    "train": schema.Train,
    "evaluate": schema.Evaluate,
    "plan": schema.Plan,
    "verify": schema.Verify,
    "rephrase": schema.Rephrase,
    "compare": schema.Compare,
}
PARTS = {part.partition(".")[0] for part in (*config.PARTS, *config.GROUPS)}
"""Settings at the top level that hold others; `check_parts` and the classes of the parts check them."""
OF_GROUPS = {"credit", "lora", "mismatch", "strategy", "exact_evaluator"}
"""Parts that a run may lack."""
CHOICES = {"experiment", "recipe", "conventions", "protocol", "debug"}
"""Options of groups, which `check_choices` checks."""


def composed(command, *overrides):
    folder = "tagrpo.configs.comparisons" if command == "compare" else "tagrpo.configs"
    with initialize_config_module(folder, version_base="1.3"):
        return compose(command, list(overrides))


@pytest.fixture(scope="module")
def settings():
    """The settings of each command, as they come."""
    more = {"compare": ["compare=demo", "launcher=slurm"]}
    return {command: composed(command, *more.get(command, [])) for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_at_the_top_level_has_a_type(settings, command):
    known = {field.name for field in fields(COMMANDS[command])}
    given = set(map(str, settings[command]))
    assert known <= given
    assert given - known <= (
        PARTS | OF_GROUPS | CHOICES if command in ("train", "evaluate", "plan") else set()
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_as_they_come_are_taken(settings, command):
    check_fields(settings[command], COMMANDS[command])


WRONG = {
    bool: ["many", 3, [True]],
    int: ["many", [3], {"a": 1}],
    float: ["many", [3], {"a": 1}],
    list: ["many", 3],
}


def leaves(node, name=""):
    for key, value in node.items():
        here = f"{name}.{key}" if name else str(key)
        if isinstance(value, dict):
            yield from leaves(value, here)
        elif type(value) in WRONG and not here.endswith(("_partial_", "_recursive_")):
            yield here, value


def alone(plain, name, value):
    """The settings without all but one, and the classes around it."""
    *above, last = name.split(".")
    found = {}
    node = found
    for key in above:
        plain = plain[key]
        node[key] = {"_target_": plain["_target_"]} if "_target_" in plain else {}
        node = node[key]
    node[last] = value
    return OmegaConf.create(found)


def said_of(command, cfg):
    said = []
    for check in (lambda one: check_fields(one, COMMANDS[command]), numbers.check_numbers, check_declared):
        try:
            check(cfg)
        except ValueError as error:
            said.append(str(error))
    return said


FREE = (
    "judge.parameters.",
    "rephraser.parameters.",
    "launcher.additional_parameters.",
    "trainer.devices",
    "trainer.val_check_interval",
)
"""What a server or SLURM is given, and settings of Lightning that are of several types."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_number_and_list_is_of_its_type(settings, command):
    plain = OmegaConf.to_container(settings[command], resolve=False)
    checked = 0
    for name, value in leaves(plain):
        if name.startswith(FREE):
            continue
        for wrong in WRONG[type(value)]:
            said = said_of(command, alone(plain, name, wrong))
            assert said, f"{name}={wrong} is taken"
            assert all(
                f"Expected {name} " in message or f"Expected {name}." in message for message in said
            ), said
            checked += 1
    assert checked >= (5 if command == "verify" else 15)


@pytest.mark.parametrize(
    ("command", "name", "wrong"),
    [
        ("train", "name", True),
        ("train", "resume", 3),
        ("train", "objective", ["a"]),
        ("train", "averages.mine", "test_id"),
        ("evaluate", "checkpoint", 3),
        ("evaluate", "diagnose", True),
        ("plan", "gpus.h100", 80),
        ("plan", "gpus.h100.memory", "much"),
        ("compare", "root", 3),
        ("compare", "methods", "grpo"),
        ("compare", "methods.mine", "grpo"),
        ("compare", "overrides", "seed=1"),
        ("compare", "overrides_at_scale.demo", "seed=1"),
        ("compare", "launcher", "slurm"),
        ("rephrase", "input", 3),
        ("rephrase", "checks", None),
        ("rephrase", "checks.numbers_kept", True),
        ("rephrase", "server", "http://localhost"),
    ],
)
def test_texts_mappings_and_their_members_are_named(settings, command, name, wrong):
    cfg = settings[command].copy()
    OmegaConf.update(cfg, name, wrong, force_add=True, merge=False)
    with pytest.raises(ValueError, match=rf"Expected {name}.*{name}\.$"):
        check_fields(cfg, COMMANDS[command])


def test_the_setting_that_was_written_is_named_and_those_without_a_value_are_left_out(settings):
    cfg = settings["train"].copy()
    cfg.merge_with({"threads": "${data.batch_size}", "resume": "${nothing}", "objective": "???"})
    cfg.data.batch_size = "many"
    with pytest.raises(ValueError, match=r"Expected data\.batch_size.*'many'"):
        check_fields(cfg, schema.Train)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["server.concurrency=many"], "server.concurrency"),
        (["server.max_retries=[1]"], "server.max_retries"),
        (["+rephraser.depth=3"], "rephraser.depth"),
        (["judge.model=m", "judge.parameters=3"], "judge.parameters"),
        (["+checks.numbers_kept.strict=true"], "checks.numbers_kept.strict"),
        (["checks.well_formed.control_tokens=word"], "checks.well_formed.control_tokens"),
    ],
)
def test_parts_that_rephrase_are_compared_with_their_classes(overrides, named):
    usual = [
        "input=a.jsonl",
        "output=b.jsonl",
        "rephraser.model=m",
        "rephraser.price={prompt: 1, completion: 2}",
    ]
    rephrase.check_parts(composed("rephrase", *usual))
    rephrase.check_parts(composed("rephrase", "command=audit", "input=a.jsonl"))
    with pytest.raises(ValueError, match=f"Expected {named} to be "):
        rephrase.check_parts(composed("rephrase", *usual, *overrides))
