"""Each method as its paper runs it: the configuration against the papers' values, and the page that is made of both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from tagrpo.runs.directory import changes
from tagrpo.settings import methods
from tests import loading

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
script = loading.script("methods_page")

PAPERS = dict(script.papers())
EXPERIMENTS = {experiment: name for name, paper in PAPERS.items() for experiment in paper["own"]}
STATED = {
    "loss": "objective ratio clip_low clip_high dual_clip aggregation kl_coef entropy_coef",
    "policy": "anchor schedule warmup mini_batches max_grad_norm",
    "optimizer": "lr weight_decay",
    "data": "batch_size samples_per_prompt num_rephrasings evaluation_samples",
    "rollout.sampling": "temperature max_new_tokens",
    "rollout.evaluation_sampling": "temperature",
}


def unfolded(lines):
    """What one sees of a part of the page before one opens anything."""
    return re.sub(r"<details.*?</summary>.*?</details>", "", "\n".join(lines), flags=re.DOTALL)


def test_every_experiment_is_of_one_paper():
    assert sorted(EXPERIMENTS) == methods.experiments()
    assert all(set(paper["own"]) == set(paper["defines"]) for paper in PAPERS.values())


def test_every_paper_has_a_value_with_its_place_or_is_said_to_leave_it_open():
    stated = {f"{group}.{key}" for group, keys in STATED.items() for key in keys.split()}
    for experiment, name in EXPERIMENTS.items():
        if name in ("ours", "adaptive_rephrasings"):
            continue
        table = script.table_of(PAPERS[name], experiment)
        assert stated - set(table) == set(), experiment
        assert {"trainer.max_epochs", "iterations"} & set(table), experiment
        for key, row in table.items():
            assert ("paper" in row and row["source"]) or row.get("open"), (experiment, key)
            assert ("authors" in row) == ("authors_source" in row), (experiment, key)


def test_all_settings_are_the_papers_or_have_a_reason_and_the_page_says_so():
    # page() raises where the configuration differs from a paper without a reason, or a reason is given for nothing
    assert script.PAGE.read_text() == script.page(), "run python scripts/methods_page.py"


def test_a_setting_that_is_not_the_papers_needs_a_reason(monkeypatch):
    changed = {**script.settings("pass_at_k", "paper"), "loss.kl_coef": 0.001}
    monkeypatch.setattr(script, "settings", lambda *_: changed)
    with pytest.raises(ValueError, match=r"loss.kl_coef = 0.0 for pass_at_k, but recipe=paper has 0.001"):
        script.departures("pass_at_k", PAPERS["pass_at_k"], "pass_at_k")
    row = {**PAPERS["pass_at_k"]["values"]["loss.kl_coef"], "because": {"paper": "why"}}
    paper = {**PAPERS["pass_at_k"], "values": {**PAPERS["pass_at_k"]["values"], "loss.kl_coef": row}}
    found = script.departures("pass_at_k", paper, "pass_at_k")
    assert found.pop(("paper", "loss.kl_coef")) == "why"
    assert {key for _, key in found} <= set(script.SHARED)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"pass_at_k .*\('paper', 'loss\.kl_coef'\)"):
        list(script.section("pass_at_k", paper))


def test_no_setting_that_differs_or_is_open_is_left_out_and_a_section_can_be_read():
    evaluations = "\n".join(script.evaluations())
    for name, paper in PAPERS.items():
        shown = unfolded(script.section(name, paper))
        for experiment in paper["own"]:
            reasons = script.departures(name, paper, experiment)
            for key, row in script.table_of(paper, experiment).items():
                here = script.settings(experiment, "paper").get(key, script.ABSENT)
                elsewhere = key in script.EVALUATION and (
                    f"{script.link(name)} |" in evaluations or script.PLAIN.fullmatch(row.get("open", ""))
                )
                once = name in script.said_once().get((key, script.cell(here)), [])
                if {("paper", key), ("authors", key)} & set(reasons) or script.is_open(row):
                    assert f"| `{key}`" in shown or elsewhere or once, (experiment, key)
        assert len([line for line in shown.splitlines() if line.strip()]) <= 50, name


def test_every_command_is_one():
    programs = {"train": ("", "train"), "compare": (".comparisons", "compare"), "eval": ("", "evaluate")}
    for entry in [entry for paper in PAPERS.values() for entry in paper.get("reproduces", [])]:
        assert entry["how"] in (("exact", "approximate") if entry["command"] else ("impossible",)), entry
        if entry["command"] and entry["command"].startswith("notebooks/"):
            assert (ROOT / entry["command"]).is_file()
        elif entry["command"]:
            program, *overrides = entry["command"].replace(" -m", "").split()
            folder, config = programs[program.removeprefix("tagrpo-")]
            first = overrides
            if " -m" in entry["command"]:
                first = [override.split(",")[0] for override in overrides]  # of a sweep, its first run
            with initialize_config_module(f"tagrpo.configs{folder}", version_base="1.3"):
                compose(config, first)


def is_under(key, names):
    """Check that a setting is one of `names` or below one."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_on_common_settings_methods_differ_in_what_defines_them_alone(scale):
    for experiment, paper in EXPERIMENTS.items():
        found = changes(
            script.settings("grpo", "common", scale), script.settings(experiment, "common", scale)
        )
        # data.template follows template
        followed = {key for key in found if found.get(key.partition(".")[2]) == found[key]}
        # The embedded task makes as many rephrasings as are asked for.
        keys = set(found) - followed - {"name", "data.train.num_rephrasings"}
        defining = PAPERS[paper]["defines"][experiment]
        assert {key for key in keys if not is_under(key, defining)} == set(), experiment
        unused = [name for name in defining if not any(is_under(key, [name]) for key in keys)]
        assert unused == [], experiment


def test_loss_and_schedule_of_the_recipes():
    """The values that comparisons hang on, once more and written down here."""

    def of(experiment, *keys, recipe="paper"):
        return [script.settings(experiment, recipe)[key] for key in keys]

    loss = ("loss.clip_low", "loss.clip_high", "loss.aggregation", "loss.kl_coef", "loss.dual_clip")
    schedule = ("policy.schedule", "policy.warmup", "policy.mini_batches", "data.batch_size")
    assert of("ta_grpo", *loss, *schedule) == [0.2, 0.2, "sequence_mean", 0.001, None, "cosine", 0.1, 2, 256]
    assert of("ta_grpo", *loss, *schedule, recipe="authors") == [
        0.2, 0.2, "token_mean", 0.001, 3.0, "cosine", 0.1, 2, 64,
    ]  # fmt: skip
    assert of("grpo", "data.batch_size", recipe="authors") == [256]
    passk = [0.2, 0.28, "token_mean", 0.0, None, "constant_with_warmup", 40, 4, 128]
    for experiment in ("pass_at_k", "pass_at_1", "combination", "entropy_bonus", "noisy_rewards"):
        assert of(experiment, *loss, *schedule) == passk
    assert of("dapo", *loss, *schedule) == [
        0.2,
        0.28,
        "token_mean",
        0.0,
        None,
        "constant_with_warmup",
        320,
        16,
        512,
    ]
    assert of("exgrpo", *loss[:4], "loss.entropy_aggregation") == [None, None, "constant", 0.0, "token_mean"]
    assert of("cispo", *loss[:3], "rollout.dynamic_sampling.values", "rollout.reward_terms.overlong.weight") == [
        None, 3, "token_mean", "correct", 1.0,
    ]  # fmt: skip
    assert of("cispo", "optimizer.eps", "optimizer.betas") == [1e-15, [0.9, 0.95]]
    assert of("prompt_augmentation", *loss[1:4], *schedule) == [
        0.28,
        "token_mean",
        0.0,
        "constant",
        0.0,
        4,
        128,
    ]
