"""docs/how_do_i.md: its commands as printed, run where a CPU suffices and composed elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tagrpo.runs.directory import read_config
from tagrpo.settings.choices import check_choices
from tagrpo.study.compare import methods_of
from tests.helpers import forked

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how_do_i.md").read_text()
PROGRAMS = {
    "tagrpo-train": "train",
    "tagrpo-eval": "evaluate",
    "tagrpo-plan": "plan",
    "tagrpo-verify": "verify",
    "tagrpo-rephrase": "rephrase",
    "tagrpo-compare": "comparisons.compare",
    "scripts/slurm.sh": "train",
}
"""Program → its configuration. The other programs take paths, or settings in quotes."""


def rows():
    """Question → words of its command and the rest of its row."""
    found = {}
    for question, cell in re.findall(r"^\| ([^|]*\?) \| (.*) \|$", PAGE, re.MULTILINE):
        command = re.search(r"`((?:\w+=\S+ )*(?:tagrpo-\w+|sbatch) [^`]+)`", cell)
        if command:
            found[question] = shlex.split(command[1]), cell
    return found


ROWS = rows()
ELSEWHERE = re.compile(r"\((GPU|hub|GPU, hub|key)\)")
"""Marks of commands that need what a test has not."""
MISSING = {
    "search=optuna": "hydra_plugins.hydra_optuna_sweeper",
    "rollout=vllm_cpu": "vllm",
    "logger=wandb": "wandb",
}
"""Override → package that it needs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder: questions, and a loss and an advantage with their options."""
    place = tmp_path_factory.mktemp("reader")
    (place / "train.csv").write_text("question,answer\nWhat is half of 18?,9\nWhat is double 4?,8\n")
    (place / "my_parts.py").write_text(
        "from tagrpo.modules.advantages import GroupAdvantage\n"
        "from tagrpo.modules.losses import PolicyLoss\n\n\n"
        "class MyAdvantage(GroupAdvantage):\n    pass\n\n\nclass MyLoss(PolicyLoss):\n    pass\n"
    )
    for group, target in {"advantage": "MyAdvantage", "loss": "MyLoss"}.items():
        path = place / "my_configs" / group / "mine.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"_target_: my_parts.{target}\n")
    return place


def program_of(words):
    """The program of a command, and its place among the words."""
    return next(
        (word, place) for place, word in enumerate(words) if word.startswith("tagrpo-") or word in PROGRAMS
    )


def overrides_of(words, folder):
    """The overrides of each run of a command; those of a sweep one by one."""
    given = words[program_of(words)[1] + 1 :]
    found = [word for word in given if re.match(r"[+~]{0,2}[\w./@]+=|~", word)]
    search = []
    if "--config-dir" in given:
        search = [f"hydra.searchpath=[file://{folder / given[given.index('--config-dir') + 1]}]"]
    choices = []
    for override in OverridesParser.create().parse_overrides(found):
        swept = override.is_sweep_override() and override.is_choice_sweep()
        if swept:
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line])
    for overrides in product(*choices):
        yield [*search, *overrides]


def test_the_page_answers_about_thirty_questions():
    assert len(ROWS) >= 25
    questions = re.findall(r"^\| ([^|]*\?) \|", PAGE, re.MULTILINE)
    assert len(questions) == len(set(questions)) <= 35
    assert set(re.findall(r"\([A-Za-z, ]*(?:GPU|hub|key)[^)]*\)", PAGE.partition("| How")[2])) <= {
        "(GPU, hub)",
        "(key)",
        "(needs a key; logs offline without one)",
    }


@pytest.mark.parametrize("question", ROWS)
def test_the_settings_of_each_command_compose(question, folder, monkeypatch):
    """With what hands them on: the methods of a comparison, and the folder of options of a reader."""
    words, _ = ROWS[question]
    program, place = program_of(words)
    monkeypatch.chdir(folder)
    if program == "tagrpo-diff":
        for command in words[place + 1 :]:
            composed("train", shlex.split(command))
    if program not in PROGRAMS:
        return
    for overrides in overrides_of(words, folder):
        cfg = composed(PROGRAMS[program], overrides)
        if program == "tagrpo-compare":
            for method in methods_of(cfg.methods, cfg.scale).values():
                composed("train", [*cfg.overrides, *method.overrides])


def composed(name, overrides):
    package, _, config = f"tagrpo.configs.{name}".rpartition(".")
    with initialize_config_module(package, version_base="1.3"):
        check_choices(overrides)
        return compose(config, overrides)


def test_early_stopping_monitors_questions_that_are_neither_trained_on_nor_tested(folder):
    """The two added settings name the same split, and it shares no problem with the others."""
    words, _ = ROWS["stop early?"]
    (overrides,) = overrides_of(words, folder)
    cfg = composed("train", overrides)
    monitored = cfg.callbacks.early.monitor.split("/")[1]
    problems = {}
    for split, source in {"train": cfg.data.train, **cfg.data.evaluation}.items():
        groups = instantiate(source).load()
        problems[split] = {group.metadata["expression"] for group in groups}
    held_out = problems.pop(monitored)
    assert held_out
    assert set(problems) == {"train", "test_id", "test_phrasing", "test_size"}
    for split, others in problems.items():
        assert held_out.isdisjoint(others), split


SHORT = [
    "data.batch_size=2", "data.samples_per_prompt=2", "data.evaluation_samples=1", "callbacks.pass_at_k.ks=[1]",
    "rollout.sampling.max_new_tokens=4", "trainer.limit_val_batches=0", "~callbacks.embedding_diversity",
]  # fmt: skip


def shortened(words):
    """The same command, so that it ends in seconds."""
    program = words[0]
    if program == "tagrpo-train" and not {"--help", "--cfg"} & set(words):
        iterations = 2 if "iterations=96" in words else 1
        trials = ["hydra.sweeper.n_trials=2"] if "search=optuna" in words else []
        early = any("EarlyStopping" in word for word in words)
        validates = ["trainer.limit_val_batches=1", "trainer.val_check_interval=1"] if early else []
        return [*words, *SHORT, f"iterations={iterations}", *trials, *validates]
    if program == "tagrpo-compare":
        return [*words, "workers=1", f"overrides={json.dumps([*SHORT, 'iterations=1', 'export=false'])}"]
    if program == "tagrpo-eval":
        return [*words, *(word for word in SHORT if "samples_per" not in word)]
    if program == "tagrpo-rephrase":
        return [*words, "--dry-run"]
    return words


def needs(words, cell):
    """What a command needs that is not here; None if it can be run."""
    if found := ELSEWHERE.search(cell):
        offline = words[0] == "tagrpo-rephrase"  # with --dry-run
        return None if offline else found[1]
    if "launcher=slurm" in words:
        return "SLURM"
    if "data_path=copies" in words:
        return "copies"
    for override, package in MISSING.items():
        parent = package.partition(".")[0]
        if override in words and not (find_spec(parent) and find_spec(package)):
            return package
    return None


@pytest.mark.slow
def test_the_commands_run_as_printed_one_after_the_other(folder):
    """In a folder that is not the repository; the run of the first command is there for the others."""
    ran = []
    for question, (words, cell) in ROWS.items():
        if needs(words, cell):
            continue
        program, *arguments = shortened(words)
        code, said = forked(
            program.removeprefix("tagrpo-"), *arguments, folder=folder, environment={"WANDB_MODE": "offline"}
        )
        assert code == 0, f"{question} {shlex.join(words)}\n{said[-3000:]}"
        ran.append(program)
    assert set(ran) == {f"tagrpo-{name}" for name in (
        "train", "diff", "compare", "report", "eval", "export", "rephrase", "plan", "verify",
    )}  # fmt: skip
    runs = folder / "runs"
    assert read_config(runs / "mine/seed0/config.yaml")["loss"]["_target_"] == "my_parts.MyLoss"
    assert OmegaConf.load(runs / "grpo/seed0/config.yaml").iterations == 2
    assert (runs / "lr" / "optimizer.lr=0.0001" / "seed1" / "finished").exists()
    assert (folder / "exported" / "config.json").exists()
    assert (runs / "early/seed0/validation.json").exists(), "or nothing was there to stop by"
