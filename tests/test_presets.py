"""Every comparison that is named after a table or figure has its rows and averages, composed; one of each kind is run.

The numbers say nothing of the papers: each run makes an iteration or two of the embedded task with a policy of half a
million parameters, and is asked two questions under the name of each benchmark.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import OmegaConf, open_dict

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.runs import by_method, find_runs
from tagrpo.analysis.sections import markdown
from tagrpo.cli.train import train
from tagrpo.datamodules.sources.catalogue import CATALOGUE
from tagrpo.report.assemble import draw
from tagrpo.runs.directory import admit, begin, end
from tagrpo.runs.grid import copy_run
from tagrpo.runs.secrets import save_resolved
from tagrpo.settings.checks import read_questions
from tagrpo.settings.config import build, check_settings
from tagrpo.settings.methods import options_of
from tagrpo.study.compare import methods_of, runs_of, shared_overrides

pytestmark = pytest.mark.pages

PRESETS = list(options_of("comparisons/compare"))
NO_TABLE = {"demo", "demo_lm", "hard", "methods", "ta_grpo_2x2", "ta_grpo_rows"}
NEEDED = ["+rephrasings=r.jsonl", "+questions=q.jsonl", "+test=t.jsonl"]
TA_GRPO = ["amc", "olympiadbench", "aime24", "aime25", "minerva", "gpqa_diamond"]
PASS_AT_K = ["aime24", "aime25", "olymmath_easy", "olymmath_hard"]
MAZES = [f"maze_{width}" for width in range(7, 22, 2)]


class Printed(NamedTuple):
    """A table or figure: its rows and curves, by what they are called there, with the names that they have here."""

    rows: dict[str, str]
    benchmarks: list[str] = PASS_AT_K
    averages: tuple[str, ...] = ("pass_at_k_four",)


STAGES = {
    "Baseline": "base", "+ P@1 T.": "pass_at_1", "+ P@k T.": "pass_at_k", "+ P@k T. + P@1 T.": "pass_at_k_then_1",
}  # fmt: skip
SCALED = {
    f"{name} {x}x": f"{row}_{x}x"
    for x in ("1.5", "2", "2.5")
    for name, row in (("GRPO", "grpo"), ("GRPO w/ DS", "grpo_ds"))
}
NOISES = {f"Noise {10 * n}%": f"noise_0.{n}" for n in (1, 3, 5)}
ENTROPIES = {f"Entropy {c}": f"entropy_{c}" for c in ("0.001", "0.003", "0.005")}
PRINTED = {
    "ta_grpo_table1": Printed(
        {"Base": "base", "GRPO": "grpo", "GRPO w/ DS": "grpo_ds", "TA-GRPO": "ta_grpo"},
        TA_GRPO, ("competition", "out_of_distribution"),
    ),
    "ta_grpo_fig6": Printed(
        {"GRPO": "grpo", "(N+1)×GRPO": "grpo_matched", "(N+1)×GRPO w/ DS": "grpo_matched_ds", "TA-GRPO": "ta_grpo"},
        TA_GRPO, (),
    ),
    "ta_grpo_fig7": Printed(
        {"GRPO 1x": "grpo", "GRPO w/ DS 1x": "grpo_ds", **SCALED, "TA-GRPO 1x": "ta_grpo"}, TA_GRPO, ("ta_grpo_six",)
    ),
    "ta_grpo_fig8": Printed(
        {"GRPO": "grpo", "TA-GRPO*": "ta_grpo_star", "TA-GRPO": "ta_grpo"}, TA_GRPO, ("ta_grpo_six",)
    ),
    "ta_grpo_v1": Printed({"Base": "base", "GRPO": "grpo", "TA-GRPO": "ta_grpo_v1"}, TA_GRPO, ()),
    "passk_fig1": Printed({"Pass@1 Training": "pass_at_1", "Pass@K Training": "then_k", "Pass@1 again": "then_1"}),
    "passk_fig6": Printed(
        {"Pass@1 Training": "pass_at_1", "Pass@k Training": "pass_at_k", **NOISES, **ENTROPIES}, MAZES, ()
    ),
    "passk_fig8": Printed(
        {"k = 4": "k4", "k = 8, LR 1e-6": "k8", "k = 16": "k16", "LR 2e-6": "k8_lr2", "LR 4e-6": "k8_lr4"},
        MAZES, (),
    ),
    "passk_fig10": Printed(
        {
            "Pass@1 Training": "pass_at_1", "w/o easy problems": "without_easy", "Pass@k Training": "pass_at_k",
            "Exceeding Pass@k Training": "exceeding", "Combination Training": "combination",
            "Adaptive Training": "entropy_adaptive",
        }
    ),
    "passk_stages": Printed(STAGES),
    "passk_table5": Printed({**STAGES, "+ (P@k T. + P@1 T.) × 2": "pass_at_k_then_1_twice"}),
    "passk_table7": Printed(
        {"+ P@1 T.": "pass_at_1", "+ P@k T. w/ FS": "full", "+ P@k T. w/ BS": "bootstrap", "+ P@k T. w/ AD": "analytic"},
        MAZES, (),
    ),
    "prompt_augmentation_table2": Printed(
        {
            "Qwen2.5-Math-1.5B": "base", "GRPO": "grpo", "DAPO": "dapo",
            "DAPO w/ Prompt Aug (Step 2720)": "step_2720", "DAPO w/ Prompt Aug (Step 2480)": "step_2480",
        },
        ["amc", "olympiadbench", "aime24", "minerva", "math500"], ("prompt_augmentation_five",),
    ),
}  # fmt: skip
SAMPLES = 4
RUN = {
    "ta_grpo_table1": "a base, dynamic sampling, two averages",
    "ta_grpo_fig7": "more training questions, a figure of its own",
    "passk_table5": "up to four stages, each on the policy of the one before",
    "prompt_augmentation_table2": "a run that goes on from the checkpoint of a shorter one",
}
"""Presets that are run, and what they have that others have not: all experiments run in tests/cli/test_train.py."""
QUICK = "ta_grpo_table1"
LEFT_OUT = ("grpo_1.5x", "grpo_2x", "grpo_ds_1.5x", "grpo_ds_2x")
"""Rows of theirs that differ from another in a number alone."""


def presets(preset, scale):
    """Methods of a preset, and the overrides that all of its runs get."""
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg = compose("compare", [f"compare={preset}", f"scale={scale}", *NEEDED], return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    assert cfg.root.startswith(f"runs/{preset}")
    return methods_of(cfg.methods, scale), shared_overrides(cfg)


@cache
def composed(preset):
    """Row → settings of its runs at scale=paper."""
    methods, shared = presets(preset, "paper")
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return {row: compose("train", [f"name={row}", *shared, *m.overrides]) for row, m in methods.items()}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_with_a_base_that_is_not_trained_and_other_rows_that_are(preset):
    assert (preset in NO_TABLE) != (preset in PRINTED)
    for row, cfg in composed(preset).items():
        assert cfg.name == row
        check_settings(cfg)
        instantiate(cfg.advantage)
        instantiate(cfg.loss)
        assert (row == "base") == (0 in (cfg.iterations, cfg.trainer.max_steps))


def flat(node, prefix=""):
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {
        path: leaf for key, value in node.items() for path, leaf in flat(value, f"{prefix}{key}.").items()
    }


def difference(one, other):
    """The settings in which two configurations differ."""
    a, b = (flat(OmegaConf.to_container(cfg)) for cfg in (one, other))
    return {path for path in a.keys() | b.keys() if a.get(path) != b.get(path)} - {"name"}


@pytest.mark.parametrize("preset", PRINTED)
def test_all_rows_are_asked_the_printed_benchmarks_alike(preset):
    printed, rows = PRINTED[preset], composed(preset)
    assert rows.keys() >= set(printed.rows.values())
    (protocol,) = {
        json.dumps(
            [
                OmegaConf.to_container(cfg.data.evaluation), cfg.data.evaluation_samples,
                OmegaConf.to_container(cfg.averages),
                OmegaConf.to_container(cfg.rollout.evaluation_sampling, resolve=True),
                (cfg.data.evaluation_template or cfg.template).name,
            ]
        )
        for cfg in rows.values()
    }  # fmt: skip
    evaluation, *_, averages, _, _ = json.loads(protocol)
    assert sorted(evaluation) == sorted(printed.benchmarks)
    covered = {name for name, splits in averages.items() if set(splits) <= set(evaluation)}
    assert covered >= set(printed.averages)


def test_the_protocols_are_those_of_the_papers():
    def protocol(preset):
        cfg = next(iter(composed(preset).values()))
        sampling = cfg.rollout.evaluation_sampling
        asked = (cfg.data.evaluation_template or cfg.template).name
        return (
            cfg.data.evaluation_samples,
            sampling.temperature,
            sampling.top_p,
            sampling.max_new_tokens,
            asked,
        )

    assert protocol("ta_grpo_table1") == (128, 0.6, 0.95, 3072, "raw_boxed")
    assert protocol("ta_grpo_v1") == (32, 0.6, 0.95, 3072, "raw_boxed")
    assert protocol("passk_table5") == (8, 1.0, 0.95, 10240, "boxed")
    assert protocol("passk_table7") == (32, 1.0, 0.95, 3072, "maze")
    assert protocol("prompt_augmentation_table2") == (5, 0.0, 1.0, 3000, "qwen-math")


def test_mazes_have_the_sizes_of_the_paper_and_figure_6_those_of_9_by_9_alone():
    widths = {}
    for preset in ("passk_table7", "passk_fig6", "passk_fig8"):
        sources = {
            json.dumps(OmegaConf.to_container(cfg.data.train.sources)) for cfg in composed(preset).values()
        }
        widths[preset] = sorted(source["width"] for source in json.loads(*sources).values())
    assert widths == {"passk_table7": [9, 11, 13, 15], "passk_fig6": [9], "passk_fig8": [9, 11, 13, 15]}


def test_methods_with_and_without_dynamic_sampling_have_the_same_epochs():
    for preset in ("ta_grpo_table1", "ta_grpo_fig6", "ta_grpo_fig7", "ta_grpo_fig8"):
        rows = composed(preset)
        with_draws = [row for row in rows if "_ds" in row]
        assert with_draws
        for row in with_draws:
            plain = rows[row.replace("_ds", "")]
            assert all(path.startswith("rollout.dynamic_sampling") for path in difference(rows[row], plain))
            assert (plain.trainer.max_epochs, plain.trainer.max_steps) == (2, -1)


def test_data_is_scaled_as_in_figure_7_and_in_nothing_else():
    rows = composed("ta_grpo_fig7")
    questions = CATALOGUE["math_train"].questions
    for scale, row in ((1.5, "grpo_1.5x"), (2, "grpo_2x"), (2.5, "grpo_2.5x")):
        openr1 = rows[row].data.train.sources.openr1
        assert questions + len(openr1.chunks) * openr1.chunk_size == scale * questions
        assert {path.rpartition("data.train.")[0] for path in difference(rows[row], rows["grpo"])} == {""}


def test_responses_are_as_long_as_their_model_had_them():
    lengths = {"r1_qwen_1.5b": 10240, "r1_qwen_7b": 10240, "llama3.2_3b": 6144, "llama3.1_8b": 6144}
    for model, length in lengths.items():
        with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
            cfg = compose("compare", ["compare=passk_table5", f"model={model}"], return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        with initialize_config_module("tagrpo.configs", version_base="1.3"):
            run = compose("train", shared_overrides(cfg))
        assert (run.rollout.sampling.max_new_tokens, run.data.max_prompt_tokens) == (length, 2048)


def test_the_checkpoints_of_prompt_augmentation_lie_within_its_runs():
    rows = composed("prompt_augmentation_table2")
    per_epoch = CATALOGUE["simplerl_math"].questions // rows["step_2480"].data.batch_size
    epochs = {row: cfg.trainer.max_epochs for row, cfg in rows.items() if cfg.iterations is None}
    assert epochs == {
        "grpo_20_epochs": 20, "prompt_augmentation_60_epochs": 60, "grpo_large_kl": 50, "without_format": 40,
    }  # fmt: skip
    assert per_epoch * 60 == 3960, "the last that the authors evaluate (eval_iterative.sh)"
    steps = {row: cfg.iterations for row, cfg in rows.items() if cfg.iterations}
    assert steps == {"grpo": 760, "dapo": 900, "step_2480": 2480, "step_2720": 2720}
    assert {cfg.data.train.dataset for cfg in rows.values()} == {"simplerl_math"}
    assert {
        rows[row].template.name for row in ("base", "grpo", "dapo", "grpo_20_epochs", "grpo_large_kl")
    } == {"qwen-math"}
    assert rows["dapo"].template.system == rows["step_2480"].template.templates["qwen-math"].system


def test_controls_are_as_long_as_what_they_control_and_differ_in_what_they_say():
    for preset, controls in (
        ("passk_stages", {"pass_at_k_then_1": "pass_at_1_then_1"}),
        (
            "passk_table5",
            {"pass_at_k_then_1": "pass_at_1_then_1", "pass_at_k_then_1_twice": "pass_at_1_four_times"},
        ),
    ):
        stages = {}
        for row, method in presets(preset, "paper")[0].items():
            stages[row] = [*stages.get(method.after, []), method.overrides]
        for row, control in controls.items():
            assert stages[control] == [["experiment=pass_at_1"]] * len(stages[row])
            assert stages[row] != stages[control]


def shrink(cfg, benchmarks, averages, iterations):
    """Make a run of the embedded task as small as it can be, and ask it under the names of the benchmarks."""
    source = {**OmegaConf.to_container(cfg.data.evaluation.test_id), "size": 2}
    with open_dict(cfg):
        cfg.data.evaluation = dict.fromkeys(benchmarks, source)
        cfg.averages = averages
        cfg.callbacks = {name: cfg.callbacks[name] for name in ("pass_at_k", "checkpoint")}
        cfg.data.train.size //= 64
        cfg.data.batch_size, cfg.data.evaluation_samples, cfg.policy.mini_batches = 2, SAMPLES, 1
        cfg.rollout.sampling.max_new_tokens = 4
        if cfg.rollout.dynamic_sampling is not None:
            cfg.rollout.dynamic_sampling.max_draws = 1
        cfg.trainer.limit_val_batches, cfg.trainer.enable_progress_bar = 0, False
        cfg.iterations = iterations


def run(cfg, grid_run):
    """Train and test in this process what tagrpo-compare would start as one of its own."""
    if grid_run.longer:
        copy_run(grid_run.after.directory, grid_run.directory)
    HydraConfig.instance().set_config(cfg)
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    admit(plain, grid_run.directory)
    begin(grid_run.directory)
    built = build(cfg)
    try:
        read_questions(cfg, built, trains=cfg.iterations != 0)
        save_resolved(plain, grid_run.directory)
        export = grid_run.directory / "model" if cfg.export else None
        train(built.module, built.datamodule, built.trainer, resume=cfg.resume, export=export)
    finally:
        built.close()
    end(grid_run.directory)


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in RUN]
)
def test_a_run_of_every_row_gives_the_rows_and_averages_of_the_table(preset, tmp_path):
    printed = PRINTED[preset]
    paper = next(iter(composed(preset).values()))
    methods, shared = presets(preset, "demo")
    methods = {row: method for row, method in methods.items() if row not in LEFT_OUT}
    runs = runs_of(tmp_path, methods, [0], shared)
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfgs = [compose("train", [*r.command[3:], "resume=auto"], return_hydra_config=True) for r in runs]
    lengths = sorted({cfg.iterations for cfg in cfgs} | {0})
    for cfg, grid_run in zip(cfgs, runs, strict=True):
        cfg.hydra.runtime.output_dir = str(grid_run.directory)
        iterations = lengths.index(cfg.iterations)
        assert (iterations == 0) == (grid_run.method == "base")
        shrink(cfg, list(paper.data.evaluation), OmegaConf.to_container(paper.averages), iterations)
        run(cfg, grid_run)
    compared = Methods(by_method(find_runs(tmp_path), list(methods)))
    results, report = compared.results(), markdown(compared, {})
    assert list(results["pass_at_k"]) == list(paper.data.evaluation)
    for row in set(printed.rows.values()) - set(LEFT_OUT):
        for split in printed.benchmarks:
            assert set(results["pass_at_k"][split][row]) >= {"1", str(SAMPLES)} or preset.startswith("prompt")
        for average in printed.averages:
            of_splits = [results["pass_at_k"][split][row]["1"]["value"] for split in paper.averages[average]]
            found = results["averages"][average]
            assert found["pass_at_k"][row]["1"]["value"] == pytest.approx(sum(of_splits) / len(of_splits))
            assert row in found["by_question"]
            assert f"| {average} (average) | {row} |" in report
    if preset == "ta_grpo_fig7":
        figures = draw(compared, tmp_path)
        assert "training questions" not in figures["pass_at_k.png"]
        assert (tmp_path / "data.png").stat().st_size > 10_000
        assert compared.data_series == [
            ["grpo", "grpo_2.5x"],
            ["grpo_ds", "grpo_ds_2.5x"],
            ["ta_grpo"],
        ]  # fmt: skip
        assert compared.training_questions["grpo_2.5x"] == 2.5 * compared.training_questions["grpo"]
    for row, method in methods.items():
        if method.longer:
            ledgers = [
                json.loads((Path(tmp_path) / r / "seed0" / "ledger.json").read_text())
                for r in (method.longer, row)
            ]
            assert ledgers[1]["rollouts"] > ledgers[0]["rollouts"] > 0
