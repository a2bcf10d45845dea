"""The configuration tree: everything composes, and what can't work fails before a model is loaded."""

from __future__ import annotations

import logging
import warnings
from contextlib import closing, suppress
from inspect import signature
from itertools import zip_longest
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException, InstantiationException, MissingConfigException
from hydra.utils import instantiate
from lightning.pytorch import Callback, Trainer
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from tagrpo.datamodules.sources.catalogue import CATALOGUE
from tagrpo.datamodules.sources.table import FIELDS, TableSource
from tagrpo.modules.lightning.policy_module import PolicyModule
from tagrpo.modules.policy import model
from tagrpo.settings import config
from tagrpo.settings.config import guard_hooks
from tagrpo.settings.methods import experiments, options_of
from tagrpo.settings.numbers import check_numbers
from tagrpo.settings.typed import check_declared

CONFIGS = Path(__file__).parents[2] / "configs"


def options(group):
    return list(options_of(group))


def composed(*overrides, name="train"):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose(name, list(overrides), return_hydra_config=True)


def build(tmp_path, *overrides):
    cfg = config.compose_run(tmp_path, overrides)
    config.check_settings(cfg)
    return config.build(cfg)


def test_iterations_are_whole(tmp_path):
    for iterations in ("1.5", "-1", "many"):
        with pytest.raises((ValueError, InterpolationResolutionError), match="iterations"):
            build(tmp_path, f"iterations={iterations}")


def test_a_model_that_is_in_a_package_is_made_first(tmp_path):
    made = tmp_path / "made"
    with pytest.raises(FileNotFoundError, match="a folder without one"):
        build(tmp_path, f"model.path={made}", "+model.make._target_=os.makedirs", f"+model.make.name={made}")
    assert made.is_dir()
    for name in ("smollm2_135m", "smollm2_135m_hub"):
        cfg = composed(f"model={name}")
        path, make = cfg.model.path, cfg.model.make
        assert path == (make.folder if make else "HuggingFaceTB/SmolLM2-135M-Instruct")


@pytest.fixture(autouse=True)
def no_model(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(model.AutoModelForCausalLM, "from_pretrained", refuse)


CORE = {path.stem for path in (CONFIGS / "experiment").glob("*.yaml")}


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=[] if name in CORE else pytest.mark.runs) for name in experiments()],
)
@pytest.mark.parametrize(
    "scale", [pytest.param([], marks=pytest.mark.slow), ["scale=paper", "data=math"]], ids=["demo", "paper"]
)
def test_every_experiment_composes_and_its_validation_at_the_papers_scale_samples_less_than_a_tenth(
    experiment, scale
):
    cfg = composed(f"experiment={experiment}", *scale)
    assert cfg.name == experiment
    cfg.model.path = "owner/name"
    assert isinstance(config.policy_module(cfg), PolicyModule)
    if scale:
        sampled = cfg.data.batch_size * cfg.data.samples_per_prompt * (1 + cfg.data.num_rephrasings)
        sets = [CATALOGUE[source.dataset] for source in cfg.data.evaluation.values()]
        asked = sum(dataset.questions or dataset.rows for dataset in sets) * cfg.data.validation_samples
        assert 0 < asked < sampled * cfg.trainer.val_check_interval / 10
        assert cfg.data.evaluation_samples == 128
        check_pool(cfg)


def check_pool(cfg):
    """Check that `dynamic_sampling=default` asks for the pool of the advantages, or of their base."""
    cfg.rollout.dynamic_sampling = OmegaConf.load(CONFIGS / "dynamic_sampling" / "default.yaml")
    names = [
        name for name in ("advantage.group_by", "advantage.base.group_by") if OmegaConf.select(cfg, name)
    ]
    for pool in ("prompt", "question"):
        for name in names:
            OmegaConf.update(cfg, name, pool)
        assert cfg.rollout.dynamic_sampling.pool == (pool if names else "question")


LLMS = sorted({*options("model")} - {"starter", "pretrained"})


@pytest.mark.parametrize(
    "llm",
    [pytest.param(llm, marks=pytest.mark.runs if number % 5 else []) for number, llm in enumerate(LLMS)],
)
def test_the_papers_settings_are_those_of_table_2(llm):
    cfg = composed(
        "experiment=ta_grpo",
        "scale=paper",
        f"model={llm}",
        "data.train.path=x",
        "data.evaluation.test.path=y",
    )
    assert (cfg.data.max_prompt_tokens, cfg.rollout.sampling.max_new_tokens) == (512, 3072)
    assert (cfg.rollout.sampling.temperature, cfg.loss.kl_coef) == (1.0, 0.001)
    assert (cfg.loss.clip_low, cfg.loss.clip_high, cfg.optimizer.lr) == (0.2, 0.2, 1e-6)
    assert (cfg.data.batch_size, cfg.policy.mini_batches, cfg.trainer.max_epochs) == (256, 2, 2)
    assert (cfg.data.num_rephrasings, cfg.data.samples_per_prompt) == (3, 8)
    assert (cfg.policy.anchor, cfg.advantage.group_by) == ("original", "question")
    assert "/" in cfg.model.path


def test_vllm_plans_for_the_longest_prompt_and_response_of_training_or_evaluation():
    limits = ["rollout=vllm", "data.max_prompt_tokens=100", "rollout.sampling.max_new_tokens=50"]
    for overrides, expected in (
        (["data.max_evaluation_prompt_tokens=30", "rollout.evaluation_sampling.max_new_tokens=70"], 150),
        (["data.max_evaluation_prompt_tokens=90", "rollout.evaluation_sampling.max_new_tokens=70"], 160),
        (["data.max_evaluation_prompt_tokens=null", "rollout.evaluation_sampling.max_new_tokens=70"], 170),
        (["rollout.engine.max_model_len=1000"], 1000),
    ):
        assert composed(*limits, *overrides).rollout.engine.max_model_len == expected


def test_iterations_end_a_run_of_epochs_before_its_time():
    paper = ["scale=paper", "data=math"]
    assert [composed(*paper).trainer[name] for name in ("max_steps", "max_epochs")] == [-1, 2]
    assert [composed(*paper, "iterations=5").trainer[name] for name in ("max_steps", "max_epochs")] == [10, 2]
    assert composed("debug=smoke", *paper).trainer.max_steps == 4
    rloo = composed("experiment=rloo", *paper)
    assert (rloo.trainer.max_steps, rloo.trainer.max_epochs) == (600 * rloo.policy.mini_batches, -1)


def command_of(group):
    """The command whose configuration chooses from a group: train, unless another one lists it."""
    for path in CONFIGS.glob("*.yaml"):
        chosen = [entry for entry in yaml.safe_load(path.read_text())["defaults"] if isinstance(entry, dict)]
        if path.stem != "train" and any(group in entry for entry in chosen):
            return path.stem
    return "train"


def test_every_option_of_every_group_composes():
    """One option of each group at a time: as many compositions as the largest group has options."""
    # comparisons is the configuration of another command; experiments and settings of papers are composed above
    others = {"comparisons", "experiment", "papers", "settings", "__pycache__"}
    groups = {path.name for path in CONFIGS.iterdir() if path.is_dir()} - others
    chosen = {}
    for group in sorted(groups):
        names = [name for name in options(group) if name != "base"]
        assert names, group
        chosen.setdefault(command_of(group), []).append([f"{group}={name}" for name in names])
    assert set(chosen) == {"train", "rephrase"}
    for command, overrides in chosen.items():
        for row in zip_longest(*overrides):
            composed(*filter(None, row), name=command)


BENCHMARKS = ["amc", "olympiadbench", "aime24", "aime25", "minerva", "gpqa_diamond", "math500"]


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("math", BENCHMARKS),
        ("math_openr1", BENCHMARKS),
        ("dapo_17k", BENCHMARKS),
        ("rephrasing_rows", BENCHMARKS),
        ("gsm8k", ["gsm8k"]),
        ("benchmarks", BENCHMARKS),
    ],
)
def test_public_data_builds_with_the_papers_settings_and_reads_from_one_folder(name, test, tmp_path):
    cfg = composed("scale=paper", f"data={name}", f"data_path={tmp_path}", "model=starter", name="evaluate")
    datamodule = instantiate(cfg.data)
    assert list(datamodule.evaluation_sources) == test
    assert (datamodule.batch_size, datamodule.max_prompt_tokens, datamodule.evaluation_samples) == (
        256,
        512,
        128,
    )
    sources = [
        *datamodule.evaluation_sources.values(),
        *([datamodule.train_source] if name != "benchmarks" else []),
    ]
    sources = [part for source in sources for part in getattr(source, "sources", {"": source}).values()]
    assert {str(source.path) for source in sources} == {str(tmp_path)}
    with closing(instantiate(cfg.reward)) as reward:
        assert reward(r"So the answer is $\boxed{\text{(B)}}$.", "B").correct


def test_a_benchmark_can_be_left_out():
    cfg = composed("data=benchmarks", "~data.evaluation.minerva", name="evaluate")
    assert list(cfg.data.evaluation) == [name for name in BENCHMARKS if name != "minerva"]


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("policy.anchr=own", ConfigCompositionException, "policy.anchr"),
        ("experiment=ta_grop", MissingConfigException, "ta_grpo"),
        ("policy.anchor=q0", ValueError, "policy.anchor to be original or own"),
        ("advantage.group_by=rank", ValueError, "advantage.group_by to be question or prompt or batch"),
        ("data.batch_size=1", ValueError, "Raise data.batch_size"),
        ("rollout.sampling.temperature=0", ValueError, "evaluation_sampling.temperature=0"),
        ("model.path=./no/such/model", Exception, "model.path"),
        ("data.train.regime=easy", Exception, "mixed, hard"),
        ("loss.aggregation=constant", Exception, "loss.max_length"),
        ("template=raw_boxed", ValueError, "Use reward=mixed or reward=math"),
        ("iterations=1.5", ValueError, "iterations to be a whole number"),
        (
            ["experiment=grpo", "data.samples_per_prompt=1"],
            ValueError,
            "pools of data.samples_per_prompt = 1",
        ),
        (
            ["experiment=ta_grpo", "data.samples_per_prompt=1", "data.num_rephrasings=0"],
            ValueError,
            "Raise data.samples_per_prompt",
        ),
        (["experiment=pass_at_k", "advantage.k=32"], ValueError, "more than 32 responses"),
        (["experiment=pass_at_1", "+advantage.base={k: 99}"], ValueError, "lower advantage.base.k"),
        (["advantage=combination", "advantage.k=40"], ValueError, "(data.num_rephrasings + 1) = 32"),
        (
            ["experiment=pass_at_k", "reward_terms=noise"],
            ValueError,
            "rollout.reward_terms are noise, but PassAtKAdvantage reads verdicts alone",
        ),
        (
            ["experiment=pkpo", "reward_terms=[signed,overlong]"],
            ValueError,
            "are signed, overlong, but PKPOAdvantage",
        ),
        (["experiment=nsr", "reward_terms=overlong"], ValueError, "VerdictAdvantage"),
        (["advantage=exceeding", "reward_terms=length"], ValueError, "or 'reward_terms=[]'"),
        (
            ["experiment=gspo", "recipe=authors"],
            ValueError,
            "no settings gspo/authors for gspo. Use recipe=paper",
        ),
    ],
)
def test_what_cannot_work_fails_at_once_and_says_what_to_change(tmp_path, override, error, message):
    with pytest.raises(error) as raised:
        build(tmp_path, *([override] if isinstance(override, str) else override))
    assert message in str(raised.value) + str(raised.value.__cause__)


@pytest.mark.parametrize(
    "overrides",
    [
        ["advantage=pass_at_k", "advantage.k=31"],
        ["data.samples_per_prompt=1", "data.num_rephrasings=1"],
        ["experiment=grpo", "advantage.group_by=batch", "data.samples_per_prompt=1"],
        ["experiment=grpo", "advantage.baseline=none", "advantage.scale=none", "data.samples_per_prompt=1"],
        ["advantage=pass_at_k", "advantage.k=99", "data.num_rephrasings=null"],
    ],
)
def test_pools_that_are_just_large_enough_pass(overrides):
    config.check_settings(composed(*overrides))


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_ranks_wait_for_one_another_longer_than_rank_0_for_a_server(strategy, monkeypatch):
    cfg = composed("rollout=vllm_server", "trainer.devices=2", f"strategy={strategy}")
    groups = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **options: groups.append(options))
    trainer = Trainer(accelerator="cpu", devices=1, strategy=instantiate(cfg.strategy), logger=False)
    with suppress(ValueError):  # what follows needs the group
        trainer.strategy.setup_environment()
    assert [group["timeout"].total_seconds() for group in groups] == [180 * 60]
    assert (
        composed("rollout=vllm", "trainer.devices=2", f"strategy={strategy}").strategy.timeout.minutes == 30
    )
    longer = composed("rollout=vllm_server", "rollout.engine.timeout=3600", f"strategy={strategy}")
    assert longer.strategy.timeout.minutes == 10 + 5 * 60 + 20


@pytest.mark.parametrize("task", ["shortest_path", "countdown"])
def test_a_starter_that_has_not_been_made_is_refused_with_the_command_that_makes_it(task, tmp_path):
    folder = tmp_path / "starter"
    with pytest.raises(
        ValueError, match=rf"`python -m examples.starters.warmstart --task {task} --output {folder}`"
    ):
        build(tmp_path, f"data={task}", f"model.path={folder}")


def test_callbacks_are_built_in_the_order_of_their_stages(tmp_path):
    kinds = [type(callback).__name__ for callback in build(tmp_path).trainer.callbacks]
    ours = ["Checkpointer", "ThroughputMonitor", "ZeroGradientMonitor", "RolloutCallback", "ScalarLog"]
    assert [kind for kind in kinds if kind in ours] == ours
    assert kinds[0] == "Checkpointer"
    with pytest.raises(InstantiationException, match="`Checkpointer`"):
        build(tmp_path, "+callbacks.another={_target_: tagrpo.callbacks.Checkpointer}")


def test_wandb_is_offline_without_a_key(monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert composed("logger=wandb").logger.wandb.offline is True
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    cfg = composed("logger=wandb")
    assert cfg.logger.wandb.offline is False
    assert "secret" not in str(cfg.logger)


@pytest.mark.parametrize("experiment", ["ta_grpo", "grpo", "grpo_matched"])
def test_validation_at_the_papers_scale_costs_less_than_a_tenth_of_what_training_samples(experiment):
    cfg = composed(f"experiment={experiment}", "scale=paper", "data=math")
    asked = sum(CATALOGUE[split.dataset].questions for split in cfg.data.evaluation.values())
    assert asked == 1788
    iterations = cfg.trainer.max_epochs * (CATALOGUE["math_train"].questions // cfg.data.batch_size)
    responses = cfg.data.samples_per_prompt * (1 + cfg.data.num_rephrasings)
    trained = iterations * cfg.data.batch_size * responses
    validated = iterations // cfg.trainer.val_check_interval * asked * cfg.data.validation_samples
    assert 0 < validated < trained / 10


def test_our_own_warnings_are_shown_without_their_place(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    config.quiet()
    own = str(Path(config.__file__).parents[1] / "callbacks" / "first_look.py")
    assert warnings.formatwarning(UserWarning("Check it."), UserWarning, own, 3) == "Warning: Check it.\n"
    assert "other.py:3: UserWarning: Check it." in warnings.formatwarning(
        "Check it.", UserWarning, "other.py", 3
    )


@pytest.mark.parametrize(
    ("name", "level", "shown"),
    [
        ("tagrpo.rollouts.servers.vllm_server", logging.WARNING, True),
        ("lightning.pytorch.utilities.rank_zero", logging.INFO, True),
        ("vllm.triton_utils.importing", logging.INFO, False),
        ("torch._library.triton", logging.WARNING, False),
        ("vllm.engine", logging.ERROR, True),
    ],
)
def test_the_console_has_our_messages_and_the_errors_of_libraries(name, level, shown):
    job_logging = OmegaConf.to_container(OmegaConf.load(CONFIGS / "train.yaml").hydra.job_logging)
    (kept,) = job_logging["handlers"]["console"]["filters"]
    assert job_logging["filters"][kept]["()"] == f"{config.__name__}.{config.Ours.__name__}"
    assert config.Ours().filter(logging.LogRecord(name, level, "file.py", 1, "text", (), None)) is shown


def test_what_a_scale_sets_of_parts_that_are_not_chosen_is_dropped(tmp_path):
    overrides = ["experiment=dapo", "scale=paper", "reward_terms=signed", "callbacks=[recorder]"]
    cfg = composed(*overrides)
    assert "overlong" in cfg.rollout.reward_terms
    config.drop_unchosen(cfg)
    for each in (cfg, config.compose_run(tmp_path, overrides)):
        assert list(each.rollout.reward_terms) == ["signed"]
        assert list(each.callbacks) == ["recorder"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=grpo", "data.batch_size=1", "policy.mini_batches=2"],
        ["experiment=pass_at_k", "advantage.k=8", "data.samples_per_prompt=4"],
    ],
)
def test_what_only_training_needs_is_not_asked_of_an_evaluation(overrides):
    with pytest.raises(ValueError, match="Expected"):
        config.check_settings(composed(*overrides))
    config.check_settings(composed(*overrides), trains=False)


@pytest.mark.parametrize("override", ["policy.warmup=0.05", "loss.clip_high=2.5"])
def test_a_share_or_a_decimal_is_accepted_where_a_whole_number_is_the_default(override, tmp_path):
    experiment = "dapo" if "warmup" in override else "cispo"
    cfg = config.compose_run(tmp_path, [f"experiment={experiment}", "scale=paper", override])
    check_numbers(cfg)
    check_declared(cfg)


def test_stop_iteration_in_a_hook_of_a_callback_is_an_error_of_its_name():
    class Careless(Callback):
        def on_train_batch_end(self, *_):
            next(iter([]))

        def on_train_start(self, *_):
            return "untouched"

    callback = Careless()
    guard_hooks(callback)
    with pytest.raises(RuntimeError, match=r"Careless \(callbacks\).*StopIteration"):
        callback.on_train_batch_end(None, None, None, None, 0)
    assert callback.on_train_start(None, None) == "untouched"
    assert "on_fit_start" not in vars(callback), "hooks that a callback does not define stay as they are"


class Leaves(Callback):
    def __init__(self, code):
        raise SystemExit(code)


@pytest.mark.parametrize("code", [0, 3, "bye"])
def test_a_part_that_ends_the_program_when_it_is_built_is_an_error(tmp_path, code):
    part = f"+callbacks.mine={{_target_: {__name__}.Leaves, code: {code}}}"
    cfg = config.compose_run(tmp_path, ["experiment=grpo", part])
    with pytest.raises(ValueError, match=rf"sys\.exit\({code!r}\).*_target_"):
        config.build(cfg)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "plain"),
        (["model=smollm2_135m"], "chat"),
        (["model=smollm2_135m_hub"], "chat"),
        (["model=qwen3_1.7b"], "boxed"),
        (["model=smollm2_135m", "template=boxed"], "boxed"),
        (["template=boxed", "model=smollm2_135m"], "boxed"),
        (["model=starter", "template=raw_boxed"], "raw_boxed"),
        (["scale=paper"], "boxed"),
        (["scale=paper", "model=smollm2_135m"], "chat"),
        (["scale=paper", "model=pretrained", "model.path=owner/name"], "boxed"),
        (["data=multiplication"], "chat"),
        (["data=maze", "model=qwen2.5_7b"], "maze"),
        (["data=table", "model=smollm2_135m"], "chat"),
        (["experiment=prompt_augmentation", "model=qwen3_1.7b"], "prompt_augmentation_demo"),
        (["experiment=prompt_augmentation", "scale=paper"], "prompt_augmentation_paper"),
    ],
)
def test_a_model_brings_its_template_unless_one_is_named(overrides, name):
    template = OmegaConf.to_container(composed(*overrides).template, resolve=False)
    expected = OmegaConf.to_container(composed(f"template={name}").template, resolve=False)
    assert template == expected


def test_sources_of_own_data_list_every_argument():
    """So that each can be set without a plus."""
    for option, parts in {"table": ["train", "evaluation.test"], "hub": ["train", "evaluation.test"]}.items():
        cfg = composed(f"data={option}")
        for part in parts:
            assert set(OmegaConf.select(cfg.data, part)) - {"_target_"} == set(
                signature(TableSource).parameters
            )
            assert set(OmegaConf.select(cfg.data, f"{part}.columns")) == set(FIELDS)
    cfg = composed("source=table", name="rephrase")
    assert set(cfg.source) - {"_target_"} == set(signature(TableSource).parameters)


def test_the_test_file_is_read_as_the_training_file_unless_told_otherwise():
    given = ["data=table", "data.train.columns.question=problem", "data.train.worked=true"]
    test = composed(*given, "data.evaluation.test.columns.answer=final").data.evaluation.test
    assert (test.columns.question, test.columns.answer, test.worked) == ("problem", "final", True)
    test = composed("data=table", "data.train=null").data.evaluation.test
    assert (test.columns.question, test.worked, test.delimiter) == ("question", False, None)
