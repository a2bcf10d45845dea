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

from tagrpo.foreign import ForeignDataError
from tagrpo.lab.tasks.verifiers import PROGRAM, VerifiersReward, VerifiersSource
from tests.helpers import forked
from tests.lab.tasks.fake_interpreter import fake_interpreter

HERE = sys.executable if importlib.util.find_spec("verifiers") else None
PYTHON = os.environ.get("TAGRPO_VERIFIERS_PYTHON", HERE)
needs_verifiers = pytest.mark.skipif(
    PYTHON is None, reason="no Python with verifiers: set TAGRPO_VERIFIERS_PYTHON"
)

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
        if trace.last_reply == "nan":
            return float("nan")
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
        os.system("echo noise of a child; cat")
        assert not os.isatty(0) and "OPENAI_API_KEY" not in os.environ
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
        {
            "before": "class Two(vf.Env):\n    async def run(self, task, agents):\n        pass",
            "names": ', "Two"',
        },
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
        {
            "data": 'prompt=[vf.UserMessage(content="a"), vf.AssistantMessage(content="b"), vf.UserMessage(content="c")]'
        },
        "its prompt is not one text of the user",
    ),
    "silent": ({"data": ""}, "its prompt is not one text of the user"),
}
MANY = """
import json, os, runpy, sys
for name in sys.argv[2:]:
    os.environ["TAGRPO_TASKSET"] = json.dumps({"environment": name, "options": {}})
    arguments, out = sys.argv, os.dup(1)
    sys.argv = [arguments[1], "0", "4"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.argv = arguments
    os.dup2(out, 1)
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
    patch.setenv("OPENAI_API_KEY", "the secret")
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
        with pytest.raises(ForeignDataError, match=r"'sums-v1'"):
            lenient("nan", groups[0].answer)
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
    with pytest.raises(ValueError, match=r"'nowhere-v1'.*nowhere_v1"):
        VerifiersSource("nowhere-v1", python=PYTHON).load()


def test_a_python_without_the_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "verifiers.py").write_text("raise ImportError('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"gsm8k-v1.*{}.*data\.python"):
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


def printing(folder, *lines):
    """An interpreter that prints these lines, which are texts or objects for JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return fake_interpreter(
        folder, f"import sys\nsys.stdout.buffer.write({chr(10).join([*texts, '']).encode()!r})\n"
    )


def task(idx=0, question="q", **data):
    return {"question": question, "data": json.dumps({"idx": idx, **data})}


END = {"end": 1}
LINES = {
    "a number": ["3"], "a list": [["q"]], "null and data": [[None, {"idx": 0}]], "a text": ['"q"'], "null": ["null"],
    "an empty line": ["", END], "no JSON": ["noise of a child process", END], "half a line": ['{"question": "q', END],
    "no data": [{"question": "q"}, END], "no question": [{"data": '{"idx": 0}'}, END], "nothing": [{}, END],
    "a question that is null": [{**task(), "question": None}, END], "of a number": [{**task(), "question": 3}, END],
    "data that are no text": [{**task(), "data": {"idx": 0}}, END], "no JSON as data": [{**task(), "data": "{"}, END],
    "data that are a list": [{**task(), "data": "[0]"}, END], "no idx": [{**task(), "data": "{}"}, END],
    "a negative idx": [task(-1), END], "a float as idx": [task(1.0), END], "a text as idx": [task("0"), END],
    "a bool as idx": [task(True), END], "a huge idx": [task(10**30), END], "a list as name": [task(name=["n"]), END],
    "a lone surrogate in the question": [task(question="\ud800"), END],
    "a lone surrogate in the name": [task(name="\ud800"), END], "the same idx twice": [task(), task(), {"end": 2}],
    "NaN": ['{"question": "q", "data": NaN}', END], "NaN as data": [{**task(), "data": '{"idx": 0, "x": NaN}'}, END],
    "too many tasks": [task(0), task(1), task(2), task(3), {"end": 4}], "another number of tasks": [task(), {"end": 2}],
    "a negative number of tasks": [task(), {"end": -1}], "nested deeply": ["[" * 100_000, END],
    "a refusal that is no text": [{"refused": 3}], "a refusal beside a task": [{**task(), "refused": "no"}, END],
    "a task beside the end": [{**task(), "end": 1}], "digits": ['{"end": ' + "9" * 5000 + "}"],
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_lines_that_are_no_tasks_are_one_error_with_the_name_of_the_environment_and_the_setting(
    tmp_path, case
):
    source = VerifiersSource("mine-v1", size=3, python=printing(tmp_path, *LINES[case]))
    with pytest.raises(ForeignDataError, match="mine-v1") as error:
        source.load()
    assert "data.environment" in str(error.value)
    assert str(error.value).isprintable()


def test_tasks_are_read_as_they_are(tmp_path):
    lines = [task(3, "q\n2", id="a", name="b", extra={"x": [1.5, None, "\ud800"]}), task(1, id=7), {"end": 2}]
    first, second = VerifiersSource("mine-v1", size=3, python=printing(tmp_path, *lines)).load()
    assert (first.id, first.question, first.metadata["id"], first.metadata["name"]) == (
        "mine-v1-00003",
        "q\n2",
        "a",
        "b",
    )
    assert json.loads(first.answer[0]) == {
        "idx": 3,
        "id": "a",
        "name": "b",
        "extra": {"x": [1.5, None, "\ud800"]},
    }
    assert (second.id, second.metadata["id"], second.metadata["name"]) == ("mine-v1-00001", 7, None)


def test_a_program_that_ends_before_its_tasks_do_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"mine-v1 .*failed.*data\.python"):
        VerifiersSource("mine-v1", python=printing(tmp_path, task())).load()
    with pytest.raises(ValueError, match=r"data\.python"):
        VerifiersSource("mine-v1", python=str(tmp_path / "none")).load()


@pytest.mark.parametrize(
    "script",
    [
        "import time; time.sleep(3600)",
        "import time, os\nwhile True:\n    os.write(1, b' ')\n    time.sleep(0.01)",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(30)",  # and keeps the pipe open
    ],
)
def test_loading_ends_at_its_time_limit(tmp_path, script):
    source = VerifiersSource("mine-v1", python=fake_interpreter(tmp_path, script), load_seconds=1.0)
    with pytest.raises(ForeignDataError, match=r"mine-v1 .*within 1 s.*data\.load_seconds"):
        source.load()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import os; os.close(1); os.write(2, b'\\x1b[2Jwhy\\n')", 0),
        ("import os, time; os.close(1); time.sleep(0.5); os.write(2, b'\\x1b[2Jwhy\\n'); os._exit(7)", 7),
        ("raise SystemExit('\\x1b[2Jwhy')", 1),
        ("import os, signal; os.write(2, b'\\x1b[2Jwhy\\n'); os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os\nos.write(2, b'x' * 10**7 + b'\\n' * 10**6)\nraise SystemExit('\\x1b[2Jwhy')", 1),
        ("import sys; sys.stdin.read(); raise SystemExit('\\x1b[2Jwhy')", 1),
    ],
)
def test_a_program_that_ends_early_is_an_error_with_its_exit_code_and_what_it_printed(
    tmp_path, capfd, script, code
):
    with pytest.raises(ValueError, match=rf"mine-v1 .*exit code {code} .*data\.python"):
        VerifiersSource("mine-v1", python=fake_interpreter(tmp_path, script)).load()
    printed = capfd.readouterr().err
    assert printed.endswith("\\x1b[2Jwhy\n")
    assert "\x1b" not in printed


def test_a_line_without_end_is_an_error(tmp_path):
    script = "import os\nwhile True:\n    os.write(1, b'x' * (1 << 20))"
    with pytest.raises(ForeignDataError, match=r"mine-v1.*data\.environment"):
        VerifiersSource("mine-v1", python=fake_interpreter(tmp_path, script)).load()


KEYS = [
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MY_KEY",
    "A_SECRET",
]


def test_a_program_gets_no_keys(tmp_path, monkeypatch):
    for name in KEYS:
        monkeypatch.setenv(name, "4f9a0c7d21b8")
    script = """
        import json, os
        facts = {"idx": 0, "names": sorted(os.environ), "values": sorted(os.environ.values())}
        print(json.dumps({"question": "q", "data": json.dumps(facts)}))
        print(json.dumps({"end": 1}))
    """
    (group,) = VerifiersSource("mine-v1", size=1, python=fake_interpreter(tmp_path, script)).load()
    assert not {*KEYS} & {*json.loads(group.answer[0])["names"]}
    assert "4f9a0c7d21b8" not in json.loads(group.answer[0])["values"]


def test_a_program_has_no_terminal_and_a_session_of_its_own(tmp_path):
    script = """
        import json, os, sys
        facts = {"idx": 0, "read": sys.stdin.read(), "session": os.getsid(0) == os.getpid()}
        print(json.dumps({"question": "q", "data": json.dumps(facts)}))
        print(json.dumps({"end": 1}))
    """
    (group,) = VerifiersSource("mine-v1", size=1, python=fake_interpreter(tmp_path, script)).load()
    assert json.loads(group.answer[0]) == {"idx": 0, "read": "", "session": True}


def test_complete_tasks_are_not_waited_for_any_longer(tmp_path):
    script = f"import os, time\nprint({json.dumps(task())!r})\nprint({json.dumps(END)!r}, flush=True)\ntime.sleep(3600)"
    assert len(VerifiersSource("mine-v1", size=1, python=fake_interpreter(tmp_path, script)).load()) == 1


def test_references_are_the_data_of_a_task_and_rewards_are_finite(tmp_path):
    with closing(VerifiersReward("mine-v1")) as reward:
        reward.check_reference(('{"idx": 0}',))
        for reference in ("3", "[]", "{", "4 apples", "NaN", "[" * 9000):
            with pytest.raises(ForeignDataError, match="mine-v1"):
                reward.check_reference(reference)
            with pytest.raises(ForeignDataError, match="mine-v1"):
                reward.score_batch(["x"], [reference])
        assert reward._reward(1) == 1.0
        for value in (float("nan"), float("inf"), "1.0", None, True, [1.0], 10**400):
            with pytest.raises(ForeignDataError, match=r"'mine-v1'.*data\.environment"):
                reward._reward(value)
    with pytest.raises(ValueError, match=r"data\.load_seconds"):
        VerifiersReward("mine-v1", load_seconds=0)
