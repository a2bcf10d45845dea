"""Options that a command line chooses, and groups that a run goes without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.cli.console import named_by_sweep
from tagrpo.settings.checks import check_run
from tagrpo.settings.choices import check_added, check_choices, check_names, check_search, known_settings
from tagrpo.settings.config import compose_run
from tagrpo.settings.methods import options_of
from tests.helpers import forked

CONFIGS = Path(__file__).parents[2] / "configs"
DEFAULT = re.compile(r"^  - /?(\w+): ", re.MULTILINE)
GROUPS = [
    name
    for root in ("train", "scale/demo")
    for name in DEFAULT.findall((CONFIGS / f"{root}.yaml").read_text())
]
SMALL = [
    "iterations=1", "data.train.size=8", "data.batch_size=4", "data.samples_per_prompt=2", "export=false",
    "data.evaluation_samples=2", "data.evaluation.test_id.size=4", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size",
]  # fmt: skip


PLACES = {
    "curriculum": "data.curriculum",
    "dynamic_sampling": "rollout.dynamic_sampling",
    "reward_terms": "rollout.reward_terms",
}
NEEDED = {
    "advantage", "loss", "optimizer", "policy", "scale", "recipe", "model", "template", "reward", "rollout", "trainer",
    "strategy", "data",
}  # fmt: skip
"""Groups of which every run has an option."""


def test_every_group_is_here():
    assert len(GROUPS) > 20
    assert {group for group in GROUPS if "none" not in options_of(group)} == NEEDED


@pytest.mark.parametrize("form", ["{}=null", "~{}", "{}=null,null"])
@pytest.mark.parametrize("group", sorted(NEEDED))
def test_a_group_that_every_run_needs_is_not_left_out(tmp_path, group, form):
    option = re.escape(next(name for name in options_of(group) if name != "base"))
    with pytest.raises(ValueError, match=rf"Expected {group}.*{option}.*{form.format(group)}"):
        compose_run(tmp_path, [form.format(group), "experiment=dapo"])


OPTIONAL = sorted({*GROUPS, "data/evaluation"} - NEEDED)
LEFT_OUT = [f"{group}=none" for group in OPTIONAL] + [
    pytest.param(f"~{group}", marks=[] if group == "credit" else pytest.mark.runs)
    for group in OPTIONAL
    if group != "reward_terms"
]
"""Hydra cannot delete a group that is a list."""


@pytest.mark.parametrize("form", [*LEFT_OUT, "reward_terms=[]"])
def test_a_run_goes_without_any_other_group(tmp_path, form):
    group = form.strip("~").partition("=")[0]
    cfg = compose_run(tmp_path, [form, *(["experiment=dapo"] if group != "experiment" else [])])
    assert not OmegaConf.select(cfg, PLACES.get(group, group.replace("/", ".")))
    assert "${" not in OmegaConf.to_yaml(cfg, resolve=True)


@pytest.mark.parametrize("group", OPTIONAL)
def test_none_is_spelt_as_an_option(tmp_path, group):
    with pytest.raises(ValueError, match=f"Expected {group}=none.*got {group}=null"):
        compose_run(tmp_path, [f"{group}=null"])


@pytest.mark.parametrize(
    "wrong", ["callbacks=5", "recipe={a: 1}", "loss=true", "loss=1.5,clip", "logger=[1,2]"]
)
def test_an_option_is_a_name(wrong):
    with pytest.raises(ValueError, match=f"Expected {wrong.partition('=')[0]}"):
        check_choices([wrong])
    check_choices(
        [
            "loss=clip",
            "reward_terms=[overlong,noise]",
            "reward_terms=[]",
            "+credit=a",
            "seed=null",
            "--cfg=job",
        ]
    )
    check_choices(
        [
            "-m",
            "loss=clip,mine",
            "seed=range(3)",
            "callbacks.pass_at_k=null",
            "~callbacks.recorder",
            "loss@x=1",
        ]
    )


@pytest.mark.parametrize(
    ("experiment", "none", "place"),
    [
        ("dapo", "dynamic_sampling=none", "rollout.dynamic_sampling"),
        ("clip_cov", "dynamic_sampling=none", "rollout.dynamic_sampling"),  # its recipe brings it
        ("cispo", "reward_terms=[]", "rollout.reward_terms"),
        ("dapo", "reward_terms=none", "rollout.reward_terms"),
        ("clip_cov", "credit=none", "credit"),
        ("greso", "curriculum=none", "data.curriculum"),
    ],
)
def test_none_is_none_whatever_an_experiment_sets(tmp_path, experiment, none, place):
    assert OmegaConf.select(compose_run(tmp_path, [f"experiment={experiment}"]), place)
    assert not OmegaConf.select(compose_run(tmp_path, [f"experiment={experiment}", none]), place)
    common = compose_run(tmp_path, [f"experiment={experiment}", none, "scale=paper", "recipe=common"])
    assert not OmegaConf.select(common, place)


def test_a_group_may_have_members_of_ones_own_alone(tmp_path):
    own = "+callbacks.mine._target_=a.B"
    assert compose_run(tmp_path, ["callbacks=none", own]).callbacks == {"mine": {"_target_": "a.B"}}
    assert compose_run(tmp_path, ["logger=none", "logger=csv"]).logger.keys() == {"csv"}


@pytest.mark.parametrize("chosen", ["none", "default"])
def test_what_a_recipe_brings_gives_way_to_what_is_chosen(tmp_path, chosen):
    for recipe in ("paper", "common"):
        cfg = compose_run(tmp_path, ["experiment=clip_cov", f"recipe={recipe}", f"dynamic_sampling={chosen}"])
        assert (cfg.rollout.dynamic_sampling is not None) == (chosen == "default")
    assert compose_run(tmp_path, ["experiment=clip_cov", "recipe=common"]).rollout.dynamic_sampling is None
    assert compose_run(tmp_path, ["experiment=cispo", "recipe=common"]).rollout.reward_terms == {}
    assert compose_run(tmp_path, ["experiment=cispo"]).rollout.reward_terms.keys() == {"signed", "overlong"}


def test_an_evaluation_asks_something(tmp_path):
    cfg = compose_run(tmp_path, ["data/evaluation=none"], "evaluate")
    with pytest.raises(ValueError, match=r"data\.evaluation is empty"):
        check_run(cfg, trains=False)


def test_a_run_without_callbacks_logger_and_test_questions(tmp_path):
    code, said = forked(
        "train", *SMALL[:5], "callbacks=none", "logger=none", "data/evaluation=none", folder=tmp_path
    )
    assert code == 0, said
    assert "Epoch" not in said
    assert "UserWarning" not in said
    run = tmp_path / "runs" / "ta_grpo" / "seed0"
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {
        "config.yaml", "data.json", "finished", "ledger.json", "provenance.json", "train.log",
    }  # fmt: skip


def test_each_value_of_a_sweep_is_read_so(tmp_path):
    code, said = forked("train", "-m", *SMALL, "logger=none,csv", "hydra.sweep.dir=sweep", folder=tmp_path)
    assert code == 0, said
    assert {path.relative_to(tmp_path / "sweep").as_posix() for path in (tmp_path / "sweep").glob("*/*/finished")} == {
        "logger=none/seed0/finished", "logger=csv/seed0/finished",
    }  # fmt: skip
    assert [path.parent.parent.name for path in (tmp_path / "sweep").rglob("metrics.csv")] == ["logger=csv"]


def test_a_sweep_is_named_by_what_varies_alone(tmp_path, monkeypatch):
    """The folders are `runs/<name>/<settings that vary>/seed<seed>`; a sweep of seeds has those of single runs.

    Nothing is trained: the test above has a whole sweep.
    """
    monkeypatch.setattr("tagrpo.cli.train.train", lambda *_, **__: {})
    fixed = [*SMALL, "logger=none", "name=mine"]
    for varying in (["optimizer.lr=1e-4,2e-4", "seed=0,1"], ["seed=2,3"]):
        code, said = forked("train", "-m", *fixed, *varying, folder=tmp_path)
        assert code == 0, said
    found = {
        path.parent.relative_to(tmp_path / "runs").as_posix()
        for path in (tmp_path / "runs").rglob("finished")
    }
    swept = {f"mine/optimizer.lr={lr}/seed{seed}" for lr in ("0.0001", "0.0002") for seed in (0, 1)}
    assert found == {*swept, "mine/seed2", "mine/seed3"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["-m", "experiment=grpo", "seed=0,1"], ["experiment", "name"]),
        (["--multirun", "+notes=a", "~credit", "loss.clip_high=range(1,3)", "name=a,b"], ["credit", "name", "notes"]),
        (["-m", "optimizer.lr=tag(log,interval(1,2))", "hydra.sweep.dir=x"], ["name"]),
    ],
)  # fmt: skip
def test_settings_that_do_not_vary_name_no_folder(words, names):
    (argument,) = named_by_sweep(words)
    listed = ",".join(f'"{name}"' for name in names)
    assert argument == f"hydra.job.config.override_dirname.exclude_keys=[{listed}]"


def test_only_sweeps_name_folders_and_own_names_stay():
    assert named_by_sweep(["seed=0"]) == []
    assert named_by_sweep(["-m", "seed=0,1", "hydra.job.config.override_dirname.exclude_keys=[seed]"]) == []


def test_a_search_is_a_sweep_and_needs_its_plugin(monkeypatch):
    with pytest.raises(ValueError, match=r"-m.*search=optuna"):
        check_search(["search=optuna"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"search=optuna.*tagrpo\[search\]"):
        check_search(["-m", "search=optuna"])
    for words in (["-m", "seed=0,1"], ["search=none"], ["search=optuna", "--cfg", "job"]):
        check_search(words)


def test_optuna_searches_the_settings_that_are_given(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", exc_type=ImportError)
    own = [
        "name=found",
        "hydra.sweeper.n_trials=2",
        "optimizer.lr=tag(log,interval(1e-5,1e-4))",
        "logger=none",
    ]
    code, said = forked("train", "-m", "search=optuna", *SMALL, *own, folder=tmp_path)
    assert code == 0, said
    assert {path.parent.name for path in (tmp_path / "runs" / "found").glob("*/finished")} == {
        "trial0",
        "trial1",
    }
    best = yaml.safe_load((tmp_path / "runs" / "found" / "optimization_results.yaml").read_text())[
        "best_params"
    ]
    assert 1e-5 <= best["optimizer.lr"] <= 1e-4


@pytest.mark.parametrize(
    ("command", "asked", "message"),
    [
        ("compare", ["launcher=null"], "Expected launcher to be one of local, slurm"),
        (
            "compare",
            ["methods=[grpo]", "overrides=['model=null']"],
            "(?s)methods.grpo .*Expected model to be one of",
        ),
        ("rephrase", ["~rephraser"], "Expected rephraser to be one of box1, first_version"),
        ("plan", ["loss=null"], "Expected loss to be one of clip"),
        ("diff", ["loss=null", "loss=clip"], "Expected loss to be one of clip"),
        ("evaluate", ["callbacks=none"], r"Expected callbacks\.pass_at_k"),
    ],
)
def test_other_commands_say_the_same(tmp_path, command, asked, message):
    code, said = forked(command, *asked, folder=tmp_path)
    assert code == 1
    assert re.search(message, said), said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("optimzer.lr=1", "optimizer.lr=1"), ("+optimzer.lr=1", "optimizer.lr=1"), ("++optimiser.lr=2", "optimizer.lr=2"),
        ("rewards=function", "reward=function"), ("advantge=group", "advantage=group"), ("sed=1,2", "seed=1,2"),
        ("~callback.checkpoint", "callbacks.checkpoint"), ("modle.path='a b'", "model.path='a b'"),
    ],
)  # fmt: skip
def test_a_name_that_is_almost_one_is_refused_with_that_one(word, meant):
    with pytest.raises(ValueError, match=rf"{re.escape(word)}\. Did you mean {re.escape(meant)}\?"):
        check_names(["-m", word], known_settings("train"))


@pytest.mark.parametrize(
    "word", ["seed=1", "+notes=a", "+note=a", "hydra.run.dir=x", "loss=clip", "data/evaluation=none", "+x=1", "--info"]
)  # fmt: skip
def test_other_names_are_left_to_the_checks_that_follow(word):
    check_names([word], known_settings("train"))
    check_names(["--config-dir", "mine", "optimzers.lr=1"], known_settings("train"))


@pytest.mark.parametrize("config", ["train", "evaluate", "plan", "verify", "rephrase", "comparisons/compare"])
def test_every_setting_at_the_top_level_is_known(config):
    package, _, name = f"tagrpo.configs.{config.replace('/', '.')}".rpartition(".")
    with initialize_config_module(package, version_base="1.3"):
        composed = {str(key) for key in compose(name)}
    assert composed <= {*known_settings(config)}


@pytest.mark.parametrize(
    ("words", "unread", "meant"),
    [
        (["+foo.lr=3"], "foo", "optimizer.lr=3"), (["++lr=3"], "lr", "optimizer.lr=3"),
        (["+other=1", "loss.clip_high=${another}"], "other", None),
        (["+callbacks.chekpoint.every=3"], "callbacks.chekpoint", "callbacks.checkpoint.every=3"),
        (["+logger.csvs.directory=x"], "logger.csvs", "logger.csv.directory=x"), (["+model.pth=x"], "model.pth", "model.path=x"),
    ],
)  # fmt: skip
def test_an_added_setting_that_nothing_reads_is_refused(words, unread, meant):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", words)
    said = rf"{re.escape(words[0])}.*nothing reads {unread}\." + (
        rf" Did you mean {re.escape(meant)}\?" if meant else ""
    )
    with pytest.raises(ValueError, match=said):
        check_added(cfg, words)


@pytest.mark.parametrize(
    "words",
    [
        ["+rate=0.3", "loss.clip_high=${rate}"], ["+mine.rate=0.3", "loss.clip_high=${mine.rate}"], ["+notes=any thing"],
        ["+callbacks.mine={_target_: lightning.pytorch.callbacks.Timer}"], ["+trainer.limit_test_batches=1"],
        ["+model.load.attn_implementation=sdpa"], ["+averages.some=[test_id]"],
        ["name=x"],
    ],
)  # fmt: skip
def test_an_added_setting_that_is_read_stays(words):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", words)
    check_added(cfg, words)
