"""Embedded tasks: sources and verifiers, with one file or folder per task."""

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
    """Build a `QuestionDataModule` from `settings`.

    The other arguments are not used here; the settings of sources and verifiers refer to them, as in
    `${data.options}`.

    Args:
        options: Settings of the generator or taskset, such as `{max_terms: 3}` or `{split: test}`.
        task: Name of a task of reasoning-gym; src/lab/tasks/reasoning_gym.yaml lists them.
        environment: Name of an installed taskset of verifiers, such as `gsm8k-v1`.
        python: Interpreter in which `verifiers` and the taskset are installed; null is the current
            interpreter.
        load_seconds: Time limit in seconds for a taskset to load its tasks, for each scoring process to
            start, and for a generator of reasoning-gym to make an item.
        variables: Names of environment variables to pass to a taskset, such as `[HF_HOME]`, besides PATH,
            HOME, LANG, TMPDIR, PYTHONPATH and numbers of threads. No other variables are passed, so that API
            keys stay in this process.
        settings: Arguments of `QuestionDataModule`.
    """
    from ...datamodules.lightning.questions import QuestionDataModule

    return QuestionDataModule(**settings)
