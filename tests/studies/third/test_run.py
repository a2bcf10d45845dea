"""One cell of the third edition from its starters to its files, made small; and its arms beside the experiments."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate

from examples.starters import exposed
from studies.third import run as module
from studies.third.design import ARMS, KINDS, KS, RECIPES, UNTRAINED, runs_of
from studies.third.run import Best, Cell, run_cell, success
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.packing.policy import CausalPolicy
from tagrpo.settings.config import compose_run

pytestmark = pytest.mark.pages

SMALL = replace(
    RECIPES["shortest_path"],
    iterations=2, batch_size=2, questions=4, validate_every=1, validation_questions=4, test_questions=8,
)  # fmt: skip
ARM_NAMES = ["grpo", "ta_grpo"]
KINDS_ALONE = ("kinds",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study with a starter that has learned next to nothing."""
    place = tmp_path_factory.mktemp("study")
    config = exposed.ExposedConfig(
        task="shortest_path", steps=60, round_steps=2, rounds=1, validation_questions=4
    )
    torch.set_num_threads(1)
    exposed.Starters(place / "starters" / "shortest_path" / "seed0", config).folder("kinds")
    return place


@pytest.fixture(autouse=True)
def only_one_branch(monkeypatch):
    monkeypatch.setattr(module, "STARTERS", KINDS_ALONE)
    monkeypatch.setattr(module, "DRAWS", 8)


def the_runs(arms=ARM_NAMES):
    """With expected paths, which the plan has none of in this branch."""
    runs = list(runs_of("shortest_path", "kinds", 0, arms))
    return runs + [replace(run, path="expected") for run in runs if run.arm != UNTRAINED]


def test_a_cell_has_the_untrained_policy_first_and_reformulating_arms_once_for_each_kind():
    runs = the_runs()
    assert runs[0].arm == UNTRAINED
    assert [run.kind for run in runs if run.arm == "ta_grpo" and run.path == "sampled"] == list(KINDS)
    assert [(run.path, run.kind) for run in runs if run.arm == "grpo"] == [
        ("sampled", "wording"),
        ("expected", "wording"),
    ]
    assert len({run.file for run in runs}) == len(runs)
    names = [
        run.file.rpartition("/")[2].rpartition("-")[0]
        for run in runs_of("countdown", "gap2", 3, ["grpo", "ta_grpo"])
    ]
    assert names == [
        "untrained-wording-sampled",
        "grpo-wording-sampled",
        "grpo-wording-expected",
        "ta_grpo-wording-sampled",
    ]


def test_what_takes_long_runs_in_the_first_seeds():
    def expected(branch, seed):
        return [run.arm for run in runs_of("countdown", branch, seed) if run.path == "expected"]

    assert expected("gap2", 0) == list(ARMS)
    assert expected("gap2", 2) == [name for name, arm in ARMS.items() if arm.anchor == "own"]
    assert expected("gap0", 4) == ["grpo"]
    assert expected("gap1", 0) == expected("kinds", 0) == []
    assert [len(list(runs_of("countdown", "kinds", seed))) for seed in (4, 5, 100)] == [24, 0, 24]
    assert [run.file for run in runs_of("countdown", "gap2", 1, ["ta_grpo"], rate=0.1)] == [
        "countdown/gap2/seed1/untrained-wording-sampled-0.json",
        "countdown/gap2/seed1/ta_grpo-wording-sampled-0.1.json",
    ]


def test_runs_write_files_that_are_kept_and_come_out_the_same_again(folder, tmp_path):
    chosen = [run for run in the_runs() if run.kind == "wording"]
    written = run_cell(folder, chosen, SMALL)
    assert sorted(written) == sorted(folder / run.file for run in chosen)
    assert run_cell(folder, chosen, SMALL) == []
    before = {path: json.loads(path.read_text()) for path in written}
    for path in written:
        path.unlink()
    assert run_cell(folder, chosen, SMALL) == written
    for path, old in before.items():
        new = json.loads(path.read_text())
        assert {**new, "seconds": 0} == {**old, "seconds": 0}
        if "points" in old:
            assert set(map(str, old["points"].values())) == set(old["tests"])
            assert old["points"]["end"] == SMALL.iterations
            assert [len(each["pass"]) for each in old["validation"]] == 3 * [len(KS)]
            assert {len(p) for of in old["tests"].values() for p in of.values()} == {8, 6}
        if old["path"] == "expected" and old["arm"] != UNTRAINED:
            assert old["training"]["listed"] == pytest.approx([1.0] * 2) or old["arm"] == "ta_grpo"
            assert all(0 < share < 1 + 1e-9 for share in old["training"]["listed"])


def test_all_arms_start_from_the_same_policy_on_the_same_questions_in_the_same_order(folder):
    cell = Cell(folder, "shortest_path", "kinds", 0, SMALL)
    served = {}
    for name, arm in ARMS.items():
        loader = cell.batches(arm, "hint")
        batches = [loader.draw() for _ in range(3)]
        served[name] = [group.id for batch in batches for group in batch.groups]
        prompts = batches[0].prompts
        assert len(prompts) == SMALL.batch_size * (1 + arm.reformulations)
        assert all(prompt.num_samples == arm.samples for prompt in prompts)
        assert {prompt.kind for prompt in prompts} <= {"", "original", "hint"}
    assert len({tuple(ids) for ids in served.values()}) == 1


def test_reformulations_are_asked_apart_from_the_originals_and_the_unseen_wording(folder):
    cell = Cell(folder, "shortest_path", "kinds", 0, SMALL)
    tests = cell.tests("format")
    assert [len(asked.prompts) for asked in tests.values()] == [8, 8, 6]
    texts = {name: [cell.tokenizer.decode(ids) for ids in asked.prompts] for name, asked in tests.items()}
    assert all(text.startswith("Boxes") and "Choose" not in text for text in texts["original"])
    assert all("Choose" in text for text in texts["reformulated"])
    assert all(text.startswith("Tom walks;") for text in texts["unseen"])


def test_the_best_policies_and_the_last_are_kept_and_no_others(folder):
    cell = Cell(folder, "shortest_path", "kinds", 0, SMALL)
    policy, best = CausalPolicy(load_causal_lm(str(cell.starter))), Best()
    values = [(0.1, 0.5), (0.3, 0.4), (0.2, 0.6), (0.1, 0.1)]
    for number, (one, many) in enumerate(values):
        with torch.no_grad():
            next(policy.parameters()).fill_(number)
        best.observe(policy, number, {"best1": one, "best32": many})
    assert best.iterations == {"best1": 1, "best32": 2, "end": 3}
    assert {n: int(next(iter(weights.values())).flatten()[0]) for n, weights in best.weights.items()} == {
        1: 1,
        2: 2,
        3: 3,
    }


def test_success_is_that_of_the_tests_of_the_untrained_policy(folder):
    cell = Cell(folder, "shortest_path", "kinds", 0, SMALL)
    policy = CausalPolicy(load_causal_lm(str(cell.starter)))
    p = success(policy, cell.validation)
    assert p.shape == (4,)
    assert ((p >= 0) & (p <= 1)).all()


@pytest.mark.parametrize(
    ("arm", "experiment"),
    [
        ("grpo", ["experiment=grpo"]),
        ("grpo_matched", ["experiment=grpo_matched"]),
        ("exposure", ["experiment=ta_grpo_star"]),
        ("pooled", ["experiment=ta_grpo_v1"]),
        ("anchored", ["experiment=ta_grpo_star", "policy.anchor=original"]),
        ("ta_grpo", ["experiment=ta_grpo"]),
        ("pass_at_k", ["experiment=pass_at_k", "advantage.k=8"]),
    ],
)
def test_an_arm_is_the_experiment_of_the_package(arm, experiment):
    cfg, ours = compose_run("train", [*experiment, "recipe=common"]), ARMS[arm]
    theirs = instantiate(cfg.advantage)
    assert (cfg.data.num_rephrasings, cfg.data.samples_per_prompt) == (ours.reformulations, ours.samples)
    assert cfg.policy.anchor == ours.anchor
    assert type(theirs) is type(ours.strategy())
    assert vars(theirs) == vars(ours.strategy())
