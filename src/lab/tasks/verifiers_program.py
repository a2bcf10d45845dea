"""Program that runs a taskset of the package verifiers in a separate Python, without importing tagrpo.

`python verifiers_program.py START COUNT` prints lines of JSON: `{"question": …, "data": …}` for each task,
with the data as JSON within a text, and then `{"end": number of tasks}`. If the taskset is refused, the line
is `{"refused": …}`. The lines go to a copy of standard output that child processes do not inherit; the
standard output of child processes is standard error. For `WorkerPool`, the file defines `compare([data,
response])`, the weighted sum of the task's rewards. The environment variable `TAGRPO_TASKSET` has the taskset
and its options, as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
from functools import cache
from typing import Any

HOOKS = ("setup", "finalize", "stage_verifier")
"""Hooks of a task that need a separate machine beside the model."""


def refusal(taskset: Any, task: Any) -> str | None:
    """Return the reason why an environment is refused; None if it is accepted.

    An environment is accepted if it has one turn, and if its rewards read only the question and the response.
    """
    import verifiers.v1 as vf
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils.loaders import default_harness_id, environment_class

    kind, data, name = type(task), task.data, taskset.config.id
    reasons = {
        "its agents take several turns": environment_class(name) is not SingleAgentEnv,
        "its package brings a harness, which runs the model as an agent": default_harness_id(name) != "bash",
        "it has tools": bool(taskset.toolsets(taskset.config) or kind.toolsets(task.config)),
        "it ends conversations of several turns": bool(task.hooks("stop")),
        "it needs a container": kind.NEEDS_CONTAINER or data.image is not None,
        "it prepares a machine for the model": any(
            getattr(kind, hook) is not getattr(vf.Task, hook) for hook in HOOKS
        ),
        "its rewards ask a model (judges)": bool(task.config.judges),
        "its rewards look into a machine (`runtime`)": any(
            inspect.signature(reward).parameters.get("runtime") is not None for reward in task.hooks("reward")
        ),
        "it has no rewards": not task.hooks("reward"),
        "its prompt is not one text of the user": question_of(data) is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def question_of(data: Any) -> str | None:
    """Return the system prompt and the question as one text; None if the prompt is a conversation."""
    from verifiers.v1.types import content_text

    question = data.prompt
    if isinstance(question, list):
        question = content_text(question[0].content) if [m.role for m in question] == ["user"] else None
    return "\n\n".join(filter(None, (data.system_prompt, question))) if question else None


@cache
def opened() -> Any:
    """Return the taskset of `TAGRPO_TASKSET`."""
    from verifiers.v1.utils.loaders import taskset_class, taskset_config_type

    wanted = json.loads(os.environ["TAGRPO_TASKSET"])
    name = wanted["environment"]
    return taskset_class(name)(taskset_config_type(name).model_validate({**wanted["options"], "id": name}))


def main(start: str, count: str) -> None:
    """Print at most `count` tasks, beginning with `start`."""
    pipe = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # output of a taskset or its child processes is not for the reader
    name = json.loads(os.environ["TAGRPO_TASKSET"])["environment"]
    try:
        taskset = opened()
    except ModuleNotFoundError as error:
        missing = error.name or getattr(error.__cause__, "name", name)
        text = f"{missing} is not installed: install the package that has it into {sys.executable}"
        print(json.dumps({"refused": text}), file=pipe, flush=True)
        return
    number = -1
    for number, task in enumerate(itertools.islice(taskset, int(start), int(start) + int(count))):
        if number == 0 and (reason := refusal(taskset, task)):
            text = f"{reason}, and only single-turn environments are supported. Train in {name} with prime-rl"
            print(json.dumps({"refused": text}), file=pipe, flush=True)
            return
        data = json.dumps(task.data.model_dump(mode="json", exclude_defaults=True))
        print(json.dumps({"question": question_of(task.data), "data": data}), file=pipe, flush=True)
    print(json.dumps({"end": number + 1}), file=pipe, flush=True)


def compare(job: list[Any]) -> float:
    """Return the weighted sum of a response's rewards; `job` is `[data of the task, response]`."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    kind = opened().task_type()
    task = kind(kind.data_type().model_validate(job[0]), opened().config.task)
    nodes = [
        vf.MessageNode(message=vf.UserMessage(content=question_of(task.data) or "")),
        vf.MessageNode(message=vf.AssistantMessage(content=job[1]), parent=0, sampled=True),
    ]
    trace = vf.Trace(
        task=vf.TraceTask(type=kind.__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        state=state_cls(kind)(),
        nodes=nodes,
    )
    asyncio.run(task.score(trace))
    return float(trace.reward)


if __name__ == "__main__":
    main(*sys.argv[1:])
elif __name__ == "<run_path>":  # a worker: its forks have it
    opened()
