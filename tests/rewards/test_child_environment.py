"""What the processes that run strangers' code see of this one's environment: real processes, and keys of many kinds."""

from __future__ import annotations

import textwrap
from contextlib import closing

import pytest

from tagrpo.lab.tasks.verifiers import VerifiersSource
from tagrpo.rewards.child_environment import child_environment
from tagrpo.rewards.workers import WorkerPool
from tests.lab.tasks.fake_interpreter import fake_interpreter

KEYS = [
    "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "TAGRPO_TOKEN", "DATABASE_URL", "SSH_AUTH_SOCK", "HTTPS_PROXY",
    "MY_OWN", "PATHS", "LCD", "XLC_ALL",
]  # fmt: skip
SHARED = {"HOME": "/nowhere", "LC_ALL": "C.UTF-8", "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def surroundings(monkeypatch):
    for name in KEYS:
        monkeypatch.setenv(name, f"the secret of {name}")
    for name, value in SHARED.items():
        monkeypatch.setenv(name, value)


def test_only_listed_and_named_variables_are_passed_on(surroundings):
    assert not child_environment().keys() & set(KEYS)
    assert SHARED.items() <= child_environment().items()
    assert child_environment()["PYTHONHASHSEED"] == "0"
    assert child_environment(["MY_OWN"]).keys() & set(KEYS) == {"MY_OWN"}


def test_a_named_variable_that_is_not_set_is_refused(surroundings):
    with pytest.raises(ValueError, match=r"data\.variables names .*NOT_SET_ANYWHERE"):
        child_environment(["MY_OWN", "NOT_SET_ANYWHERE"])


@pytest.mark.parametrize("named", [(), ("MY_OWN",)])
def test_workers_see_no_key(surroundings, tmp_path, named):
    compare = tmp_path / "compare.py"
    compare.write_text(
        textwrap.dedent("""
        import os, subprocess
        def compare(job):
            return dict(os.environ), subprocess.run(["env"], capture_output=True, text=True).stdout
    """)
    )
    options = {"variables": {"GIVEN": "by us"}, "inherited": named}
    with closing(WorkerPool(compare, 1, 5.0, 1 << 30, **options)) as pool:
        ((seen, of_child),) = [outcome.value for outcome in pool.submit([1])()]
    assert seen.keys() & set(KEYS) == set(named)
    assert of_child.count("the secret of") == len(named)
    assert {**SHARED, "GIVEN": "by us", "PYTHONHASHSEED": "0"}.items() <= seen.items()


@pytest.mark.parametrize("named", [(), ("MY_OWN",)])
def test_a_taskset_sees_no_key(surroundings, tmp_path, named):
    python = fake_interpreter(
        tmp_path,
        """
        import json, os
        print(json.dumps({"question": json.dumps(dict(os.environ)), "data": json.dumps({"idx": 0})}))
        print(json.dumps({"end": 1}))
    """,
    )
    (group,) = VerifiersSource("mine-v1", python=python, variables=named).load()
    assert group.question.count("the secret of") == len(named)
    assert "TAGRPO_TASKSET" in group.question
