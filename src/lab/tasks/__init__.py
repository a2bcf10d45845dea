"""Embedded tasks: sources and verifiers, one file or folder each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def question_data(
    options: Mapping[str, Any],  # noqa: ARG001
    task: str | None = None,  # noqa: ARG001
    environment: str | None = None,  # noqa: ARG001
    python: str | None = None,  # noqa: ARG001
    load_seconds: float = 600.0,  # noqa: ARG001
    variables: Sequence[str] = (),  # noqa: ARG001
    **settings: Any,
) -> Any:
    """Build a data module from `settings`, whose sources and verifiers refer to the other arguments.

    Args:
        options: Settings of the generator or taskset, such as `{max_terms: 3}` or `{split: test}`.
        task: Generator of reasoning-gym, see docs/reasoning_gym.md.
        environment: Installed taskset of verifiers, such as `gsm8k-v1`.
        python: Interpreter in which `verifiers` and the taskset are installed; null uses the current
            interpreter.
        load_seconds: Time limit in seconds for loading a taskset's tasks, and for starting each scoring
            process.
        variables: Names of environment variables to pass to a taskset, such as `[HF_HOME]`. PATH, HOME, LANG,
            TMPDIR, PYTHONPATH and numbers of threads are always passed, and no others: keys stay here.
        settings: Settings of `QuestionDataModule`.
    """
    from ...datamodules.questions import QuestionDataModule

    return QuestionDataModule(**settings)
