"""The examples of docs/extending.md and of examples/own_parts, run as they stand there."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from tagrpo.datamodules.memory import Record
from tagrpo.rewards import FunctionReward
from tagrpo.types import CreditInputs, LossInputs, QuestionGroup, Request, RewardGroups, SamplingConfig
from tests.helpers import forked

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own_parts"
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```(python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
(REWARD, PARTS) = re.findall(r"```bash\n(.*?)\n```", PAGE, re.DOTALL)
COMMANDS = [
    line
    for line in ast.get_docstring(ast.parse((EXAMPLE / "my_parts.py").read_text())).splitlines()
    if "tagrpo-train" in line
]
"""Commands of the example."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the files of the page."""
    folder = tmp_path_factory.mktemp("project")
    for _, name, content in BLOCKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("a") as file:
            file.write(content)
    return folder


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A copy of the example."""
    return shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("example") / "own_parts")


@pytest.fixture(scope="module")
def parts():
    """The classes of the page and of the example."""
    namespace: dict[str, object] = {}
    exec("".join(content for kind, _, content in BLOCKS if kind == "python"), namespace)
    exec((EXAMPLE / "my_parts.py").read_text(), namespace)
    return namespace


def test_no_example_is_longer_than_twenty_lines():
    assert len(BLOCKS) == 10
    for _, name, content in BLOCKS:
        assert len(content.splitlines()) <= 20, name


def test_the_parts_of_the_page_are_those_of_the_example():
    classes = (EXAMPLE / "my_parts.py").read_text()
    for kind, name, content in BLOCKS:
        if kind == "yaml":
            assert content == (EXAMPLE / name).read_text()
        elif name == "my_parts.py":
            assert content[content.index("class ") :].strip() + "\n" in classes


def test_the_page_names_every_class_of_the_example():
    tree = ast.parse((EXAMPLE / "my_parts.py").read_text())
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert len(classes) == 12
    assert {name for name in classes if name not in PAGE} == set()


@pytest.fixture(scope="module")
def run(example):
    """Number of a command of the example → its folder, after it was run on something small."""

    def of(number):
        return run_small(COMMANDS[number], example / f"run{number}", example)

    return of


def run_small(command, folder, directory):
    """Run a command on something small in a directory; return the folder to which it writes."""
    small = [
        "iterations=2", "test=false", "logger=csv", "export=false", "threads=1", f"hydra.run.dir={folder}",
        "trainer.limit_val_batches=0", "data.samples_per_prompt=2", "~callbacks.embedding_diversity",
    ]  # fmt: skip
    program, *arguments = shlex.split(command.removeprefix("PYTHONPATH=. "))
    assert program == "tagrpo-train"
    code, output = forked("train", *arguments, *small, folder=directory)
    assert code == 0, output[-3000:]
    return folder


def graded(responses, function):
    """Compare recorded rewards and verdicts with those of a function, called once for each row."""
    for text, reference, reward, correct in zip(
        *(responses[name] for name in ("response", "reference", "reward", "correct")), strict=True
    ):
        (expected,) = function(completions=[text], answer=[reference[0]])
        assert reward == pytest.approx(expected)
        assert correct == (expected > 0.5)


def test_a_reward_trains_and_evaluates_from_its_directory_and_from_another(project, parts, tmp_path):
    """Both learn from the values of the function, and pass@k counts those above one half."""
    folder = run_small(REWARD, tmp_path / "run", project)
    responses = pd.read_parquet(folder / "rollouts")
    graded(responses, parts["close"])
    assert responses["reward"].between(0, 1, inclusive="neither").any(), "or nothing is graded"
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["rollout/reward"])
    means = responses.groupby("iteration")["reward"].mean()
    assert rows["rollout/reward"].tolist() == pytest.approx(means.tolist())

    arguments = shlex.split(REWARD)[1:]
    small = [
        "data.evaluation_samples=4",
        "callbacks.pass_at_k.ks=[1,4]",
        f"hydra.run.dir={tmp_path / 'evaluation'}",
    ]
    ran = subprocess.run(
        [Path(sys.executable).with_name("tagrpo-eval"), *arguments, *small], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(project)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    splits = json.loads((tmp_path / "evaluation" / "test.json").read_text())["splits"]
    for split in splits.values():
        assert 0 < split["pass_at_k"]["1"]["value"] < split["pass_at_k"]["4"]["value"] < 1


def test_the_reward_of_the_page_is_called_in_a_script(parts):
    (code,) = re.findall(r"```python\n(reward = .*?)```", PAGE, re.DOTALL)
    namespace = {"FunctionReward": FunctionReward, "close": parts["close"]}
    exec(code, namespace)
    assert [(score.reward, score.correct) for score in namespace["scores"]] == [(1.0, True)]
    assert len(REWARD.splitlines()) == 1


def test_the_parts_of_the_page_train_together(project, tmp_path):
    folder = run_small(PARTS, tmp_path / "run", project)
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["longest/tokens"])
    responses = pd.read_parquet(folder / "rollouts")
    assert rows["longest/tokens"].tolist() == responses.groupby("iteration")["length"].max().tolist()
    assert set(responses["question"]) <= {f"{a}+2" for a in range(1, 9)}
    assert len(responses) == 2 * 4 * 2  # iterations, questions and samples: the experiment has no rephrasings
    assert len(PARTS.splitlines()) == 1


def test_a_method_a_source_an_engine_and_a_diagnostic_train_together(run):
    folder = run(0)
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["longest/tokens"])
    assert rows["longest/tokens"].tolist() == [40.0, 40.0]
    assert rows["rollout/truncated"].tolist() == [1.0, 1.0]
    assert len(pd.read_parquet(folder / "rollouts")) == 2 * 4 * 2


def test_credit_a_term_a_curriculum_and_a_correction_train_together(run):
    rows = pd.read_csv(run(1) / "metrics.csv").dropna(subset=["rollout/reward"])
    assert len(rows) == 2
    assert rows["rollout/mismatch_weight"].notna().all()


def test_a_reformulation_is_asked_in_place_of_its_question(run):
    prompts = pd.read_parquet(run(2) / "rollouts")["prompt"]
    assert prompts.str.contains(r"2 \+ \d").all(), "no response was correct yet"


def test_a_solved_reformulation_gives_way_to_its_question(parts):
    group = QuestionGroup("a", "7 + 8", ("7 + 8: 15 or 16?", "8 + 7"), ("15",), kinds=("format", "wording"))
    asked = [parts["EasierFirst"]().asked(group, Record(samples=4, correct=correct)) for correct in (0, 1)]
    assert [(g.question, g.rephrasings, g.kinds) for g in asked] == [
        ("7 + 8: 15 or 16?", (), ()),
        ("7 + 8", (), ()),
    ]


def test_a_question_that_nobody_solved_is_asked_once_more_with_a_hint(run):
    """The engine draws any token alike: no response is correct."""
    folder = run(4)
    responses = pd.read_parquet(folder / "rollouts")
    assert not responses["correct"].any()
    assert len(responses) == 2 * 2 * 4 * 2, "iterations, questions with and without a hint, and samples"
    hinted = responses[responses["question"].str.endswith(" hinted")]
    assert len(hinted) * 2 == len(responses)
    found = hinted["prompt"].str.extract(r"\d \+ 2\. It ends in (\d)")[0]
    assert found.tolist() == [answers[0][-1] for answers in hinted["reference"]]
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["budget/rollouts"])
    assert rows["budget/rollouts"].tolist() == [16, 32]


def test_a_solved_question_gets_no_hint(parts, make_batch):
    asked = []
    batch = make_batch([[[0.0, 1.0]], [[0.0, 0.0]]])
    assert parts["Hinted"]().extend(batch, lambda groups: asked.extend(groups) or batch) == [batch]
    assert [(group.id, group.rephrasings) for group in asked] == [("q1 hinted", ("question 1 It ends in 1",))]


def test_a_verifier_that_reads_the_equations_too_decides_what_is_correct(run, parts):
    responses = pd.read_parquet(run(3) / "rollouts")
    rows = zip(responses["response"], responses["reference"], strict=True)
    verdicts = [parts["Equations"]()(text, list(reference)).correct for text, reference in rows]
    assert responses["correct"].tolist() == verdicts
    assert responses["response"].map(parts["EQUATION"].search).notna().mean() > 0.5


def test_the_strategy_divides_by_the_mean(parts):
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    question = torch.tensor([0, 0, 0, 0, 1, 1])
    groups = RewardGroups(rewards=rewards, correct=rewards > 0, question=question, prompt=question)
    assert parts["MaxRL"]()(groups).tolist() == [
        3.0,
        -1.0,
        -1.0,
        -1.0,
        0.0,
        0.0,
    ]  # (1 − ¼) / ¼ and (0 − ¼) / ¼


def test_the_loss_is_a_mean_over_tokens(parts):
    logprobs = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs, old_logprobs=logprobs.detach(), reference_logprobs=None, entropy=None,
        advantages=torch.tensor([1.0, -2.0]), response=torch.tensor([0, 0, 1]), lengths=torch.tensor([2, 1]),
        num_responses=2, num_tokens=3,
    )  # fmt: skip
    assert parts["Reinforce"]()(inputs).loss.item() == pytest.approx((1 + 2 - 8) / 3)


def test_the_engine_draws_by_its_seed(parts):
    engine = parts["UniformEngine"](vocabulary=64)
    first, again, other = (
        engine.generate(Request([torch.tensor([5])], [2], SamplingConfig(max_new_tokens=3), seed))
        for seed in (1, 1, 2)
    )
    tokens = [[completion.token_ids.tolist() for completion in drawn[0]] for drawn in (first, again, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert float(first[0][0].logprobs[0]) == pytest.approx(-4.1588830)  # ln 64


@pytest.fixture
def inputs():
    """Two responses of three tokens and one."""
    return CreditInputs(
        groups=None, advantages=torch.tensor([2.0, -1.0]), prompts=[], responses=[],
        response=torch.tensor([0, 0, 0, 1]), logprobs=torch.zeros(4), entropy=torch.tensor([0.0, 1.0, 9.0, 9.0]),
    )  # fmt: skip


def test_credit_adds_entropy_up_to_a_share_of_the_advantage(parts, inputs):
    credit = parts["EntropyShaped"](alpha=0.4, kappa=2.0)(inputs)
    torch.testing.assert_close(
        credit.advantages, torch.tensor([2.0, 2.4, 3.0, -0.5])
    )  # at most 2 / 2 and 1 / 2


def test_a_wrong_equation_makes_a_right_answer_wrong(parts):
    verdicts = {
        "3 + 4 = 7, 9 - 4 = 5 #### 7": True,
        "3 + 4 = 7, 9 - 4 = 6 #### 7": False,
        "9 - 13 = -4 #### 7": True,
        "9 - 13 = 4 #### 7": False,
        "#### 7": True,
        "3 + 4 = 7 #### 8": False,
    }
    scores = {text: parts["Equations"]()(text, "7") for text in verdicts}
    assert {text: score.correct for text, score in scores.items()} == verdicts
    assert scores["3 + 4 = 7, 9 - 4 = 6 #### 7"].answer == "7"


def test_the_term_costs_correct_responses_their_length(parts):
    rollouts = SimpleNamespace(lengths=torch.tensor([4, 10]), correct=torch.tensor([True, False]))
    assert parts["CostPerToken"](cost=0.5)(rollouts, []).tolist() == [-2.0, 0.0]


def test_the_curriculum_leaves_out_what_was_solved(parts):
    chance = parts["UntilSolved"]().chance
    assert (chance(Record()), chance(Record(solved_in_full=True))) == (1.0, 0.0)


def test_the_correction_takes_the_root_of_the_ratio(parts):
    correction = parts["Tempered"](weight="token", cap=2.0)
    weights = correction.of_tokens(torch.tensor([9.0, 1 / 4]).log(), torch.tensor([0, 0])).weights
    torch.testing.assert_close(weights, torch.tensor([2.0, 0.5]))  # 3 is truncated
