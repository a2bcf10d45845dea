"""Environments of the package verifiers, run by the Python of TAGRPO_VERIFIERS_PYTHON, or by this one if it has it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import closing

import pandas as pd
import pytest

from tagrpo.lab.tasks.verifiers import PROGRAM, VerifiersReward, VerifiersSource
from tests.helpers import forked

HERE = sys.executable if importlib.util.find_spec("verifiers") else None
PYTHON = os.environ.get("TAGRPO_VERIFIERS_PYTHON", HERE)
needs_verifiers = pytest.mark.skipif(PYTHON is None, reason="no Python with verifiers: set TAGRPO_VERIFIERS_PYTHON")

SUMS = """
import os, time
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def right(self, task, trace) -> float:
        if trace.last_reply == "loop":
            while True:
                pass
        if trace.last_reply == "die":
            os._exit(1)
        if trace.last_reply == "fail":
            raise ValueError("of the environment")
        if trace.last_reply == "hoard":
            return float(len(bytearray(1 << 40)))
        return float(trace.last_reply.split()[-1] == task.answer)

    @vf.reward(weight=0.25)
    async def brief(self, trace) -> float:
        return float(len(trace.last_reply) < 10)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))

class SumConfig(vf.TasksetConfig):
    top: int = 9

class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        print("noise of the environment")
        for a in range(1, self.config.top + 1):
            yield SumTask(SumData(prompt=f"{a} + 2?", system_prompt="Add.", answer=str(a + 2)), self.config.task)

__all__ = ["Sums"]
"""
ODD = """
import verifiers.v1 as vf
{before}

class OddTask(vf.Task):
{task}

class Odd(vf.Taskset[OddTask]):
    def load(self):
        yield OddTask(vf.TaskData({data}), self.config.task)
{taskset}
__all__ = ["Odd"{names}]
"""
REWARD = "    @vf.reward\n    async def right(self, trace) -> float:\n        return 1.0\n"
REFUSED = {
    "turns": (
        {"before": "class Two(vf.Env):\n    async def run(self, task, agents):\n        pass", "names": ', "Two"'},
        "its agents take several turns",
    ),
    "stops": (
        {"task": REWARD + "    @vf.stop\n    def enough(self, trace) -> bool:\n        return True\n"},
        "it ends conversations of several turns",
    ),
    "tools": (
        {"task": REWARD + "    @classmethod\n    def toolsets(cls, config):\n        return [object()]\n"},
        "it has tools",
    ),
    "shared_tools": (
        {"taskset": "    @classmethod\n    def toolsets(cls, config):\n        return [object()]\n"},
        "it has tools",
    ),
    "container": ({"task": REWARD + "    NEEDS_CONTAINER = True\n"}, "it needs a container"),
    "image": ({"data": 'prompt="q", image="python:3"'}, "it needs a container"),
    "setup": (
        {"task": REWARD + "    async def setup(self, trace, runtime):\n        pass\n"},
        "it prepares a machine for the model",
    ),
    "runtime": (
        {"task": "    @vf.reward\n    async def ran(self, trace, runtime) -> float:\n        return 1.0\n"},
        "its rewards look into a machine",
    ),
    "unrewarded": ({"task": "    pass\n"}, "it has no rewards"),
    "few_shot": (
        {"data": 'prompt=[vf.UserMessage(content="a"), vf.AssistantMessage(content="b"), vf.UserMessage(content="c")]'},
        "its prompt is not one text of the user",
    ),
    "silent": ({"data": ""}, "its prompt is not one text of the user"),
}
MANY = """
import json, os, runpy, sys
for name in sys.argv[2:]:
    os.environ["TAGRPO_TASKSET"] = json.dumps({"environment": name, "options": {}})
    arguments, out = sys.argv, sys.stdout
    sys.argv = [arguments[1], "0", "4"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.argv, sys.stdout = arguments, out
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """A folder of tasksets that Python finds."""
    folder = tmp_path_factory.mktemp("environments")
    (folder / "sums_v1.py").write_text(SUMS)
    for name, (parts, _) in REFUSED.items():
        defaults = {"before": "", "task": REWARD, "data": 'prompt="q"', "taskset": "", "names": ""}
        (folder / f"odd_{name}.py").write_text(ODD.format(**defaults | parts))
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(folder))
    yield folder
    patch.undo()


@needs_verifiers
def test_tasks_are_questions_and_their_rewards_decide(environments):
    source = VerifiersSource("sums-v1", start=1, size=20, options={"top": 5}, python=PYTHON)
    groups = source.load()
    assert [group.question for group in groups] == [f"Add.\n\n{a} + 2?" for a in range(2, 6)]
    assert [group.id for group in groups] == [f"sums-v1-{row:05d}" for row in range(1, 5)]
    assert json.loads(groups[0].answer[0])["answer"] == "4"
    assert source.report.warnings == ["Expected 20 tasks, but found 4"]
    responses = ["4", "it is, I am sure, 4", "5", "", r"\boxed{4}", "loop", "die", "fail", "hoard", "4"]
    with closing(VerifiersReward("sums-v1", {"top": 5}, PYTHON, workers=1, cpu_seconds=2.0)) as reward:
        scores = reward.score_batch(responses, [groups[0].answer] * len(responses))
    assert [score.correct for score in scores] == [True, *[False] * 8, True]
    failures = [score.failure for score in scores]
    assert failures[:5] == [None, None, None, "TaskError", None]  # an empty reply has no last word
    assert failures[5:] == ["timeout", "crash", "TaskError", "TaskError", None]
    assert scores[4].answer == "4"
    with VerifiersReward("sums-v1", {}, PYTHON, threshold=0.75, workers=1) as lenient:
        assert lenient("it is, I am sure, 4", groups[0].answer).correct
    assert not {"sums_v1", "verifiers"} & set(sys.modules), "nothing of an environment runs in this process"


@needs_verifiers
def test_all_but_single_turn_environments_are_refused_with_the_reason(environments):
    command = [PYTHON, "-P", "-c", MANY, str(PROGRAM), *(f"odd_{name}" for name in REFUSED)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said = dict(zip(REFUSED, map(json.loads, ended.stdout.splitlines()), strict=True))
    for name, (_, reason) in REFUSED.items():
        assert said[name]["refused"].startswith(reason), name
        assert "only single-turn environments are supported" in said[name]["refused"]


@needs_verifiers
def test_an_environment_that_is_not_installed_is_named(environments):
    with pytest.raises(ValueError, match=r"'nowhere-v1': nowhere_v1 is not installed: install the package that has it"):
        VerifiersSource("nowhere-v1", python=PYTHON).load()


def test_a_python_without_the_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "verifiers.py").write_text("raise ImportError('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"to load the tasks of gsm8k-v1 with {}, but it failed.* set data\.python"):
        VerifiersSource("gsm8k-v1").load()


@needs_verifiers
def test_a_run_trains_on_an_environment(environments, tmp_path):
    small = [
        "experiment=grpo", "data=verifiers", "data.environment=sums-v1", f"data.python={PYTHON}", "iterations=2",
        "data.train.start=2", "data.train.size=4", "data.evaluation.test.size=2", "data.batch_size=2",
        "data.samples_per_prompt=2", "data.evaluation_samples=2", "rollout.sampling.max_new_tokens=8", "logger=csv",
        "export=false", "threads=1", "~callbacks.embedding_diversity", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    code, output = forked("train", *small, folder=environments)
    assert code == 0, output[-3000:]
    rollouts = pd.read_parquet(tmp_path / "run" / "rollouts")
    assert len(rollouts) == 2 * 2 * 2
    assert set(rollouts["question"]) <= {f"sums-v1-{row:05d}" for row in range(2, 6)}
    assert json.loads((tmp_path / "run" / "test.json").read_text())["splits"]["test"]["num_questions"] == 2
