"""Each method as its paper runs it: the configuration against the papers' values, and the pages that are made of both."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.runs.directory import changes
from tagrpo.settings import methods
from tagrpo.study import evaluate
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


def unfolded(page):
    """What one sees of a page before one opens anything."""
    return re.sub(r"<details.*?</summary>.*?</details>", "", page, flags=re.DOTALL)


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


def test_the_index_is_what_the_script_writes():
    assert script.PAGE.read_text() == script.index(), "run python scripts/methods_page.py"


def test_the_index_is_short_and_has_a_row_for_each_paper_with_its_experiments():
    index = script.index()
    assert len(index.split()) <= 1500
    rows = re.findall(r"^\| \[([^\]]+)\]\(\.\./([^)]+)\) \| (.+?) \| (.+?) \| (.+) \|$", index, re.MULTILINE)
    assert [name for name, *_ in rows] == [script.heading(name) for name in PAPERS]
    for (_, place, arxiv, experiments, does), (name, paper) in zip(rows, PAPERS.items(), strict=True):
        assert (ROOT / place / "paper.yaml").is_file() or (ROOT / place).is_file(), name
        assert re.findall("`(.+?)`", experiments) == list(paper["own"])
        assert arxiv == "none" if paper["arxiv"] is None else f"[{paper['arxiv']}]" in arxiv
        assert does.startswith(paper["idea"]["does"])
        assert does.endswith("(second-hand)") == (paper.get("text", {}).get("state") == "second-hand")


def test_the_idea_of_a_method_is_two_sentences_and_its_objective_is_stated():
    for name, paper in PAPERS.items():
        does, why = paper["idea"]["does"], paper["idea"]["why"]
        assert len(does.split()) <= 30, name
        assert does[0].islower(), name
        assert re.search(r"\.( |$)", does) is None, name
        assert re.fullmatch(r"[A-Z][^.]*(\.\d[^.]*)*\.", why), name
        assert paper["objective"].endswith("."), name
        page = script.page(name)
        assert f"Compared with GRPO, the method {does}. {why}" in page
        assert f"## The objective\n\n{paper['objective']}\n" in page
        assert all(f"\ntagrpo-train experiment={experiment}\n" in page for experiment in paper["own"])


def test_a_table_without_an_idea_or_an_objective_is_refused(monkeypatch, tmp_path):
    fresh = loading.script("methods_page")
    table = tmp_path / "mine.yaml"
    monkeypatch.setattr(fresh.methods, "tables", lambda: {"mine": table})
    for lines in ("objective: A.", "idea: {does: a, why: B.}", "idea: {does: a}\nobjective: A."):
        table.write_text(f"title: Mine\narxiv: null\nown: {{}}\n{lines}\n")
        fresh.papers.cache_clear()
        with pytest.raises(ValueError, match=r"`idea`.*`objective`.*mine\.yaml"):
            fresh.papers()
    table.write_text("title: Mine\narxiv: null\nown: {}\nidea: {does: a, why: B.}\nobjective: A.\n")
    fresh.papers.cache_clear()
    assert list(fresh.papers()) == ["mine"]


def test_all_settings_are_the_papers_or_have_a_reason_and_the_page_shows_no_others():
    # page() raises where the configuration differs from a paper without a reason, or a reason is given for nothing
    for name, paper in PAPERS.items():
        rows = re.findall(
            r"^\| `([\w.]+)`", script.page(name).partition("| setting | paper |")[2], re.MULTILINE
        )
        differing = {
            key for experiment in paper["own"] for _, key in script.departures(name, paper, experiment)
        }
        values = [item for experiment in paper["own"] for item in script.table_of(paper, experiment).items()]
        assert set(rows) <= differing | {key for key, row in values if script.is_open(row)}, name


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
        script.compared("pass_at_k", paper)


def test_no_setting_that_differs_or_is_open_is_left_out_and_a_section_can_be_read():
    for name, paper in PAPERS.items():
        shown = unfolded(script.page(name))
        for experiment in paper["own"]:
            reasons = script.departures(name, paper, experiment)
            for key, row in script.table_of(paper, experiment).items():
                here = script.settings(experiment, "paper").get(key, script.ABSENT)
                elsewhere = key in script.EVALUATION and (
                    f"{script.EVALUATION[key]} {script.cell(script.wanted(row, 'paper'))}" in shown
                    or script.PLAIN.fullmatch(row.get("open", ""))
                )
                once = name in script.said_once().get((key, script.cell(here)), [])
                if {("paper", key), ("authors", key)} & set(reasons) or script.is_open(row):
                    assert f"| `{key}`" in shown or elsewhere or (once and f"`{key}`" in shown), (
                        experiment,
                        key,
                    )
        assert len([line for line in shown.splitlines() if line.strip()]) <= 80, name


def test_every_command_is_one():
    programs = {"train": ("", "train"), "compare": (".comparisons", "compare"), "eval": ("", "evaluate")}
    for entry in [entry for paper in PAPERS.values() for entry in paper.get("reproduces", [])]:
        assert entry["how"] in (("exact", "approximate") if entry["command"] else ("impossible",)), entry
        for command in (entry["command"] or "").split(" && "):
            if command.startswith("notebooks/"):
                assert (ROOT / command).is_file()
            elif command:
                program, *overrides = shlex.split(command.replace(" -m", ""))
                folder, config = programs[program.removeprefix("tagrpo-")]
                first = overrides
                if " -m" in command:
                    first = [override.split(",")[0] for override in overrides]  # of a sweep, its first run
                with initialize_config_module(f"tagrpo.configs{folder}", version_base="1.3"):
                    compose(config, first)


def test_one_command_of_figs_3_and_4_of_ta_grpo_trains_and_diagnoses_five_points():
    entries = [entry for entry in PAPERS["ta_grpo"]["reproduces"] if entry["place"] == "Figs. 3 and 4"]
    (trains, diagnoses) = (shlex.split(command) for command in entries[0]["command"].split(" && "))
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        trained = compose("train", trains[1:])
        diagnosed = compose("evaluate", diagnoses[1:])
    kept = [*trained.callbacks.checkpoint.fractions, 1.0]
    assert tuple(kept) == evaluate.QUARTERS  # beside the policy that training began with
    assert diagnosed.diagnose == f"runs/{trained.name}/seed{trained.seed}"
    assert diagnosed.diagnose_questions is None
    for name in evaluate.AS_TRAINED:
        assert OmegaConf.select(diagnosed, name) == OmegaConf.select(trained, name), name


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
